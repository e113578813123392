// The user's files: a line is pressed, its nodes are shown.
import { element, link } from "./elements.js";

const AROUND = 3000;

export function sources(app) {
  const names = Object.keys(app.program.files);
  if (!names.length) return element("p", { class: "hint" }, "No source is known: a graph read from a file has none, nor has one whose files are gone.");
  const file = app.file ?? names[0];
  const byLine = nodesByLine(app.graph, file);
  const choose = element("select", { id: "file", "aria-label": "File", onchange: (event) => app.showSource(event.target.value, 1) },
    names.map((one) => element("option", { value: one, selected: one === file }, one)));
  const lines = app.program.files[file].slice(0, AROUND).map((text, number) => {
    const line = number + 1;
    const found = byLine.get(line);
    const row = found
      ? element("button", { type: "button", class: `row live${line === app.line ? " marked" : ""}`, "data-line": line, onclick: () => app.showSource(file, line) })
      : element("div", { class: `row${line === app.line ? " marked" : ""}`, "data-line": line });
    row.append(element("span", { class: "number" }, String(line)), element("span", { class: "many" }, found ? `${found.length}` : ""), element("code", {}, text || " "));
    return row;
  });
  const found = byLine.get(app.line) ?? [];
  const nodes = element("div", { class: "line-nodes", id: "line-nodes", tabindex: 0, role: "group", "aria-label": "Nodes of the line" },
    element("p", { class: "hint" }, app.line ? `${found.length} nodes of line ${app.line}` : "Press a line to see its nodes."),
    element("ul", { class: "links" }, found.slice(0, 200).map((one) => {
      const node = app.graph.nodes[one];
      return element("li", {}, link(node.id, node.text, () => app.select(one, { reveal: true })), element("span", { class: "of" }, node.op));
    })));
  return element("div", { class: "sources" }, element("div", { class: "file" }, choose, element("div", { class: "lines", id: "lines", tabindex: 0, role: "group", "aria-label": "Lines of the file" }, lines)), nodes);
}

// A node belongs to every line of the user's that led to it, the innermost and its callers.
function nodesByLine(graph, file) {
  const found = new Map();
  for (const node of graph.nodes) {
    for (const line of new Set((node.source ?? []).filter((one) => one[0] === file).map((one) => one[1]))) {
      if (!found.has(line)) found.set(line, []);
      found.get(line).push(node.position);
    }
  }
  return found;
}
