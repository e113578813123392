// The panel of the selected node: all that is known of it, with its neighbours as links.
import { element, link } from "./elements.js";
import { bytesText, count, place } from "./program.js";

const LINKS = 40;

export function panel(app, position) {
  const { graph } = app;
  const node = graph.nodes[position];
  const rows = [
    ["Type", (node.types ?? []).join(", ") || "no result"],
    ["Distribution", node.distribution],
    ["Placement", placement(app.program, graph, node)],
    ["Bytes", node.bytes ? `${bytesText(node.bytes)} a replica` : undefined],
    ["FLOPs", node.flops ? `${count(node.flops)} a replica` : undefined],
    ["Variable", node.variable],
    ["Collective", node.collective && `${node.collective.reducer} of ${bytesText(node.collective.bytes)} over ${node.collective.group_size} replicas`.trim()],
    ["Made by", node.origin ? `pass ${node.origin}` : node.source ? "the program" : undefined],
    ["Scope", node.scope],
  ].filter(([, value]) => value);
  return element("section", { id: "panel", "aria-label": "Selected node" },
    element("h2", {}, element("span", { class: "op" }, node.op), " ", element("span", { class: "id" }, node.id)),
    element("dl", {}, rows.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])),
    neighbours(app, "Operands", node.inputs, node.operands.filter((one) => typeof one === "string")),
    neighbours(app, "Users", node.users, []),
    source(app, node),
    element("h3", {}, "In the text"),
    element("pre", { class: "line" }, node.text));
}

export function groupless() {
  return element("section", { id: "panel", "aria-label": "Selected node" },
    element("h2", {}, "Nothing selected"),
    element("p", { class: "hint" }, "Press a group to open it, a node to see what is known of it. "),
    element("dl", { class: "keys" }, [["/", "search"], ["[ ]", "previous, next pass"], ["n p", "walk through the boxes"], ["Enter", "open a group, select a node"], ["+ - 0", "zoom in, out, fit"], ["c", "close all groups"]]
      .map(([key, what]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, what)])),
    element("h3", {}, "Colours"),
    element("ul", { class: "legend" }, [["collective", "collective"], ["added", "added by the pass"], ["removed", "removed by it (in the graph before)"], ["rewired", "rewired: other operands"], ["changed", "changed: other parameters or type, or several of these"]]
      .map(([kind, what]) => element("li", { class: kind }, what))));
}

function placement(program, graph, node) {
  if (!node.types) return undefined;
  const all = `each of ${program.replicas} replicas`;
  if (graph.stage === "logical" && !node.distribution) return undefined;
  return { mirrored: `a copy on ${all}`, per_replica: `one value on ${all}` }[node.distribution]
    ?? (node.distribution?.startsWith("sharded") ? `a slice on ${all}` : undefined);
}

function neighbours(app, title, positions, literals) {
  if (!positions.length && !literals.length) return null;
  const shown = positions.slice(0, LINKS).map((one) => {
    const node = app.graph.nodes[one];
    return element("li", {}, link(node.id, node.text, () => app.select(one, { reveal: true })), element("span", { class: "of" }, node.op));
  });
  const more = positions.length > LINKS ? [element("li", { class: "hint" }, `and ${positions.length - LINKS} more`)] : [];
  return [element("h3", {}, `${title} (${positions.length + literals.length})`),
    element("ul", { class: "links" }, shown, literals.map((one) => element("li", {}, element("code", {}, one))), more)];
}

function source(app, node) {
  if (!node.source) return null;
  const [file, line, name] = node.source[0];
  const text = app.program.files[file] ?? [];
  const from = Math.max(0, line - 4);
  const around = text.slice(from, line + 3);
  const indent = Math.min(...around.filter((one) => one.trim()).map((one) => one.search(/\S/)));
  const lines = around.map((one, number) =>
    element("div", { class: from + number + 1 === line ? "marked" : "" }, element("span", { class: "number" }, String(from + number + 1)), one.slice(indent) || " "));
  return [element("h3", {}, "Source"),
    link(`${place(node.source[0])}${name ? `, in ${name}` : ""}`, file, () => app.showSource(file, line)),
    lines.length ? element("pre", { class: "code" }, lines) : element("p", { class: "hint" }, "The file is not at hand."),
    node.source.length > 1 ? element("ul", { class: "links frames" }, node.source.slice(1).map((one) =>
      element("li", {}, "from ", link(`${place(one)}${one[2] ? `, in ${one[2]}` : ""}`, one[0], () => app.showSource(one[0], one[1]))))) : null];
}
