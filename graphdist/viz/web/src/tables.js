// Tables below the drawing. A long one shows its first rows, and a button shows all. A line in it leads to its nodes.
import { element, link } from "./elements.js";
import { count, place } from "./program.js";

const FIRST = 20;

// `head` has the name and the kind of each column, `rows` the cells of each row, `kinds` may have the kind of each row.
export function table(title, head, rows, kinds = []) {
  const row = (cells, number) => element("tr", { class: kinds[number] }, cells.map((cell, column) =>
    element("td", { class: head ? head[column][1] : column === 1 ? "figure" : "" }, cell)));
  const body = element("tbody", {}, rows.slice(0, FIRST).map(row));
  body.growAll = () => { // for print, too
    body.append(...rows.slice(body.rows.length).map((cells, number) => row(cells, number + FIRST)));
    more?.remove();
  };
  const more = rows.length > FIRST ? link(`Show all ${count(rows.length)}`, title, body.growAll) : null;
  return element("div", { class: "part", tabindex: 0, role: "group", "aria-label": title }, element("table", {}, element("caption", {}, title),
    head && element("thead", {}, element("tr", {}, head.map(([name, kind]) => element("th", { scope: "col", class: kind }, name)))), body), more);
}

export function lineLink(app, line) {
  if (!line) return "without a line";
  const made = link(line, `The nodes of ${line}`, () => app.selectLine(line));
  made.dataset.line = line;
  return made;
}

// The line that is chosen, or that of the node that is.
export function lineOf({ graph, selected, userLine }) {
  const source = graph.nodes[selected]?.source;
  return source ? place(source[0]) : userLine;
}

// Marks the rows of the line that is chosen.
export function markRows(panel, app) {
  const line = lineOf(app);
  for (const row of panel.querySelectorAll("tbody tr")) row.classList.toggle("chosen", !!line && row.querySelector("[data-line]")?.dataset.line === line);
}
