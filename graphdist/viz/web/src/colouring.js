// Colours for boxes other than what a pass changed: by bytes, time, memory, distribution, cores or pass. Figures have four
// steps, by the share of the program's total (memory: of its peak); a group has the sum (the most) of its nodes.
import { bytesText, shareText, timeText } from "./program.js";

const SHARES = [0, 0.01, 0.05, 0.25]; // from which shares of a total the steps begin
const LEVELS = [0, 0.5, 0.75, 0.95]; // and of the peak
const KINDS = 8;

const figure = (name, value, { write, what, shares = SHARES, total, join = (a, b) => a + b }) => ({ name, value, write, what, shares, total, join });
const kind = (name, value) => ({ name, value });

const COLOURINGS = [
  { name: "change" },
  figure("bytes", (node) => (node.bytes ?? 0) * node.times, { write: bytesText, what: "of all bytes that nodes make" }),
  figure("time", (node) => (node.seconds ?? 0) * node.times, { write: timeText, what: "of the sum of all nodes' times" }),
  figure("memory", (node) => node.held ?? 0, { write: bytesText, what: "of the peak, while it runs", shares: LEVELS, total: (graph) => graph.memory.peak, join: Math.max }),
  kind("distribution", (node) => (node.distribution ? node.distribution.replace(/\(.*/, "") : undefined)),
  kind("cores", (node) => (node.cores?.includes(",") ? undefined : node.cores?.replace(/\(.*/, ""))),
  kind("pass", (node) => (node.types && node.op !== "input" && node.op !== "variable" ? node.origin ?? "the program" : undefined)),
];

// The names of the colourings that a program has.
export const colourings = (program) => COLOURINGS.map(({ name }) => name).filter((name) => (name !== "time" || program.topology) && (name !== "cores" || program.cores));

// Says which colour boxes have in a graph: `of(box)` is a name of the style, `legend` a text for each such name.
export function colouringOf(name, picture, graph) {
  const found = COLOURINGS.find((colouring) => colouring.name === name);
  if (!found?.value) return undefined;
  if (found.name === "memory") hold(graph);
  return found.write ? byFigure(found, picture, graph) : byKind(found, picture, graph);
}

function byFigure({ value, write, what, shares, total, join }, picture, graph) {
  const figures = new Map();
  const sum = (group) => {
    let all = 0;
    for (const child of group.children.values()) all = join(all, sum(child));
    for (const slot of group.slots) {
      const node = slot.nodes[graph.number];
      if (node) all = join(all, value(node));
    }
    figures.set(group, all);
    return all;
  };
  const all = sum(picture.root);
  const whole = total?.(graph) ?? all;
  const figureOf = ({ group, node, gone }) => (gone ? 0 : group ? figures.get(group) : value(node));
  const step = (amount) => (amount > 0 ? shares.findLastIndex((share) => amount >= share * whole) + 1 : 0);
  return {
    of: (box) => { const at = step(figureOf(box)); return at ? `heat-${at}` : undefined; },
    say: (box) => { const amount = figureOf(box); return amount ? `${write(amount)}, ${shareText(amount / whole)} ${what}` : ""; },
    legend: shares.map((share, number) => [`heat-${number + 1}`, share ? `from ${100 * share}%` : "less"]).reverse(),
    title: `${write(whole)}: ${what}`,
  };
}

function byKind({ value }, picture, graph) {
  const numbers = new Map();
  for (const node of graph.nodes) {
    const found = value(node);
    if (found !== undefined) numbers.set(found, (numbers.get(found) ?? 0) + 1);
  }
  const order = [...numbers].sort((a, b) => b[1] - a[1]).map(([found]) => found);
  const nameOf = new Map(order.map((found, number) => [found, `kind-${Math.min(number, KINDS - 1) + 1}`]));
  const kinds = new Map();
  const collect = (group) => {
    const found = new Set(group.slots.flatMap((slot) => { const node = slot.nodes[graph.number]; return node ? [value(node)] : []; }));
    for (const child of group.children.values()) for (const other of collect(child)) found.add(other);
    found.delete(undefined);
    kinds.set(group, found);
    return found;
  };
  collect(picture.root);
  const kindsOf = ({ group, node, gone }) => (gone ? [] : group ? [...kinds.get(group)] : [value(node)].filter((found) => found !== undefined));
  return {
    of: (box) => { const found = kindsOf(box); return found.length === 1 ? nameOf.get(found[0]) : undefined; },
    say: (box) => kindsOf(box).slice(0, KINDS).join(", "),
    legend: [...order.slice(0, KINDS - 1).map((found) => [nameOf.get(found), found]), ...(order.length >= KINDS ? [[`kind-${KINDS}`, order.length === KINDS ? order[KINDS - 1] : `${order.length - KINDS + 1} others`]] : [])],
    title: "a group of several has no colour",
  };
}

// Enters in each node what is held while it runs; a node of a body has what its loop has.
function hold(graph) {
  if (graph.hasHeld) return;
  graph.hasHeld = true;
  for (const [position, bytes] of graph.memory.steps) graph.nodes[position].held = bytes;
  for (const node of graph.nodes) if (node.parent !== undefined) node.held = graph.nodes[node.parent].held;
}
