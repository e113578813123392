// Reads the first view of a page: its sentences and where they lead, what is marked, and what covers what. Prints it as
// JSON. Arguments: browser, page.
import { openPage } from "./opening.mjs";

const [executablePath, file] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file, { viewport: { width: 1600, height: 1000 } });
const sentences = page.locator("#verdict .sentence");
seen.sentences = await sentences.allInnerTexts();
const marks = () => page.evaluate(() => ({ marked: graphdist.view.markOf.size, gone: [...graphdist.view.scene.boxes.values()].filter((box) => box.gone).length, changed: graphdist.view.scene.edges.filter((edge) => edge.change).length }));
seen.first = await marks();
// Where the page opens: how near the drawing is, whether its largest collective is seen, and which line of the source.
seen.opens = await page.evaluate(() => {
  const { view, graph, program } = graphdist;
  const to = program.verdict.map(({ leads }) => /^collective (.*)/.exec(leads)).find((found) => found)?.[1];
  const { x, y } = view.screenPlace(view.scene.boxOf(view.slotAt(to === undefined ? 0 : graph.collectives[to])));
  const { left, top, right, bottom } = view.canvas.getBoundingClientRect();
  const lines = document.getElementById("lines");
  const row = lines?.querySelector(`[data-line="${lines.dataset.opens}"]`);
  return { zoom: view.zoom, isSeen: x > left && x < right && y > top && y < bottom, code: row?.textContent, isInView: !!row && row.offsetTop >= lines.scrollTop && row.offsetTop < lines.scrollTop + lines.clientHeight };
});
seen.leads = [];
for (const sentence of await page.locator("#verdict button.sentence").all()) {
  await page.evaluate(() => graphdist.openTab(graphdist.firstTab));
  await sentence.click();
  seen.leads.push([await sentence.innerText(), await page.evaluate(() => ({ tab: graphdist.tab, op: graphdist.graph.nodes[graphdist.selected]?.op, line: graphdist.userLine, marked: document.querySelector("#lines .marked")?.textContent, exposed: graphdist.lanes?.current?.exposed > 0 }))]);
}
// What may cover the drawing, when it is larger than the window.
await page.evaluate(() => graphdist.view.zoomBy(3));
await page.waitForTimeout(100);
seen.covered = await page.evaluate(() => {
  const { canvas } = graphdist.view;
  const { left, top, right, bottom } = canvas.getBoundingClientRect();
  const covers = ({ left: x, top: y, right: toX, bottom: toY }) => x < right - 1 && toX > left + 1 && y < bottom - 1 && toY > top + 1;
  return [...document.querySelectorAll(".tools, .tools *, .minimap, .caption, .legend")].filter((one) => one.checkVisibility() && covers(one.getBoundingClientRect())).map((one) => one.outerHTML.slice(0, 80));
});
// The panel of what is selected is above the map, if it is high enough for both.
const map = () => page.evaluate(() => [document.querySelector(".side").clientHeight > 400, document.getElementById("minimap").checkVisibility()]);
seen.maps = [await map()];
await page.setViewportSize({ width: 1600, height: 1500 });
seen.maps.push(await map());
seen.cut = await page.locator("#verdict .says").evaluateAll((all) => all.filter((one) => one.scrollHeight > one.clientHeight + 1).map((one) => one.textContent));
const changed = await page.evaluate(() => graphdist.program.passes.findLastIndex((step) => step.diff));
await page.locator(`.pass[data-step="${changed}"]`).click();
seen.chosen = await marks();
await browser.close();
console.log(JSON.stringify(seen));
