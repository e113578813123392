// The memory of a device at its peak, as compiled, and that of one replica over the schedule, counted on the graph.
import { element, link } from "./elements.js";
import { penOf } from "./paint.js";
import { bytesText, place, shareText } from "./program.js";
import { lineLink, lineOf, markRows, table } from "./tables.js";

export function memory(app) {
  const { report } = app.program;
  requestAnimationFrame(() => memory.mark(document.getElementById("tab"), app));
  if (!report?.held) return ofGraph(app);
  return element("div", {}, held(app, report), element("h3", {}, "Counted on the graph, before XLA"), ofGraph(app));
}

function held(app, { held: { line, phase, largest, is_counted: isCounted }, memory: { peak } }) {
  return table(`Held at the peak of ${bytesText(peak)}, ${isCounted ? "by the graph" : "compiled"}${line && `, ${line} (${phase})`}`,
    [["Array", ""], ["Bytes", "figure"], ["Share", "figure"], ["Part", ""], ["Line", ""]],
    largest.map(([bytes, several, type, part, at]) => [`${type}${several > 1 ? ` x ${several}` : ""}`, bytesText(bytes), shareText(bytes / peak), part, at && lineLink(app, at)]));
}

function ofGraph(app) {
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
  const rows = live.map(([name, bytes, position, type]) => {
    const node = app.graph.nodes[position];
    if (!node) return [name, bytesText(bytes), shareText(bytes / peak), "", "", ""];
    const shown = link(name, node.text, () => app.select(position, { reveal: true }));
    return [shown, bytesText(bytes), shareText(bytes / peak), type ? `${type}, converted` : node.types[Math.max(node.results.indexOf(name), 0)], node.variable || node.op.replace(/^jax\./, ""), node.source && lineLink(app, place(node.source[0]))];
  });
  return element("div", { class: "memory" },
    element("div", { class: "plot" }, canvas, note),
    table("Live at the peak", [["Value", ""], ["Bytes", "figure"], ["Share", "figure"], ["Type", ""], ["Made by", ""], ["Line", ""]], rows));
}

// Marks the values of the line that is chosen, and where its nodes run.
memory.mark = (panel, app) => {
  markRows(panel, app);
  const canvas = panel.querySelector("#timeline");
  if (canvas) paint(canvas, app);
};

function paint(canvas, app) {
  const { steps, peak, peak_step: peakStep } = app.graph.memory;
  const { pen, width, height, colour } = penOf(canvas);
  if (!width || !peak) return;
  const y = (bytes) => height - 2 - (bytes / peak) * (height - 6);
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
  const line = lineOf(app);
  steps.forEach(([position], number) => {
    const { source } = app.graph.nodes[position];
    if (position === app.selected) mark(number, "text");
    else if (line && source && place(source[0]) === line) mark(number, "rewired-line");
  });
}
