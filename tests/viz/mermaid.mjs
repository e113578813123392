// Has Mermaid itself read and draw a chart, in headless Chromium; prints how many nodes it drew, as JSON.
// Arguments: browser, file of the chart.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { chromium } from "../../graphdist/viz/web/node_modules/playwright-core/index.mjs";

const [executablePath, file] = process.argv.slice(2);
const mermaid = fileURLToPath(new URL("../../graphdist/viz/web/node_modules/mermaid/dist/mermaid.min.js", import.meta.url));
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage();
await page.addScriptTag({ path: mermaid });
const seen = await page.evaluate(async (text) => {
  globalThis.mermaid.initialize({ startOnLoad: false });
  const parsed = await globalThis.mermaid.parse(text);
  const { svg } = await globalThis.mermaid.render("chart", text);
  const drawn = document.createElement("div");
  drawn.innerHTML = svg;
  const labels = [...drawn.querySelectorAll(".node")].map((one) => one.textContent);
  return { kind: parsed.diagramType, labels, images: drawn.querySelectorAll("img, script").length };
}, readFileSync(file, "utf8"));
await browser.close();
console.log(JSON.stringify(seen));
