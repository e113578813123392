// The panel of what is selected: all that is known of a node or of a group, with neighbours as links.
import { element, link } from "./elements.js";
import { differences } from "./picture.js";
import { bytesText, count, flopsText, members, moved, nodesOfLine, place, plural, spent, timeText } from "./program.js";

const LINKS = 40;

export function panel(app, position) {
  const { graph } = app;
  const node = graph.nodes[position];
  return section(
    element("h2", {}, element("span", { class: "op" }, node.op), " ", element("span", { class: "id" }, node.id)),
    element("div", { class: "actions" },
      element("button", { type: "button", onclick: () => app.copyText(node.text, "the line") }, "Copy line"),
      element("button", { type: "button", onclick: () => app.copyText(app.link(), "the link") }, "Copy link"),
      element("button", { type: "button", onclick: () => app.select(position, { reveal: true }) }, "Show")),
    facts(app, node),
    neighbours(app, "Operands", node.inputs, node.operands.filter((operand) => typeof operand === "string")),
    neighbours(app, "Users", node.users, []),
    source(app, node),
    element("h3", {}, "In the text"),
    element("pre", { class: "line", tabindex: 0 }, node.text));
}

function facts(app, node) {
  return list([
    ["Collective", node.collective && `${node.collective.reducer} of ${bytesText(node.collective.bytes)} over ${members(node.collective)}`.trim()],
    ["Moved", node.collective && node.times > 1 ? `${bytesText(moved(node))} from each replica per step` : undefined],
    ["Time", spent(node) ? `${timeText(spent(node))} by itself, by the peaks of ${app.program.topology}` : undefined],
    ["Made by", node.origin ? `pass ${node.origin}` : node.source ? "the program" : undefined],
    ["Type", (node.types ?? []).join(", ") || "no result"],
    ["Layout", node.distribution],
    ["Over cores", node.cores],
    ["Placement", placement(app.program, app.graph, node)],
    ["Bytes", node.bytes ? `${bytesText(node.bytes)} per replica` : undefined],
    ["FLOPs", node.flops ? `${flopsText(node.flops)} per replica` : undefined],
    ["Trips", node.trips ? count(node.trips) : undefined],
    ["Runs", node.times > 1 ? `${count(node.times)} per step` : undefined],
    ["Variable", node.variable],
    ["Scope", node.scope],
  ]);
}

const section = (...content) => element("section", { id: "panel", "aria-label": "Selected node" }, content);
const list = (rows) => element("dl", {}, rows.filter(([, value]) => value).map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));

// A group: what it holds and, of a stack, in what its members differ.
export function groupPanel(app, group) {
  const { graph } = app;
  const rows = [["Nodes", count(group.size)], ["Collectives", group.collectives && count(group.collectives)], ["Moved", group.moved && `${bytesText(group.moved)} from each replica per step`]];
  const stack = group.members && differences(group, graph);
  return section(
    element("h2", {}, group.name),
    list(rows),
    stack ? [
      element("h3", {}, stack.others.length ? `${count(stack.alike)} are alike, ${count(stack.others.length)} differ${stack.others.length === 1 ? "s" : ""}` : `All ${count(stack.alike)} are alike`),
      element("ul", { class: "links differences" }, stack.others.slice(0, LINKS).map(({ member, differs }) =>
        element("li", {}, element("b", {}, member.name), element("span", {}, differs.slice(0, 6).join(", "), differs.length > 6 ? ` and ${differs.length - 6} more` : "")))),
    ] : null);
}

// A line of the user's: its predicted time, and its nodes.
export function linePanel(app, line) {
  const { report, files } = app.program;
  const nodes = nodesOfLine(app.graph, line);
  const frame = nodes.flatMap((node) => node.source).find((one) => place(one) === line);
  const times = (report?.lines ?? []).filter(([at]) => at === line).map(([, phase, seconds]) => [phase, timeText(seconds)]);
  return section(
    element("h2", {}, frame ? link(line, frame[0], () => app.showSource(frame[0], frame[1])) : line),
    frame && files[frame[0]] ? element("pre", { class: "code", tabindex: 0, "aria-label": "The line" }, (files[frame[0]][frame[1] - 1] ?? "").trim()) : null,
    times.length ? [element("h3", {}, "Predicted to compute, per step"), list(times)] : null,
    element("h3", {}, `Nodes (${count(nodes.length)})`),
    nodes.length ? null : element("p", { class: "hint" }, "This graph has no node of the line."),
    element("ul", { class: "links" }, nodes.slice(0, LINKS).map((node) =>
      element("li", {}, link(node.id, node.text, () => app.select(node.position, { reveal: true })), element("span", { class: "of" }, node.op)))));
}

