// Looks at a page of two programs, and shows the graph before a pass beside the graph after it; prints what it saw as
// JSON. Arguments: browser, page, "compared" if the page is of two programs.
import { openPage } from "./opening.mjs";

const [executablePath, file, kind] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file);
const cameras = () => page.evaluate(() => { const { view, beside } = graphdist; return [view, beside.other].map(({ x, y, zoom }) => [x, y, zoom].map((value) => Math.round(value * 1000) / 1000)); });
const settle = () => page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(resolve)))));
seen.tab = await page.locator("[role=tab][aria-selected=true]").textContent();
seen.head = await page.locator("#facts").textContent();
seen.besideAtFirst = await page.evaluate(() => graphdist.beside.isShown);
if (kind === "compared") {
  seen.figures = await page.locator("#comparison .parts .part:first-child tbody tr").allInnerTexts();
  seen.lines = await page.locator("#comparison .parts .part:nth-child(2) tbody tr").allInnerTexts();
  seen.collectives = await page.locator("#comparison > .part tbody tr").allInnerTexts();
  seen.captions = await page.locator(".caption").allTextContents();
} else {
  await page.keyboard.press("b");
}
await settle();
seen.shown = [await page.locator("#drawing").isVisible(), await page.locator("#earlier-drawing").isVisible()];
seen.cameras = [await cameras()];
const bounds = await page.locator("#earlier-graph").boundingBox();
await page.mouse.move(bounds.x + 100, bounds.y + 100);
await page.mouse.wheel(20, 40);
await settle();
seen.cameras.push(await cameras());
await page.keyboard.press("+");
await settle();
seen.cameras.push(await cameras());

// A group opened at the left is open at the right, and boxes of both are at one place.
await page.evaluate(() => graphdist.view.fit());
await settle();
const group = await page.evaluate(() => { const box = [...graphdist.beside.other.scene.boxes.values()].find((box) => box.group?.size); if (!box) return; graphdist.beside.other.press(box); return box.key; });
await settle();
seen.opened = group === undefined ? null : await page.evaluate((key) => [graphdist.view.scene.boxes.has(key), graphdist.beside.other.scene.boxes.has(key)], group);
seen.places = await page.evaluate(() => {
  const [now, before] = [graphdist.view.scene.boxes, graphdist.beside.other.scene.boxes];
  const both = [...now.keys()].filter((key) => before.has(key));
  return { both: both.length, moved: both.filter((key) => now.get(key).x !== before.get(key).x || now.get(key).y !== before.get(key).y).length, added: now.size - both.length, removed: before.size - both.length };
});
// A press on a node before selects what it is now, or says that it is gone.
seen.pressed = await page.evaluate(() => {
  const { view, beside, program } = graphdist;
  const before = program.graphs[program.passes[Math.max(graphdist.step - 1, 0)].graph];
  const gone = program.passes[graphdist.step].diff?.removed[0];
  const kept = before.nodes.findIndex((node, position) => position !== gone && graphdist.graph.ofIdentity.has(node.identity));
  beside.other.onSelect({ node: before.nodes[kept] });
  const found = { selected: graphdist.graph.nodes[graphdist.selected].identity === before.nodes[kept].identity };
  if (gone !== undefined) {
    beside.other.onSelect({ node: before.nodes[gone] });
    found.lost = document.querySelector("#side .lost")?.textContent;
  }
  return found;
});
seen.images = await page.locator("img").count();
seen.address = await page.evaluate(() => location.hash);
await page.keyboard.press("b");
seen.hidden = [await page.locator("#earlier-drawing").isVisible(), await page.evaluate(() => location.hash)];
await page.goBack();
await settle();
seen.back = await page.locator("#earlier-drawing").isVisible();
if (kind === "compared") {
  const links = page.locator("#comparison > .part tbody .link");
  seen.led = [];
  for (let i = 0; i < (await links.count()); i++) {
    await links.nth(i).click();
    seen.led.push([await page.textContent("#side h2 .op"), await page.evaluate(() => [graphdist.selected === undefined, graphdist.beside.other.scene.boxes.has(graphdist.beside.other.chosen)])]);
    await page.click("#tab-comparison");
  }
}
await browser.close();
console.log(JSON.stringify(seen));
