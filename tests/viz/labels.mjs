// Opens groups until none is closed, and collects the labels that are drawn; prints them as JSON. Arguments: browser, page.
import { openPage } from "./opening.mjs";

const [executablePath, file] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file);
Object.assign(seen, await page.evaluate(async () => {
  const { view } = graphdist;
  const written = new Map(); // zoom -> texts with their sizes in pixels
  const drawn = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    if (this.canvas === view.canvas) written.get(view.zoom)?.push([text, parseFloat(this.font.match(/([\d.]+)px/)[1]) * view.zoom]);
    return drawn.call(this, text, ...place);
  };
  const frame = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  const labels = [];
  for (let more = true; more; ) {
    more = false;
    for (const box of [...view.scene.boxes.values()]) {
      if (!box.group) continue;
      labels.push(box.lines);
      for (const key of box.group.keys) view.open.add(key);
      more = true;
    }
    view.arrange();
  }
  const sizes = {};
  for (const zoom of [1.25, 1, 0.75, 0.5, 0.3, 0.1, 0.02]) {
    view.zoom = zoom;
    view.x = view.y = 0;
    written.set(zoom, []);
    view.draw();
    await frame();
    const texts = written.get(zoom);
    sizes[zoom] = { smallest: Math.min(...texts.map(([, size]) => size)), texts: texts.map(([text]) => text) };
  }
  view.zoom = 1;
  // What the members of a stack differ in, as the panel of the stack says it.
  const stacks = [];
  const visit = (group) => {
    if (group.members) stacks.push(group);
    group.children.forEach(visit);
  };
  visit(view.picture.root);
  const differences = stacks.flatMap((stack) => {
    view.onGroup(stack);
    return [...document.querySelectorAll("#panel .differences li")].map((item) => [item.querySelector("b").textContent, item.querySelector("span").textContent.split(", ").map((text) => text.trim())]);
  });
  // Edges of the nodes that are set aside: how many are drawn while nothing, and while the node is chosen.
  const strokes = async () => {
    let count = 0;
    const stroke = CanvasRenderingContext2D.prototype.stroke;
    CanvasRenderingContext2D.prototype.stroke = function (...path) {
      if (this.canvas === view.canvas) count++;
      return stroke.apply(this, path);
    };
    view.draw();
    await frame();
    CanvasRenderingContext2D.prototype.stroke = stroke;
    return count;
  };
  const edges = view.scene.edges.filter((edge) => edge.aside);
  const aside = { edges: edges.length };
  if (edges.length) {
    const every = view.scene.edges;
    for (const chosen of [undefined, edges[0].source]) {
      Object.assign(view, { zoom: 0.02, x: 100, y: 100, chosen });
      view.scene.edges = every;
      const withThem = await strokes();
      view.scene.edges = every.filter((edge) => !edge.aside);
      aside[chosen ? "drawnWhenChosen" : "drawn"] = withThem - (await strokes());
    }
    view.scene.edges = every;
  }
  const texts = [...document.querySelectorAll("#side *, #dock *")].map((element) => element.textContent);
  return { texts, labels, sizes, differences, aside, titles: view.scene.outlines.map((outline) => [outline.group.name, outline.code]) };
}));
await browser.close();
console.log(JSON.stringify(seen));
