// Presses the keys that the page names, with the focus nowhere, on a pass and on a tab; prints what changed as JSON.
// Arguments: browser, page.
import { openPage } from "./opening.mjs";

const [executablePath, file] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file);
const look = () => page.evaluate(() => {
  const { view, step } = graphdist;
  return { zoom: view.zoom, chosen: view.chosen, open: view.open.size, x: view.x, y: view.y, step };
});
seen.effects = {};
for (const focus of ["body", ".pass[aria-current]", "#tab-memory"]) {
  for (const key of ["n", "p", "+", "-", "0", "c"]) {
    await page.evaluate(() => {
      const { view } = graphdist;
      const group = [...view.scene.boxes.values()].find((box) => box.group?.size);
      if (group && !view.open.size) view.toggle(group.group);
      view.moveBy(7, 7);
    });
    if (focus === "body") await page.evaluate(() => document.activeElement.blur());
    else await page.focus(focus);
    const before = await look();
    await page.keyboard.press(key);
    const after = await look();
    seen.effects[`${focus} ${key}`] = Object.keys(after).filter((name) => after[name] !== before[name]);
  }
}
// In the field of the search they are letters.
await page.focus("#search");
const before = await look();
await page.keyboard.type("cnp+-0");
seen.typed = await page.inputValue("#search");
seen.whileTyping = JSON.stringify(before) === JSON.stringify(await look());
await browser.close();
console.log(JSON.stringify(seen));
