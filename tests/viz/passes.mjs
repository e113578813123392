// Steps through the passes of a page with everything open, and with a node selected; prints what moved and what was
// kept, as JSON. Arguments: browser, page, folder for screenshots.
import { mkdirSync } from "node:fs";
import { openPage } from "./opening.mjs";

const [executablePath, file, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const { browser, page, seen } = await openPage(executablePath, file);
// Every collective of the first graph that has any, followed to the last pass with the keyboard.
Object.assign(seen, await page.evaluate(() => {
  const app = graphdist;
  const { passes, graphs } = app.program;
  const from = passes.findIndex((step) => graphs[step.graph].collectives.length);
  const found = { from: passes[from].name, kept: [], lost: [] };
  for (const position of graphs[passes[from].graph].collectives) {
    app.goTo(from, position);
    const was = app.graph.nodes[position];
    for (let step = from + 1; step < passes.length; step++) app.goTo(step);
    if (app.selected === undefined) found.lost.push({ id: was.id, said: document.querySelector("#panel .lost")?.textContent, op: was.op, became: document.querySelector("#panel .successors .of")?.textContent });
    else found.kept.push({ op: was.op, is: app.graph.nodes[app.selected].op, line: was.source?.[0][1], isLine: app.graph.nodes[app.selected].source?.[0][1], shown: document.querySelector("#panel .id").textContent === app.graph.nodes[app.selected].id, chosen: app.view.chosen });
    app.goTo(from);
    found.back ??= 0;
    found.back += app.selected === position ? 1 : 0;
  }
  return found;
}));
// With all groups open: where every box is at each pass.
Object.assign(seen, await page.evaluate(() => {
  const app = graphdist;
  const { view } = app;
  const openAll = (group) => {
    for (const key of group.keys) view.open.add(key);
    group.children.forEach(openAll);
  };
  openAll(view.picture.root);
  view.arrange();
  const camera = [view.x, view.y, view.zoom];
  const places = new Map();
  const found = { moved: [], boxes: [], missing: [], marks: [] };
  app.program.passes.forEach((step, number) => {
    app.goTo(number);
    for (const box of [...view.scene.boxes.values(), ...view.scene.outlines]) {
      const place = JSON.stringify([box.x, box.y, box.width, box.height]);
      if ((places.get(box.key) ?? place) !== place) found.moved.push([step.name, box.key]);
      places.set(box.key, place);
    }
    for (const node of app.graph.nodes) if (!view.scene.boxes.has(`@${node.identity}`)) found.missing.push([step.name, node.id]);
    found.boxes.push(view.scene.boxes.size);
    if (!step.diff) return;
    const markOf = (position) => view.markOf.get(`@${app.graph.nodes[position].identity}`);
    const before = app.program.graphs[app.program.passes[number - 1].graph];
    const gone = step.diff.removed.map((position) => view.scene.boxes.get(`@${before.nodes[position].identity}`));
    found.marks.push({
      pass: step.name,
      added: step.diff.added.filter((position) => markOf(position) !== "added").length,
      rewired: step.diff.rewired.filter(([, position]) => markOf(position) !== "rewired").length,
      removed: gone.filter((box) => !box?.gone || view.markOf.get(box.key) !== "removed").length,
      edges: view.scene.edges.filter((edge) => edge.change).length,
    });
  });
  found.camera = JSON.stringify(camera) === JSON.stringify([view.x, view.y, view.zoom]);
  return found;
}));
await page.evaluate(() => { graphdist.goTo(graphdist.program.passes.findLastIndex((step) => step.diff?.removed.length)); graphdist.view.fit(); });
await page.screenshot({ path: `${folder}/changes.png` });
// A press on a node that the pass removed says so.
const gone = await page.evaluate(() => {
  const { view } = graphdist;
  const box = [...view.scene.boxes.values()].find((one) => one.gone && one.slot);
  view.moveBy(view.canvas.clientWidth / 2 - view.x - box.x * view.zoom, view.canvas.clientHeight / 2 - view.y - box.y * view.zoom);
  return view.screenPlace(box.key);
});
await page.mouse.click(gone.x, gone.y);
seen.pressed = await page.textContent("#panel .lost");
// Passes that changed nothing fold, and unfold when they are pressed.
seen.folds = await page.locator(".fold:visible").count();
const visible = () => page.locator(".pass:visible").count();
seen.visible = await visible();
if (seen.folds) await page.locator(".fold:visible").first().click();
seen.unfolded = await visible();
await browser.close();
console.log(JSON.stringify(seen));
