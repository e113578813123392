// Has axe-core check a page with each tab, with a node and with nothing selected, in both themes; prints the violations
// as JSON. Arguments: browser, page.
import { fileURLToPath } from "node:url";
import { openPage } from "./opening.mjs";

const [executablePath, file] = process.argv.slice(2);
const axe = fileURLToPath(new URL("../../graphdist/viz/web/node_modules/axe-core/axe.min.js", import.meta.url));
const violations = [];
let checked = 0;
const consoles = [];
for (const colorScheme of ["light", "dark"]) {
  const { browser, page, seen } = await openPage(executablePath, file, { colorScheme, bypassCSP: true });
  await page.addScriptTag({ path: axe });
  const check = async (state) => {
    const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    checked += found.passes.length;
    for (const { id, nodes } of found.violations) violations.push({ theme: colorScheme, state, id, nodes: nodes.slice(0, 3).map((node) => `${node.html.slice(0, 120)} ${node.failureSummary.slice(0, 200)}`) });
  };
  await check("opened");
  await page.evaluate(() => graphdist.select(graphdist.graph.nodes.length - 2, { reveal: true }));
  for (const tab of await page.evaluate(() => Object.keys(graphdist.tabs))) {
    await page.click(`#tab-${tab}`);
    await check(tab);
  }
  for (const colour of ["bytes", "pass"]) {
    await page.selectOption("select[aria-label='Colour by']", colour);
    await check(`coloured by ${colour}`);
  }
  await page.evaluate(() => graphdist.selectLine(graphdist.program.report?.lines?.find(([line]) => line)?.[0] ?? "none"));
  await check("a line");
  await page.evaluate(() => graphdist.toggleBeside());
  await check("beside");
  await page.fill("#search", "a");
  await check("search");
  await page.keyboard.press("Escape");
  for (const step of await page.evaluate(() => graphdist.program.passes.map((_, number) => number).filter((number) => number < 2 || graphdist.program.passes[number].diff))) {
    await page.evaluate((number) => graphdist.goTo(number), step);
    await check(`pass ${step}`);
  }
  consoles.push(...seen.console);
  await browser.close();
}
console.log(JSON.stringify({ violations, checked, console: consoles }));
