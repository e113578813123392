// The memory of one replica over the schedule, and what is live at the peak.
import { element, link } from "./elements.js";
import { bytesText, count, place } from "./program.js";

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
  const rows = live.map(([name, bytes, position = app.graph.byId.get(name)]) => {
    const node = app.graph.nodes[position];
    const shown = node ? link(name, node.text, () => app.select(position, { reveal: true })) : name;
    const line = node?.source ? place(node.source[0]) : "";
    const cells = [shown, count(bytes), `${((100 * bytes) / peak).toFixed(1)} %`, node ? node.types[Math.max(node.results.indexOf(name), 0)] : "", node ? node.variable || node.op.replace(/^jax\./, "") : "", line && link(line, `The nodes of ${line}`, () => app.selectLine(line))];
    return element("tr", { "data-line": line }, cells.map((cell, column) => element("td", { class: column === 1 || column === 2 ? "figure" : "" }, cell)));
  });
  requestAnimationFrame(() => memory.mark(document.getElementById("tab"), app));
  return element("div", { class: "memory" },
    element("div", { class: "plot" }, canvas, note),
    element("div", { class: "live", tabindex: 0, role: "group", "aria-label": "Live at the peak" }, element("table", {}, element("caption", {}, "Live at the peak"),
      element("thead", {}, element("tr", {}, ["Value", "Bytes", "Share", "Type", "Made by", "Line"].map((one) => element("th", { scope: "col" }, one)))),
      element("tbody", {}, rows))));
}

// Marks the values of the line that is chosen, and where its nodes run.
memory.mark = (panel, app) => {
  const line = lineOf(app);
  for (const row of panel.querySelectorAll(".live tbody tr")) row.classList.toggle("chosen", !!line && row.dataset.line === line);
  const canvas = panel.querySelector("#timeline");
  if (canvas) paint(canvas, app);
};

// The line that is chosen, or that of the node that is.
function lineOf({ graph, selected, userLine }) {
  const source = graph.nodes[selected]?.source;
  return source ? place(source[0]) : userLine;
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
  const line = lineOf(app);
  steps.forEach(([position], number) => {
    const { source } = app.graph.nodes[position];
    if (position === app.selected) mark(number, "text");
    else if (line && source && place(source[0]) === line) mark(number, "rewired-line");
  });
  pen.fillStyle = colour("muted");
  pen.font = "11px system-ui, sans-serif";
  const right = peakStep > steps.length * 0.7;
  pen.textAlign = right ? "right" : "left";
  pen.fillText(`peak ${bytesText(peak)}`, ((Math.max(peakStep, 0) + 0.5) / steps.length) * width + (right ? -6 : 6), 11);
}
