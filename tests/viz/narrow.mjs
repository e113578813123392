// Opens a page in a window as wide as a phone; prints how high its parts are, as JSON. Arguments: browser, page, folder.
import { mkdirSync } from "node:fs";
import { openPage } from "./opening.mjs";

const [executablePath, file, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const { browser, page, seen } = await openPage(executablePath, file, { viewport: { width: 390, height: 844 }, hasTouch: true });
const look = async () => ({ drawing: (await page.locator("#drawing").boundingBox()).height / 844, overflow: await page.evaluate(() => [document.documentElement.scrollWidth - innerWidth, document.documentElement.scrollHeight - innerHeight]) });
seen.first = await look();
await page.evaluate(() => graphdist.select(5, { reveal: true }));
seen.selected = await look();
await page.screenshot({ path: `${folder}/narrow.png` });
await browser.close();
console.log(JSON.stringify(seen));
