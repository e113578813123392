// Uses the timeline of a page: its axis and names, a drag, two programs, a phone and paper; prints what it saw as JSON.
// Arguments: browser, page.
import { openPage } from "./opening.mjs";

const [executablePath, file] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file);
const frame = () => page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
const look = () => page.evaluate(async () => {
  const { lanes } = graphdist;
  const written = [];
  const drawn = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    if (this.canvas === lanes.canvas) written.push([text, x, y, x + this.measureText(text).width]);
    return drawn.call(this, text, x, y);
  };
  lanes.draw();
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  CanvasRenderingContext2D.prototype.fillText = drawn;
  return written;
});
const box = await page.locator("#lanes-canvas").boundingBox();
seen.written = await look();
seen.rows = await page.evaluate(() => graphdist.lanes.rows.map(({ name, title }) => name ?? title));
const [from, to] = [0.3, 0.7].map((part) => box.x + 104 + (box.width - 104) * part);
await page.mouse.move(from, box.y + 30);
await page.mouse.down();
for (const x of [(from + to) / 2, to]) await page.mouse.move(x, box.y + 30);
seen.card = await page.locator("#lanes-card div").allTextContents();
const card = await page.locator("#lanes-card").boundingBox();
seen.near = [Math.abs(card.x + card.width / 2 - to) <= card.width, card.y + card.height <= box.y + 30 && card.y + card.height > box.y];
await page.mouse.up();
seen.selected = await page.evaluate(() => [graphdist.lanes.selected, graphdist.lanes.end]);
// What computes in the selected time, by the program of the page that is shown last.
seen.computes = await page.evaluate(() => {
  const { program, lanes: { selected: [from, to] } } = graphdist;
  const { tracks, lanes } = program.report;
  return lanes.filter(([track]) => tracks[track] === "compute").reduce((sum, [, start, length]) => sum + Math.max(Math.min(start + length, to) - Math.max(start, from), 0), 0);
});
seen.said = await page.textContent("#status");
await page.mouse.dblclick(from + 40, box.y + 5);
await frame();
seen.zoomed = await page.evaluate(() => [graphdist.lanes.zoom, graphdist.lanes.from]);
seen.closer = await look();
await page.focus("#lanes-canvas");
await page.keyboard.press("0");
await frame();
// The memory over the same axis: what the pointer is told, and where a press leads.
seen.memory = await page.evaluate(() => {
  const { lanes: { held, end } } = graphdist;
  const { start } = held.moments.reduce((most, one) => (one.total > most.total ? one : most));
  const number = held.lines.findIndex((line) => line.includes(":"));
  const moment = held.moments.reduce((most, one) => (one.parts[number] > most.parts[number] ? one : most));
  const below = moment.parts.slice(0, number).reduce((sum, bytes) => sum + Math.max(bytes, 0), moment.parts[number] / 2);
  return { peak: held.peak, lines: held.lines, start, end, bottom: graphdist.lanes.canvas.clientHeight, of: held.lines[number], at: moment.start, up: 84 * (below / held.most) + 2 };
});
const at = (time, up) => ({ x: box.x + 104 + (box.width - 104) * (time / seen.memory.end) + 1, y: box.y + seen.memory.bottom - up });
const peak = at(seen.memory.start, 4);
await page.mouse.move(peak.x, peak.y);
seen.memory.card = await page.locator("#lanes-card div").allTextContents();
const pressed = at(seen.memory.at, seen.memory.up);
await page.mouse.click(pressed.x, pressed.y);
seen.memory.line = await page.evaluate(() => graphdist.lanes.line);

// Paper shows what the window cuts.
await page.evaluate(() => { graphdist.openTab("collectives"); graphdist.view.zoomBy(4); dispatchEvent(new Event("beforeprint")); });
await page.emulateMedia({ media: "print" });
await page.waitForTimeout(200);
seen.paper = await page.evaluate(() => {
  const { view, graph } = graphdist;
  const whole = [...view.scene.boxes.values()].every((one) => view.x + one.x * view.zoom >= 0 && view.x + (one.x + one.width) * view.zoom <= view.canvas.clientWidth && view.y + one.y * view.zoom >= 0 && view.y + (one.y + one.height) * view.zoom <= view.canvas.clientHeight);
  const tab = document.getElementById("tab");
  return { whole, rows: document.querySelectorAll("#collectives tbody tr").length === graph.collectives.length, cut: tab.scrollHeight > tab.clientHeight && getComputedStyle(tab).overflowY !== "visible", tools: document.querySelector(".tools").checkVisibility(), height: document.documentElement.scrollHeight };
});
await browser.close();

const phone = await openPage(executablePath, file, { viewport: { width: 390, height: 844 }, hasTouch: true, colorScheme: "dark" });
seen.phone = await phone.page.evaluate(() => ({ overflow: document.documentElement.scrollWidth - innerWidth, lanes: document.getElementById("lanes-canvas").clientWidth, wide: [...document.querySelectorAll("#verdict *, #lanes, #dock, #side, #drawings")].filter((one) => one.getBoundingClientRect().right > innerWidth + 1).length }));
seen.console.push(...phone.seen.console);
await phone.browser.close();
console.log(JSON.stringify(seen));
