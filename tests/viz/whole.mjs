// Opens all groups with the key, fits and zooms; prints as JSON which share of the pixels of the drawing is painted each
// time, and how many boxes are outside the window. Arguments: browser, page.
import { openPage } from "./opening.mjs";

const [executablePath, file] = process.argv.slice(2);
const { browser, page, seen } = await openPage(executablePath, file);
const look = () => page.evaluate(async () => {
  const { view } = graphdist;
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  const { canvas, scene, x, y, zoom } = view;
  const { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  let painted = 0;
  for (let at = 3; at < data.length; at += 4) painted += data[at] > 0;
  const isOutside = (box) => x + box.x * zoom < 0 || y + box.y * zoom < 0 || x + (box.x + box.width) * zoom > canvas.clientWidth || y + (box.y + box.height) * zoom > canvas.clientHeight;
  return { painted: painted / (data.length / 4), outside: [...scene.boxes.values()].filter(isOutside).length, boxes: scene.boxes.size };
});
await page.keyboard.press("o");
await page.waitForFunction(() => document.getElementById("status").textContent.includes("groups opened"));
seen.opened = await look();
await page.evaluate(() => graphdist.view.moveBy(1e7, 1e7));
seen.lost = await look();
await page.keyboard.press("0");
seen.fitted = await look();
seen.zoomed = [];
for (const key of ["-", "+", "+", "+", "+", "+", "+"]) {
  await page.keyboard.press(key);
  seen.zoomed.push((await look()).painted);
}
await browser.close();
console.log(JSON.stringify(seen));
