// The memory of one replica over the schedule, and what is live at the peak.
import { element, link } from "./elements.js";
import { bytesText, count } from "./program.js";

export function memory(app) {
  const { steps, peak, peak_step: peakStep, live } = app.graph.memory;
  if (!steps.length) return element("p", { class: "hint" }, "No node runs.");
  const canvas = element("canvas", { id: "timeline", tabindex: 0, role: "img", "aria-label": `Bytes live over ${steps.length} nodes, at most ${bytesText(peak)}` });
  const note = element("p", { class: "hint" }, `Peak ${bytesText(peak)} at node ${Math.max(peakStep, 0) + 1} of ${steps.length}. From the graph alone: XLA fuses and reuses buffers.`);
  const at = (event) => Math.min(steps.length - 1, Math.max(0, Math.floor((event.offsetX / canvas.clientWidth) * steps.length)));
  canvas.addEventListener("pointermove", (event) => {
    const number = at(event);
    note.textContent = `${bytesText(steps[number][1])} while ${app.graph.nodes[steps[number][0]].id} runs, node ${number + 1} of ${steps.length}. Peak ${bytesText(peak)}.`;
  });
  canvas.addEventListener("click", (event) => app.select(steps[at(event)][0], { reveal: true }));
  new ResizeObserver(() => paint(canvas, app)).observe(canvas);
  const rows = live.map(([name, bytes]) => {
    const position = app.graph.byId.get(name);
    const shown = position === undefined ? name : link(name, app.graph.nodes[position].text, () => app.select(position, { reveal: true }));
    return element("tr", {}, element("td", {}, shown), element("td", { class: "figure" }, count(bytes)), element("td", { class: "figure" }, `${((100 * bytes) / peak).toFixed(1)} %`));
  });
  return element("div", { class: "memory" },
    element("div", { class: "plot" }, canvas, note),
    element("div", { class: "live", tabindex: 0, role: "group", "aria-label": "Live at the peak" }, element("table", {}, element("caption", {}, "Live at the peak"),
      element("thead", {}, element("tr", {}, ["Value", "Bytes", "Share"].map((one) => element("th", { scope: "col" }, one)))),
      element("tbody", {}, rows))));
}

function paint(canvas, app) {
  const { steps, peak, peak_step: peakStep } = app.graph.memory;
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width || !peak) return;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const y = (bytes) => height - 2 - (bytes / peak) * (height - 18);
  pen.beginPath();
  pen.moveTo(0, height);
  steps.forEach(([, bytes], number) => {
    pen.lineTo((number / steps.length) * width, y(bytes));
    pen.lineTo(((number + 1) / steps.length) * width, y(bytes));
  });
  pen.lineTo(width, height);
  pen.fillStyle = colour("plot");
  pen.fill();
  pen.strokeStyle = colour("accent");
  pen.stroke();
  const mark = (number, name) => {
    pen.strokeStyle = colour(name);
    pen.beginPath();
    pen.moveTo(((number + 0.5) / steps.length) * width, 0);
    pen.lineTo(((number + 0.5) / steps.length) * width, height);
    pen.stroke();
  };
  mark(Math.max(peakStep, 0), "removed-line");
  const chosen = steps.findIndex(([position]) => position === app.selected);
  if (chosen >= 0) mark(chosen, "text");
  pen.fillStyle = colour("muted");
  pen.font = "11px system-ui, sans-serif";
  const right = peakStep > steps.length * 0.7;
  pen.textAlign = right ? "right" : "left";
  pen.fillText(`peak ${bytesText(peak)}`, ((Math.max(peakStep, 0) + 0.5) / steps.length) * width + (right ? -6 : 6), 11);
}
