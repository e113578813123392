// Colours the boxes of a page by what the cores hold, selects a product, and prints what it saw as JSON. Arguments: browser, page.
import { openPage } from "./opening.mjs";

const [executablePath, file] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file);
seen.head = await page.locator("#facts").innerText();
await page.getByRole("combobox", { name: "Colour by" }).selectOption("cores");
seen.legend = await page.locator("#legend li").allTextContents();
await page.evaluate(() => graphdist.select(graphdist.graph.nodes.findIndex((node) => node.op === "jax.dot_general"), { reveal: true }));
seen.rows = await page.locator("#panel dl dt").evaluateAll((names) => names.map((name) => [name.textContent, name.nextElementSibling.textContent]));
seen.map = [];
for (const height of [1300, 560]) {
  await page.setViewportSize({ width: 1280, height });
  seen.map.push(await page.locator(".minimap").first().isVisible());
}
await browser.close();
console.log(JSON.stringify(seen));
