// The user's files. Each line has its cost: seconds, bytes sent and bytes held, where they are known. A line is pressed,
// and its nodes are lit; of a node that is selected, its line is marked.
import { element } from "./elements.js";
import { bytesText, moved, place, timeText } from "./program.js";
import { coloured } from "./python.js";

const MOST = 5000;
const SHARES = [0.25, 0.05, 0.01, 0]; // of the seconds or bytes of all lines, from which a figure has a colour

// The file and the line at which the step begins: where most nodes outside of loops have the outermost of their frames.
export function stepOf({ graphs, files }) {
  const found = new Map();
  for (const { source, parent } of graphs.at(-1).nodes) {
    const outer = parent === undefined && source?.findLast(([file]) => files[file]);
    if (outer) found.set(place(outer), { file: outer[0], line: outer[1], nodes: (found.get(place(outer))?.nodes ?? 0) + 1 });
  }
  return [...found.values()].sort((one, other) => other.nodes - one.nodes)[0];
}

export function sources(app) {
  const { files } = app.program;
  const [shown, byLine] = [app.file, nodesByLine(app.graph, app.file)];
  const figures = costs(app, shown);
  const slowest = /^line (.*:(\d+))$/.exec(app.program.verdict.find(({ title }) => title.startsWith("Slowest") || title.startsWith("Most computed"))?.leads);
  const paid = figures.filter(({ all }) => all).flatMap(({ of }) => [...of.keys()]);
  const opens = slowest?.[1] === place([shown, slowest?.[2]]) ? slowest[2] : paid.length ? Math.min(...paid) : stepOf(app.program)?.line;
  const names = Object.keys(files).sort((one, other) => nodesByLine(app.graph, other).size - nodesByLine(app.graph, one).size);
  const choose = element("select", { id: "file", "aria-label": "File", onchange: (event) => app.showSource(event.target.value, undefined) },
    names.map((one) => element("option", { value: one, selected: one === shown }, one)));
  const code = coloured(files[shown].slice(0, MOST));
  const rows = code.map((pieces, number) => {
    const line = number + 1;
    const found = byLine.get(line);
    const row = found
      ? element("button", { type: "button", class: "row live", "data-line": line, onclick: () => app.selectLine(place([shown, line])) })
      : element("div", { class: "row", "data-line": line });
    const cells = figures.map(({ name, of, all, text }) => {
      const amount = of.get(line);
      const heat = 4 - SHARES.findIndex((share) => amount >= share * all);
      return element("span", { class: `cost ${name}`, style: amount && all && `background:var(--heat-${heat})` }, amount ? text(amount) : "");
    });
    row.append(element("span", { class: "number" }, String(line)), ...cells, element("code", {}, pieces.length ? pieces : " "));
    return row;
  });
  const head = element("div", { class: "row head" }, element("span", { class: "number" }, "line"), figures.map(({ name }) => element("span", { class: `cost ${name}` }, name)));
  const made = element("div", { class: "sources" }, choose, element("div", { class: "lines", id: "lines", "data-opens": opens, tabindex: 0, role: "group", "aria-label": "Lines of the file, with their cost" }, head, rows));
  requestAnimationFrame(() => sources.mark(made, app));
  return made;
}

// Marks the line that is chosen, and the lines that call it.
sources.mark = (panel, app) => {
  const lines = panel.querySelector("#lines");
  if (!lines) return;
  const callers = new Set((app.graph.nodes[app.selected]?.source ?? []).filter(([file]) => file === app.file).map(([, line]) => line));
  for (const row of lines.querySelectorAll(".row[data-line]")) {
    const line = Number(row.dataset.line);
    row.classList.toggle("marked", line === app.line);
    row.classList.toggle("calls", line !== app.line && callers.has(line));
  }
  const at = lines.querySelector(`[data-line="${app.line ?? lines.dataset.opens}"]`);
  if (at) lines.scrollTop = at.offsetTop - lines.clientHeight / 2;
};

// The costs of a file's lines: for each figure its name, the amount of each line, and of all lines of all files.
function costs({ graph, program }, file) {
  const { report } = program;
  const figure = (name, text, entries) => {
    const [of, total] = [new Map(), entries.reduce((sum, [, amount]) => sum + amount, 0)];
    for (const [line, amount] of entries) if (line && line.startsWith(place([file, ""]))) add(of, Number(line.split(":").pop()), amount);
    return { name, text, of, all: total };
  };
  const own = (position) => (graph.nodes[position]?.source ? place(graph.nodes[position].source[0]) : "");
  const held = report?.held
    ? report.held.largest.map(([bytes, , , , line]) => [line, bytes])
    : graph.memory.live.map(([name, bytes, position = graph.byId.get(name)]) => [own(position), bytes]);
  return [
    figure("time", timeText, (report?.lines ?? []).map(([line, , seconds]) => [line, seconds])),
    figure("sent", bytesText, graph.collectives.map((position) => [own(position), moved(graph.nodes[position])])),
    figure("held", bytesText, held),
    { name: "nodes", text: String, of: new Map([...nodesByLine(graph, file)].map(([line, nodes]) => [line, nodes.length])) },
  ].filter(({ all, of }) => all !== 0 && of.size);
}

const add = (found, key, amount) => found.set(key, (found.get(key) ?? 0) + amount);
const known = new WeakMap(); // by graph, by file

// A node belongs to every line of the user's that led to it, the innermost and its callers.
function nodesByLine(graph, file) {
  if (!known.has(graph)) known.set(graph, new Map());
  const files = known.get(graph);
  if (!files.has(file)) {
    const found = new Map();
    for (const node of graph.nodes) {
      for (const line of new Set((node.source ?? []).filter((one) => one[0] === file).map((one) => one[1]))) {
        if (!found.has(line)) found.set(line, []);
        found.get(line).push(node);
      }
    }
    files.set(file, found);
  }
  return files.get(file);
}
