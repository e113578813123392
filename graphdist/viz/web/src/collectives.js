// The table of collectives: sorted by any column, its rows linked to the nodes. Bytes are those of all runs in a step.
import { element, link } from "./elements.js";
import { grow } from "./growing.js";
import { bytesText, count, members, moved, place, plural, spent, timeText } from "./program.js";
import { lineLink, table } from "./tables.js";

const COLUMNS = [
  ["#", (node) => node.position],
  ["Kind", (node) => node.op],
  ["Reducer", (node) => node.collective.reducer],
  ["Bytes", moved, bytesText],
  ["Times", (node) => node.times, count],
  ["Time", spent, timeText],
  ["Over", (node) => members(node.collective)],
  ["Made by", (node) => node.origin ?? "the program"],
  ["Node", (node) => node.id],
  ["Source", (node) => (node.source ? place(node.source[0]) : "unknown")],
];

const [BYTES, TIMES, TIME, NODE, SOURCE] = ["Bytes", "Times", "Time", "Node", "Source"].map((name) => COLUMNS.findIndex((column) => column[0] === name));
const FIGURES = [BYTES, TIMES, TIME];

// The costliest come first: by estimated time, or by bytes where no topology is known.
export function collectives(app, order = { column: app.program.topology ? TIME : BYTES, down: true }) {
  const columns = COLUMNS.map((_, column) => column).filter((column) => column !== TIME || app.program.topology);
  const nodes = app.graph.collectives.map((one) => app.graph.nodes[one]);
  if (!nodes.length) return app.program.servers ? requests(app.program.servers) : element("p", { class: "hint" }, "This graph has no collectives: the replicas need nothing of each other.");
  const key = COLUMNS[order.column][1];
  const sorted = nodes.map((node, number) => ({ node, number: number + 1 })).sort((a, b) => {
    const [one, other] = [key(a.node), key(b.node)];
    const sign = typeof one === "number" ? one - other : one.localeCompare(other);
    return (order.down ? -sign : sign) || a.number - b.number;
  });
  const sort = (column) => app.sortCollectives({ column, down: column === order.column ? !order.down : [BYTES, TIMES, TIME].includes(column) });
  const head = columns.map((column) =>
    element("th", { "data-column": column, "aria-sort": column === order.column ? (order.down ? "descending" : "ascending") : "none", scope: "col", class: FIGURES.includes(column) ? "figure" : "" },
      element("button", { type: "button", class: "sort", onclick: () => sort(column) }, COLUMNS[column][0], element("span", { "aria-hidden": "true" }, column === order.column ? (order.down ? " ▼" : " ▲") : ""))));
  const cell = (node, number, column) => {
    const value = COLUMNS[column][1](node);
    if (column === 0) return String(number);
    if (column === NODE) return link(node.id, node.text, () => app.select(node.position, { reveal: true }));
    if (column === SOURCE && node.source) return lineLink(app, value);
    return (COLUMNS[column][2] ?? String)(value);
  };
  const rows = sorted.map(({ node, number }) => () =>
    element("tr", { "data-position": node.position, class: node.position === app.selected ? "chosen" : "" },  columns.map((column) => element("td", { class: FIGURES.includes(column) ? "figure" : "" }, cell(node, number, column)))));
  const total = nodes.reduce((sum, node) => sum + moved(node), 0);
  return element("div", {},
    element("table", { id: "collectives" }, element("thead", {}, element("tr", {}, head)), grow(element("tbody", {}), rows)),
    element("p", { class: "hint" }, `${plural(nodes.length, "collective")}, ${bytesText(total)} sent by each replica per step`));
}

// What a worker reads from parameter servers and sends to them.
function requests(servers) {
  const total = servers.reduce((sum, { bytes }) => sum + bytes, 0);
  return table(`${plural(servers.length, "request")}, ${bytesText(total)} between a worker and the servers per step`,
    [["Kind", ""], ["Variables", ""], ["Bytes", "figure"], ["Server", ""], ["Source", ""]],
    servers.map(({ kind, variables, bytes, server, place: line }) => [kind, variables.join(", "), bytesText(bytes), String(server ?? "unknown"), line]));
}

// Marks the row of another node in a table that is there.
collectives.mark = (panel, { selected }) => {
  for (const row of panel.querySelectorAll("tbody tr")) row.classList.toggle("chosen", row.dataset.position === String(selected));
};
