// Reads the memory tab of a page; prints its rows as JSON. Arguments: browser, page.
import { openPage } from "./opening.mjs";

const [executablePath, file] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file);
await page.click("#tab-memory");
seen.rows = await page.locator(".live tbody tr").count();
seen.links = await page.locator(".live tbody .link").count();
seen.leads = await page.locator(".live tbody .link").evaluateAll((links) => links.map((link) => {
  link.click();
  return [link.textContent, graphdist.graph.nodes[graphdist.selected].results];
}));
await browser.close();
console.log(JSON.stringify(seen));
