// Reads the report of a page, uses its timeline and its colours; prints what it saw as JSON. Arguments: browser, page.
import { openPage } from "./opening.mjs";

const [executablePath, file] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file);
seen.tabs = await page.locator("[role=tab]").allTextContents();
await page.click("#tab-collectives");
const columns = await page.locator("#collectives th").allTextContents();
seen.sorted = columns.find((name) => /[▲▼]/.test(name));
const figures = async (name) => page.locator(`#collectives tbody td:nth-child(${columns.findIndex((column) => column.startsWith(name)) + 1})`).allTextContents();
seen.bytes = await figures("Bytes");
seen.times = columns.some((name) => name.startsWith("Time ")) ? await page.evaluate(() => graphdist.graph.collectives.map((position) => graphdist.graph.nodes[position].seconds * graphdist.graph.nodes[position].times)) : [];
seen.shown = columns.some((name) => name.startsWith("Time ")) ? await figures("Time ") : [];
const source = page.locator("#collectives [data-line]").first();
if (await source.count()) {
  await source.click();
  seen.source = [await source.textContent(), await page.evaluate(() => [graphdist.tab, graphdist.lanes?.line])].flat();
}

if (seen.tabs.includes("Report")) {
  await page.click("#tab-memory");
  seen.memory = await page.locator("#tab caption, #tab h3").allTextContents();
  await page.click("#tab-report");
  seen.report = await page.locator("#report").innerText();
  seen.captions = await page.locator("#report caption").allTextContents();
}

// The lane: what the pointer is over is named, a press shows the nodes of its line.
if (await page.locator("#lanes").count()) {
  const { x, y } = await page.locator("#lanes-canvas").boundingBox();
  seen.note = await page.textContent("#lanes p");
  const spot = await page.evaluate(() => {
    const { lanes } = graphdist;
    const width = lanes.canvas.clientWidth;
    for (let left = 95; left < width; left++) {
      for (let top = 4; top < lanes.canvas.clientHeight; top += 15) {
        const slice = lanes.at(left, top);
        const lines = slice?.line && graphdist.graph.nodes.filter((node) => node.source && `${node.source[0][0].split("/").pop()}:${node.source[0][1]}` === slice.line);
        if (lines?.length > 1) return { left, top, line: slice.line, nodes: lines.map((node) => node.id) };
      }
    }
  });
  await page.mouse.move(x + spot.left, y + spot.top);
  seen.hovered = await page.textContent("#lanes-card");
  await page.mouse.click(x + spot.left, y + spot.top);
  seen.pressed = { ...spot, title: await page.textContent("#side h2"), listed: await page.locator("#side .links .link").allTextContents(), highlighted: await page.evaluate(() => graphdist.view.highlighted.size), boxes: await page.evaluate(() => new Set(graphdist.view.marked.map((position) => graphdist.view.scene.boxOf(graphdist.view.slotAt(position)))).size) };
  await page.keyboard.press("[");
  seen.followed = await page.evaluate(() => [graphdist.userLine, graphdist.view.marked.length > 0]);
  await page.keyboard.press("]");
  await page.evaluate(() => graphdist.select(graphdist.graph.nodes.find((node) => node.source).position));
  seen.laneOfNode = await page.evaluate(() => { const [file, line] = graphdist.graph.nodes[graphdist.selected].source[0]; return graphdist.lanes.line === `${file.split("/").pop()}:${line}`; });
  await page.focus("#lanes-canvas");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("+");
  await page.keyboard.press("ArrowRight");
  seen.walked = await page.evaluate(() => [graphdist.lanes.zoom > 1, graphdist.lanes.current.title, graphdist.view.zoom]);
  seen.said = await page.textContent("#status");
}

// The colours.
seen.colourings = await page.locator("select[aria-label='Colour by'] option").allTextContents();
seen.colours = {};
for (const name of ["bytes", "memory", "distribution", "pass", "time"].filter((name) => seen.colourings.includes(name))) {
  await page.selectOption("select[aria-label='Colour by']", name);
  const colours = await page.evaluate(() => {
    const { view } = graphdist;
    for (const group of Object.values([...view.scene.boxes.values()].filter((box) => box.group))) if (view.scene.boxes.has(group.key)) view.toggle(group.group);
    return { used: [...new Set([...view.scene.boxes.values()].map((box) => view.colouring.of(box)).filter((colour) => colour))], said: [...view.scene.boxes.values()].map((box) => view.colouring.say(box)).filter((text) => text) };
  });
  seen.colours[name] = { ...colours, legend: await page.locator("#legend li").allTextContents(), hash: await page.evaluate(() => location.hash) };
}
const hash = await page.evaluate(() => location.hash);
await browser.close();
const again = await openPage(executablePath, file, { hash });
seen.restored = await again.page.evaluate(() => [graphdist.view.colour, document.querySelector("select[aria-label='Colour by']").value, !document.getElementById("legend").hidden]);
await again.page.selectOption("select[aria-label='Colour by']", "change");
seen.plain = await again.page.evaluate(() => [document.getElementById("legend").hidden, graphdist.view.colouring === undefined]);
await again.browser.close();
console.log(JSON.stringify(seen));
