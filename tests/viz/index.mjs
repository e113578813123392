// Follows the links of an index page, and has axe-core check it in both themes; prints what it saw as JSON. Arguments:
// browser, page.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { chromium } from "../../graphdist/viz/web/node_modules/playwright-core/index.mjs";

const [executablePath, file] = process.argv.slice(2);
const axe = readFileSync(new URL("../../graphdist/viz/web/node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage();
const seen = { console: [], violations: [], titles: [], images: 0 };
page.on("console", (message) => seen.console.push(message.text()));
page.on("pageerror", (error) => seen.console.push(String(error)));
page.on("request", (request) => { if (!request.url().startsWith("file:")) seen.console.push(request.url()); });
for (const colorScheme of ["light", "dark"]) {
  await page.emulateMedia({ colorScheme });
  await page.goto(pathToFileURL(file).href);
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run());
  seen.violations.push(...found.violations.map((violation) => `${colorScheme}: ${violation.id}`));
}
seen.images = await page.locator("img, script").count();
seen.rows = await page.locator("tbody tr").allInnerTexts();
seen.narrow = await page.setViewportSize({ width: 390, height: 844 }).then(() => page.evaluate(() => document.documentElement.scrollWidth - innerWidth));
for (let i = 0; i < (await page.locator("a").count()); i++) {
  await page.locator("a").nth(i).click();
  await page.waitForFunction(() => globalThis.graphdist?.view.scene);
  seen.titles.push(await page.title());
  await page.goBack();
}
await browser.close();
console.log(JSON.stringify(seen));
