// Reads the source of a page: where it opens, what lines cost, what is lit; searches it. Prints what it saw as JSON.
// Arguments: browser, page, a line of the file to press, texts to search for.
import { openPage } from "./opening.mjs";

const [executablePath, file, pressed, ...wanted] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file);
await page.waitForTimeout(100);
const frame = () => page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
const marked = () => page.locator("#lines .marked").evaluateAll((rows) => rows.map((row) => Number(row.dataset.line)));
seen.tab = await page.textContent("[role=tab][aria-selected=true]");
seen.file = await page.locator("#file").inputValue();
seen.visible = await page.evaluate(() => {
  const lines = document.getElementById("lines").getBoundingClientRect();
  return [...document.querySelectorAll("#lines .row[data-line]")].filter((row) => row.getBoundingClientRect().bottom <= lines.bottom + 1 && row.getBoundingClientRect().top >= lines.top).map((row) => [Number(row.dataset.line), row.querySelector("code").textContent]);
});
seen.columns = await page.locator("#lines .head .cost").allTextContents();
seen.costs = Object.fromEntries(await page.locator("#lines .row[data-line]").evaluateAll((rows) => rows.map((row) => [row.dataset.line, [...row.querySelectorAll(".cost")].map((cell) => cell.textContent)])));
await page.click(`#lines button[data-line="${pressed}"]`);
await frame();
seen.pressed = { marked: await marked(), title: await page.textContent("#side h2"), lit: await page.evaluate(() => graphdist.view.highlighted.size || (graphdist.view.chosen && 1)) };
const node = await page.evaluate(() => graphdist.graph.nodes.find((one) => one.source?.length > 1 && one.source[0][0] === one.source[1][0]).position);
await page.evaluate((position) => graphdist.select(position, { reveal: true }), node);
await frame();
seen.back = { marked: await marked(), calls: await page.locator("#lines .calls").count(), frames: await page.evaluate((position) => graphdist.graph.nodes[position].source.map(([, line]) => line), node) };
seen.found = {};
for (const text of wanted) {
  await page.fill("#search", text);
  seen.found[text] = { code: await page.locator("#found .code-line").allTextContents(), nodes: await page.textContent("#figure"), ops: await page.locator("#found li").allTextContents() };
}
await page.fill("#search", wanted[0]);
if (await page.locator("#found .code-line").count()) {
  await page.locator("#found .code-line").first().click();
  await frame();
  seen.taken = await marked();
}
await browser.close();
console.log(JSON.stringify(seen));
