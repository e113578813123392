// Opens the tab of a page with the plans that were compared, and prints what it shows as JSON. Arguments: browser, page.
import { openPage } from "./opening.mjs";

const [executablePath, file] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file);
await page.getByRole("tab", { name: "Plans" }).click();
const picture = page.locator("#plans img");
await picture.evaluate((image) => image.decode());
seen.picture = await picture.evaluate((image) => [image.naturalWidth, image.naturalHeight, image.checkVisibility()]);
seen.caption = await page.locator("#plans caption").innerText();
seen.rows = await page.locator("#plans tbody tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
seen.tabs = await page.getByRole("tab").allInnerTexts();
await browser.close();
console.log(JSON.stringify(seen));
