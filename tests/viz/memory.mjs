// Reads the memory tab of a page; prints its rows as JSON. Arguments: browser, page.
import { openPage } from "./opening.mjs";

const [executablePath, file] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file);
await page.click("#tab-memory");
seen.captions = await page.locator("#tab caption, #tab h3").allTextContents();
seen.first = await page.locator(".memory tbody tr").count();
const more = page.locator(".memory .part > .link");
if (await more.count()) await more.click();
seen.rows = await page.locator(".memory tbody tr").count();
seen.links = await page.locator(".memory tbody td:first-child .link").count();
seen.leads = await page.locator(".memory tbody td:first-child .link").evaluateAll((links) => links.map((link) => {
  link.click();
  return [link.textContent, graphdist.graph.nodes[graphdist.selected].results];
}));
seen.cells = await page.locator(".memory tbody tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
const line = seen.cells.find((cells) => cells[5])?.[5];
if (line) {
  await page.evaluate((one) => graphdist.selectLine(one), line);
  seen.chosen = await page.locator(".memory tbody tr.chosen").evaluateAll((rows) => [...new Set(rows.map((row) => row.cells[5].textContent))]);
  seen.line = line;
}
await browser.close();
console.log(JSON.stringify(seen));
