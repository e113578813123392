// Opens groups of a page within groups, by pointer and by keyboard, in headless Chromium; prints what changed as JSON.
// Arguments: browser, page, folder for screenshots.
import { mkdirSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { chromium } from "../../graphdist/viz/web/node_modules/playwright-core/index.mjs";

const [executablePath, file, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
const seen = { console: [], clicks: [], keys: [] };
page.on("console", (one) => seen.console.push(one.text()));
page.on("pageerror", (one) => seen.console.push(String(one)));
await page.goto(pathToFileURL(file).href);
await page.waitForFunction(() => globalThis.graphdist?.view.scene);
seen.lines = await page.evaluate(() => graphdist.graph.nodes.slice(0, 100).map((one) => one.text));
const boxes = () => page.evaluate(() => graphdist.view.scene.boxes.size);
// The largest closed group that is in the window, below the one that was opened last.
const largest = (within) => page.evaluate((within) => {
  const { view } = graphdist;
  const bounds = view.canvas.getBoundingClientRect();
  const seen = [...view.scene.boxes.values()].filter((one) => one.group && one.key.startsWith(within)).map((one) => ({ key: one.key, name: one.group.name, size: one.group.size, ...view.screenPlace(one.key) }))
    .filter((one) => one.x > bounds.left && one.x < bounds.right - 180 && one.y > bounds.top + 40 && one.y < bounds.bottom);
  return seen.sort((a, b) => b.size - a.size)[0];
}, within);

let within = "";
for (let depth = 0; depth < 8; depth++) {
  const group = await largest(within);
  if (!group) break;
  const before = await boxes();
  await page.mouse.click(group.x, group.y);
  seen.clicks.push({ name: group.name, size: group.size, before, after: await boxes() });
  within = group.key;
}
await page.screenshot({ path: `${folder}/opened.png` });
await page.emulateMedia({ colorScheme: "dark" });
await page.screenshot({ path: `${folder}/opened-dark.png` });

await page.focus("#graph");
await page.keyboard.press("c");
seen.collapsed = await boxes();
for (let opened = 0, step = 0; opened < 3 && step < 100; step++) {
  await page.keyboard.press("n");
  const name = await page.evaluate(() => graphdist.view.scene.boxes.get(graphdist.view.chosen)?.group?.name);
  if (!name || name === "variables" || name === "inputs") continue;
  const before = await boxes();
  await page.keyboard.press("Enter");
  const after = await boxes();
  await page.keyboard.press("Enter");
  const closed = await boxes();
  await page.keyboard.press("Enter");
  seen.keys.push({ name, before, after, closed });
  opened++;
}
await browser.close();
console.log(JSON.stringify(seen));
