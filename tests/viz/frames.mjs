// Uses a page and records milliseconds from each action to the frame it is drawn in; prints them as JSON, with what was
// built for it. Arguments: browser, page.
import { openPage } from "./opening.mjs";

const [executablePath, file] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file);
Object.assign(seen, await page.evaluate(async () => {
  const { view, program } = graphdist;
  const frame = () => new Promise((resolve) => requestAnimationFrame(() => { const channel = new MessageChannel(); channel.port1.onmessage = () => resolve(performance.now()); channel.port2.postMessage(0); }));
  const time = async (action, times = 5) => {
    const found = [];
    for (let i = 0; i < times; i++) {
      await frame();
      await frame();
      const start = performance.now();
      await action(i);
      found.push(Math.round((await frame()) - start));
    }
    return found;
  };
  const suite = async () => ({
    boxes: view.scene.boxes.size,
    move: await time(() => view.moveBy(7, 5)),
    zoom: await time((i) => view.zoomBy(i % 2 ? 1.25 : 0.8)),
    select: await time((i) => graphdist.select([...view.scene.boxes.values()].filter((box) => box.node).at(i)?.node.position ?? i)),
    step: await time((i) => graphdist.goTo(i % program.passes.length), 2 * program.passes.length),
  });
  const found = { closed: await suite() };
  graphdist.openTab("collectives");
  found.rows = document.querySelectorAll("#collectives tbody tr").length;
  let [worst, last, isOpening] = [0, performance.now(), true];
  const tick = () => { const now = performance.now(); [worst, last] = [Math.max(worst, now - last), now]; if (isOpening) requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
  const start = performance.now();
  await view.openAll();
  await frame();
  isOpening = false;
  found.openAll = { milliseconds: Math.round(performance.now() - start), worstFrame: Math.round(worst) };
  found.open = await suite();
  graphdist.goTo(program.passes.length - 1);
  found.closedGroups = [...view.scene.boxes.values()].filter((box) => box.group && !box.gone).length;
  found.missing = graphdist.graph.nodes.filter((node) => !view.scene.boxes.has(view.picture.slots[node.identity].key)).length;
  const inside = (outline) => [...view.scene.boxes.values()].filter((box) => box.x >= outline.x && box.y >= outline.y && box.x + box.width <= outline.x + outline.width && box.y + box.height <= outline.y + outline.height);
  const alike = view.scene.outlines.filter((outline) => /^attention$/.test(outline.group.name)).slice(0, 4);
  found.titles = view.scene.outlines.map((outline) => outline.group.name);
  found.shapes = alike.map((outline) => JSON.stringify(inside(outline).map((box) => [Math.round(box.x - outline.x), Math.round(box.y - outline.y)])));
  const boxes = [...view.scene.boxes.values()];
  found.overlaps = 0;
  for (const [number, one] of boxes.entries()) for (const other of boxes.slice(number + 1, number + 200)) if (one.x < other.x + other.width && other.x < one.x + one.width && one.y < other.y + other.height && other.y < one.y + one.height) found.overlaps++;
  return found;
}));
await page.click("#tab-collectives");
for (let before = -1, now = 0; before < now; [before, now] = [now, await page.locator("#collectives tbody tr").count()]) {
  await page.evaluate(() => document.getElementById("tab").scrollTo(0, 1e6));
  await page.waitForTimeout(100);
}
seen.allRows = await page.locator("#collectives tbody tr").count();
await page.keyboard.press("c");
seen.collapsed = await page.evaluate(() => graphdist.view.scene.boxes.size);
await browser.close();
console.log(JSON.stringify(seen));
