// Opens a page in headless Chromium for the scripts of this folder. What the page logs and requests is kept in `seen`.
import { pathToFileURL } from "node:url";
import { chromium } from "../../graphdist/viz/web/node_modules/playwright-core/index.mjs";

export async function openPage(executablePath, file, { hash = "", ...options } = {}) {
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, colorScheme: "light", acceptDownloads: true, ...options });
  const page = await context.newPage();
  const seen = { console: [], requests: [] };
  page.on("console", (message) => seen.console.push(message.text()));
  page.on("pageerror", (error) => seen.console.push(String(error)));
  page.on("request", (request) => seen.requests.push(request.url().split(":")[0]));
  await page.goto(pathToFileURL(file).href + hash);
  await page.waitForFunction(() => globalThis.graphdist?.view.scene);
  return { browser, page, seen };
}
