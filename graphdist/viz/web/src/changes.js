// What the pass did: the text of the graph before it beside the text after it. A row has a node that both graphs have,
// or one of which the other has none. Rows in which nothing changed are folded, but for some around each change.
import { element, link } from "./elements.js";
import { grow } from "./growing.js";
import { marks, plural } from "./program.js";

const AROUND = 2;
const SIGNS = { removed: "−", added: "+", rewired: "~", changed: "!" };

export function changes(app) {
  const { step: number, program: { passes, graphs } } = app;
  const step = passes[number];
  if (!step.diff) return element("p", { class: "hint" }, number ? `${step.name} changed nothing.` : "The program as it is before all passes.");
  const [before, after] = [graphs[passes[number - 1].graph].nodes, graphs[step.graph].nodes];
  const cell = (nodes, position, isBefore) =>
    element("code", {}, position === undefined ? "" : ["  ".repeat(depth(nodes, position)), link(nodes[position].text, nodes[position].text, () => app.showBefore(isBefore, position))]);
  const row = ({ was, is, kind }) =>
    element("li", { class: kind }, element("span", { class: "sign" }, SIGNS[kind] ?? " "), cell(before, was, true), cell(after, is, false));
  const { added, removed, rewired, changed, kept } = step.diff;
  return element("div", {},
    element("p", { class: "counts" },
      element("label", {}, element("input", { type: "checkbox", id: "before", checked: app.before, onchange: (event) => app.showBefore(event.target.checked) }), " draw the graph before, with what was removed"),
      element("span", { class: "hint" }, `${added.length} added, ${removed.length} removed, ${rewired.length} rewired, ${changed.length} changed, ${kept} kept`)),
    grow(element("ul", { class: "changes", "aria-label": `The graph before and after ${step.name}` }), makers(aligned(step, before, after), row)));
}

// The rows in the order of the graph after the pass; what was removed comes where it was.
function aligned(step, before, after) {
  const rows = [];
  const [ofBefore, ofAfter] = [marks(step, true), marks(step, false)];
  let next = 0;
  const removedUpTo = (end) => {
    for (; next < end; next++) if (!step.after.has(next)) rows.push({ was: next, kind: ofBefore.get(next) ?? "" });
  };
  after.forEach((_, is) => {
    const was = step.before.get(is);
    if (was !== undefined) removedUpTo(was);
    rows.push({ was, is, kind: ofAfter.get(is) ?? "" });
  });
  removedUpTo(before.length);
  return rows;
}

// What makes the rows: each by itself, or many without a change as a button that shows them.
function makers(rows, row) {
  const shown = new Set(rows.flatMap(({ kind }, at) => (kind ? Array.from({ length: 2 * AROUND + 1 }, (_, by) => at - AROUND + by) : [])));
  const found = [];
  for (let at = 0; at < rows.length; at++) {
    const from = at;
    if (shown.has(at)) found.push(() => row(rows[from]));
    else {
      while (at + 1 < rows.length && !shown.has(at + 1)) at++;
      const folded = rows.slice(from, at + 1);
      found.push(() => element("li", { class: "folded" }, link(`… ${plural(folded.length, "line")} without a change`, "Show them", (event) => event.target.parentElement.replaceWith(...folded.map(row)))));
    }
  }
  return found;
}

const depth = (nodes, position) => (nodes[position].parent === undefined ? 0 : 1 + depth(nodes, nodes[position].parent));