// A node that was selected, and that this pass does not have.
export function lostPanel(app, { lost, position, step }) {
  const gone = app.program.graphs[app.program.passes[step].graph].nodes[position];
  const by = app.program.passes[lost].name;
  return section(
    element("h2", {}, element("span", { class: "op" }, gone.op), " ", element("span", { class: "id" }, gone.id)),
    element("p", { class: "lost" }, step < lost ? `${by} removed this node.` : `${by} added this node: it is not here yet.`),
    step < lost ? successors(app, gone, lost) : null,
    element("p", {}, link(`Show it ${step < lost ? "before" : "after"} ${by}`, gone.text, () => app.goTo(step, position))),
    element("h3", {}, "In the text"),
    element("pre", { class: "line", tabindex: 0 }, gone.text));
}

// The nodes that a pass added for the same line: what it made of the removed one is among them, its own kind first.
function successors(app, gone, lost) {
  const step = app.program.passes[lost];
  const { nodes } = app.program.graphs[step.graph];
  const line = gone.source && place(gone.source[0]);
  const added = (step.diff?.added ?? []).map((position) => nodes[position]).filter((node) => node.source && place(node.source[0]) === line);
  if (!line || !added.length) return null;
  added.sort((a, b) => (b.op === gone.op) - (a.op === gone.op));
  return [element("h3", {}, `Added for ${line} by ${step.name}`),
    element("ul", { class: "links successors" }, added.slice(0, LINKS).map((node) =>
      element("li", {}, link(node.id, node.text, () => app.goTo(lost, node.position)), element("span", { class: "of" }, node.op))))];
}

export function nothingPanel() {
  return section(
    element("h2", {}, "Nothing selected"),
    element("p", { class: "hint" }, "Press a group to open it, a node to see what is known of it. "),
    element("dl", { class: "keys" }, [["/", "search"], ["[ ]", "previous, next pass"], ["n p", "walk through the boxes"], ["Enter", "open a group, select a node"], ["+ - 0", "zoom in, out, fit"], ["o", "open all groups"], ["c", "close all groups"], ["k", "compact, or boxes stay in place"], ["b", "before and after side by side"], ["y", "copy a link to this"]]
      .map(([key, what]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, what)])),
    element("h3", {}, "Colours"),
    element("ul", { class: "legend" }, [["collective", "collective"], ["added", "added by the pass"], ["removed", "removed by it"], ["rewired", "rewired: other operands"], ["changed", "changed: other parameters or type, or several of these"]]
      .map(([kind, what]) => element("li", { class: kind }, what))));
}

function placement(program, graph, node) {
  if (!node.types) return undefined;
  const all = `each of ${plural(program.replicas, "replica")}`;
  if (graph.stage === "logical" && !node.distribution) return undefined;
  return { mirrored: `a copy on ${all}`, per_replica: `one value on ${all}` }[node.distribution]
    ?? (node.distribution?.startsWith("sharded") ? `a slice on ${all}` : undefined);
}

function neighbours(app, title, positions, literals) {
  if (!positions.length && !literals.length) return null;
  const shown = positions.slice(0, LINKS).map((position) => {
    const node = app.graph.nodes[position];
    return element("li", {}, link(node.id, node.text, () => app.select(position, { reveal: true })), element("span", { class: "of" }, node.op));
  });
  const more = positions.length > LINKS ? [element("li", { class: "hint" }, `and ${positions.length - LINKS} more`)] : [];
  return [element("h3", {}, `${title} (${positions.length + literals.length})`),
    element("ul", { class: "links" }, shown, literals.map((literal) => element("li", {}, element("code", {}, literal))), more)];
}

function source(app, node) {
  if (!node.source) return null;
  const [file, line, name] = node.source[0];
  const text = app.program.files[file] ?? [];
  const from = Math.max(0, line - 4);
  const around = text.slice(from, line + 3);
  const indent = Math.min(...around.filter((row) => row.trim()).map((row) => row.search(/\S/)));
  const lines = around.map((row, number) =>
    element("div", { class: from + number + 1 === line ? "marked" : "" }, element("span", { class: "number" }, String(from + number + 1)), row.slice(indent) || " "));
  return [element("h3", {}, "Source"),
    link(`${place(node.source[0])}${name ? `, in ${name}` : ""}`, file, () => app.showSource(file, line)),
    lines.length ? element("pre", { class: "code", tabindex: 0, "aria-label": "Lines of the source" }, lines) : element("p", { class: "hint" }, "The file is not at hand."),
    node.source.length > 1 ? element("ul", { class: "links frames" }, node.source.slice(1).map((frame) =>
      element("li", {}, "from ", link(`${place(frame)}${frame[2] ? `, in ${frame[2]}` : ""}`, frame[0], () => app.showSource(frame[0], frame[1]))))) : null];
}
