// Opens a page in headless Chromium, uses it as its reader would, and prints what it saw as JSON.
// Arguments: browser, page, folder for screenshots, a line of source to press.
import { mkdirSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { chromium } from "../../graphdist/viz/web/node_modules/playwright-core/index.mjs";

const [executablePath, file, folder, line] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, colorScheme: "light" });
const seen = { console: [], requests: [] };
page.on("console", (one) => seen.console.push(one.text()));
page.on("pageerror", (one) => seen.console.push(String(one)));
page.on("request", (one) => seen.requests.push(one.url().split(":")[0]));
page.on("dialog", (one) => { seen.console.push(`dialog ${one.message()}`); one.dismiss(); });

const start = Date.now();
await page.goto(pathToFileURL(file).href);
await page.waitForFunction(() => globalThis.graphdist?.view.scene);
seen.milliseconds = Date.now() - start;
const state = (script) => page.evaluate(script);
seen.boxes = await state(() => graphdist.view.scene.boxes.size);
seen.images = await page.locator("img").count();

// Open the first group by pressing it on the canvas, and close it with the keyboard.
const group = await state(() => {
  const { view } = graphdist;
  const { left, right } = view.canvas.getBoundingClientRect();
  const isInWindow = ({ x }) => x > left + 20 && x < right - 200;
  return [...view.scene.boxes.values()].find((one) => one.group?.size > 1 && isInWindow(view.screenPlace(one.key)))?.key;
});
if (group) {
  const place = await state(`graphdist.view.screenPlace(${JSON.stringify(group)})`);
  await page.mouse.click(place.x, place.y);
  seen.opened = await state(() => graphdist.view.scene.boxes.size);
  await page.focus("#graph");
  await page.keyboard.press("Enter");
  seen.closed = await state(() => graphdist.view.scene.boxes.size);
}
await page.keyboard.press("/");
await page.keyboard.type("all_reduce");
seen.found = await page.locator("#found button").count();
await page.keyboard.press("Enter");
seen.selected = await page.locator("#side h2 .op").textContent();
seen.facts = await page.locator("#side dl").first().innerText();
await page.screenshot({ path: `${folder}/light.png` });
await page.click("#tab-collectives");
await page.click("#collectives th:nth-child(2) button");
seen.byKind = await page.locator("#collectives th:nth-child(2)").getAttribute("aria-sort");
await page.click("#collectives th:nth-child(4) button");
seen.sorted = await page.locator("#collectives th:nth-child(4)").getAttribute("aria-sort");
for (let rows = -1, now = 0; rows < now; [rows, now] = [now, await page.locator("#collectives tbody tr").count()]) {
  await state(() => document.getElementById("tab").scrollTo(0, 1e6));
  await page.waitForTimeout(100);
}
seen.bytes = await page.locator("#collectives tbody td:nth-child(4)").allTextContents();
seen.moved = await page.locator("#tab .hint").textContent();
await page.click("#tab-memory");
seen.live = await page.locator(".memory tbody tr").count();
if (await page.locator("#tab-source").count()) await page.click("#tab-source");
if (line && (await page.locator(`button[data-line="${line}"]`).count())) {
  await page.click(`button[data-line="${line}"]`);
  seen.lineNodes = await page.locator("#panel .links li").count();
}
seen.passes = await page.locator(".pass").count();
await page.locator(".pass").first().click();
seen.firstStage = await page.locator("#facts").textContent();
for (let i = 1; i < seen.passes; i++) await page.keyboard.press("]");
seen.lastPass = await page.locator(".pass[aria-current] .name").textContent();
// The last pass that changes something; a graph without passes has none.
const changing = await state(() => graphdist.program.passes.findLastIndex((step) => step.diff));
if (changing >= 0) await page.locator(`.pass[data-step="${changing}"]`).click();
await page.click("#tab-changes");
seen.changes = await page.locator(".changes li").count();
if (await page.locator("#before").count()) {
  await page.check("#before");
  seen.marked = await state(() => [...graphdist.view.markOf.values()]);
}
await page.emulateMedia({ colorScheme: "dark" });
await page.screenshot({ path: `${folder}/dark.png` });
await browser.close();
console.log(JSON.stringify(seen));
