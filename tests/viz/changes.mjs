// Reads the text of a graph before and after a pass in the tab of changes. Prints it as JSON. Arguments: browser, page, pass.
import { openPage } from "./opening.mjs";

const [executablePath, file, pass] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file, { hash: `#pass=${pass}&tab=changes`, viewport: { width: 1600, height: 1000 } });
const rows = page.locator(".changes li");
const shown = () => page.evaluate(() => {
  document.querySelector(".changes").growAll();
  return [...document.querySelectorAll(".changes li")].map((row) => ({ kind: row.className, texts: [...row.querySelectorAll("code")].map((code) => code.textContent.trim()) }));
});
seen.folded = await shown();
for (const fold of await page.locator(".changes .folded .link").all()) await page.locator(".changes .folded .link").first().click();
seen.rows = await shown();
await page.locator(".changes .removed .link").first().click();
seen.before = await page.evaluate(() => ({ shown: graphdist.before, text: graphdist.graph.nodes[graphdist.selected].text }));
seen.removed = (await page.locator(".changes .removed .link").first().textContent()).trim();
await browser.close();
console.log(JSON.stringify(seen));
