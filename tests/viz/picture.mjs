// Opens an SVG file in headless Chromium; prints what is drawn, as JSON. Arguments: browser, file, screenshot.
import { pathToFileURL } from "node:url";
import { chromium } from "../../graphdist/viz/web/node_modules/playwright-core/index.mjs";

const [executablePath, file, screenshot] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
const requests = [];
page.on("request", (one) => requests.push(one.url().split(":")[0]));
await page.goto(pathToFileURL(file).href);
const seen = await page.evaluate(() => {
  const drawn = [...document.querySelectorAll("g")];
  const sizes = drawn.map((one) => one.getBoundingClientRect());
  return { error: document.querySelector("parsererror")?.textContent ?? null, boxes: drawn.length, empty: sizes.filter((one) => one.width < 10 || one.height < 10).length };
});
await page.screenshot({ path: screenshot });
await browser.close();
console.log(JSON.stringify({ ...seen, requests }));
