// Uses the address, the history, the search, the wheel, the borders and the buttons of a page; prints what happened as
// JSON. Arguments: browser, page, folder for downloads.
import { readFileSync } from "node:fs";
import { openPage } from "./opening.mjs";

const [executablePath, file, folder] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file, { permissions: ["clipboard-read", "clipboard-write"] });
const shown = () => page.evaluate(() => ({ pass: graphdist.program.passes[graphdist.step].name, node: graphdist.selected === undefined ? null : graphdist.graph.nodes[graphdist.selected].id, tab: graphdist.tab }));
const look = () => page.evaluate(() => { const { x, y, zoom } = graphdist.view; return { x, y, zoom }; });

// The address.
seen.first = await shown();
await page.evaluate(() => graphdist.goTo(1));
await page.evaluate(() => graphdist.select(graphdist.graph.collectives[0] ?? 5, { reveal: true }));
await page.click("#tab-memory");
seen.chosen = await shown();
seen.address = await page.evaluate(() => location.hash);
await page.click("#panel .actions button:nth-child(2)");
seen.copied = await page.evaluate(() => navigator.clipboard.readText());
seen.link = await page.evaluate(() => location.href);
await page.goBack();
seen.backOnce = await shown();
await page.goBack();
await page.goBack();
seen.backThrice = await shown();
await page.goForward();
seen.forward = await shown();
const other = await openPage(executablePath, file, { hash: seen.address });
seen.reopened = await other.page.evaluate(() => ({ pass: graphdist.program.passes[graphdist.step].name, node: graphdist.graph.nodes[graphdist.selected].id, tab: graphdist.tab }));
await other.browser.close();
const bad = await openPage(executablePath, file, { hash: "#pass=nosuch&node=%25nosuch&tab=<img>" });
seen.badAddress = await bad.page.evaluate(() => ({ pass: graphdist.program.passes[graphdist.step].name, node: graphdist.selected ?? null, tab: graphdist.tab }));
seen.console.push(...bad.seen.console);
await bad.browser.close();

// The search.
await page.keyboard.press("/");
await page.fill("#search", "scale");
seen.counted = await page.textContent("#figure");
const walk = [];
for (const key of ["Enter", "Enter", "Enter", "Shift+Enter"]) {
  await page.keyboard.press(key);
  walk.push((await shown()).node);
}
seen.walk = walk;
seen.figure = await page.textContent("#figure");
await page.click("button[aria-label='Next find']");
seen.next = (await shown()).node;
await page.click("#regex");
await page.fill("#search", "^%1\\d = scale");
seen.byExpression = await page.textContent("#figure");
await page.fill("#search", "scale(");
seen.noExpression = await page.textContent("#found");
await page.keyboard.press("Escape");

// The wheel moves, with Ctrl it zooms at the pointer.
await page.evaluate(() => graphdist.view.fit());
const bounds = await page.locator("#graph").boundingBox();
await page.mouse.move(bounds.x + 300, bounds.y + 200);
const before = await look();
await page.mouse.wheel(30, 50);
await page.waitForTimeout(50);
const panned = await look();
seen.panned = [panned.x - before.x, panned.y - before.y, panned.zoom / before.zoom];
await page.keyboard.down("Control");
await page.mouse.wheel(0, -50);
await page.waitForTimeout(50);
await page.keyboard.up("Control");
const zoomed = await look();
seen.zoomed = [zoomed.zoom / panned.zoom, (300 - zoomed.x) / zoomed.zoom - (300 - panned.x) / panned.zoom, (200 - zoomed.y) / zoomed.zoom - (200 - panned.y) / panned.zoom];

// Two fingers zoom.
seen.pinched = await page.evaluate(() => {
  const { view } = graphdist;
  const send = (type, pointerId, x, y) => {
    const { left, top } = view.canvas.getBoundingClientRect();
    view.canvas.dispatchEvent(new PointerEvent(type, { pointerId, pointerType: "touch", clientX: left + x, clientY: top + y, bubbles: true }));
  };
  view.canvas.setPointerCapture = () => {};
  const zoom = view.zoom;
  send("pointerdown", 1, 100, 100);
  send("pointerdown", 2, 200, 100);
  send("pointermove", 2, 300, 100);
  send("pointerup", 1, 100, 100);
  send("pointerup", 2, 300, 100);
  return view.zoom / zoom;
});

// A card beside the pointer.
await page.evaluate(() => graphdist.view.fit());
const spot = await page.evaluate(() => {
  const { view } = graphdist;
  const { left, right, top, bottom } = view.canvas.getBoundingClientRect();
  return [...view.scene.boxes.values()].filter((box) => box.node).map((box) => ({ ...view.screenPlace(box.key), text: box.node.text })).find(({ x, y }) => x > left + 20 && x < right - 200 && y > top + 60 && y < bottom - 20);
});
await page.mouse.move(spot.x, spot.y);
await page.waitForSelector("#card:not([hidden])");
seen.card = [(await page.textContent("#card .head")).slice(0, 200), spot.text.slice(0, 200)];
await page.mouse.move(bounds.x + 2, bounds.y + bounds.height - 2);
seen.cardHidden = await page.locator("#card").isHidden();

// Borders.
const sizes = async () => [(await page.locator("#side").boundingBox()).width, (await page.locator("#dock").boundingBox()).height];
seen.sizes = [await sizes()];
const handle = await page.locator(".border.across").boundingBox();
await page.mouse.move(handle.x + 2, handle.y + 100);
await page.mouse.down();
await page.mouse.move(handle.x - 98, handle.y + 100, { steps: 4 });
await page.mouse.up();
await page.focus(".border.along");
await page.keyboard.press("ArrowUp");
seen.sizes.push(await sizes());
await page.click("button[aria-label='Show or hide the tables']");
await page.dblclick(".border.across");
seen.sizes.push(await sizes());
await page.click("button[aria-label='Show or hide the tables']");
await page.dblclick(".border.across");
seen.sizes.push(await sizes());

// Files of the drawing.
for (const kind of ["SVG", "PNG"]) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.click(`button[aria-label='Save the drawing as ${kind}']`)]);
  const path = `${folder}/drawing.${kind.toLowerCase()}`;
  await download.saveAs(path);
  seen[kind] = { name: download.suggestedFilename(), path, begins: readFileSync(path).subarray(0, 8).toString("latin1") };
}
seen.boxes = await page.evaluate(() => graphdist.view.scene.boxes.size);
await browser.close();
console.log(JSON.stringify(seen));
