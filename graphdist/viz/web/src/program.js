// The program in the page: read, and indexed so that the views need not search.

export async function readProgram() {
  const text = document.getElementById("program").textContent;
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const program = JSON.parse(await new Response(stream).text());
  for (const facts of program.facts) if ("source" in facts) facts.source = program.sources[facts.source];
  program.graphs.forEach((graph, number) => index(graph, number, program));
  for (const step of program.passes) pair(step);
  return program;
}

function index(graph, number, { facts }) {
  graph.number = number;
  graph.byId = new Map(); // each value's name, and the node's own, to the position of its node
  graph.ofIdentity = new Map();
  graph.operations = graph.nodes.filter(({ text }) => text === undefined).length; // inputs and `return` have a text of their own
  graph.nodes.forEach((node, position) => {
    Object.assign(node, facts[node.facts], { position, users: [] });
    node.results ??= [node.id];
    node.operands ??= [];
    node.times ??= 1;
    node.inputs = [...new Set(node.operands.filter((operand) => typeof operand !== "string").map((operand) => (Array.isArray(operand) ? operand[0] : operand)))];
    node.text ??= line(graph, node);
    for (const name of [node.id, ...node.results]) graph.byId.set(name, position);
    graph.ofIdentity.set(node.identity, node);
    for (const producer of node.inputs) graph.nodes[producer].users.push(position);
  });
}

// The line of a node in the text of its graph.
function line(graph, { results, op, operands, parameters, types }) {
  const name = (operand) => (typeof operand === "string" ? operand : Array.isArray(operand) ? graph.nodes[operand[0]].results[operand[1]] : graph.nodes[operand].results[0]);
  const call = `${op}(${operands.map(name).join(", ")})${parameters ? ` {${parameters}}` : ""}`;
  return results.length ? `${results.join(", ")} = ${call} : ${types.join(", ")}` : call;
}

// Makes a pass able to say which node after it a node before it is, and the other way round.
function pair(step) {
  if (!step.pairs) return;
  [step.after, step.before] = [new Map(), new Map()];
  for (const [old, now, length] of step.pairs) {
    for (let i = 0; i < length; i++) {
      step.after.set(old + i, now + i);
      step.before.set(now + i, old + i);
    }
  }
}

// Follows a node from one pass to another. Returns its position there, or the pass at which it is lost: the pass that
// removed it on the way forward, the pass that added it on the way back.
export function follow({ passes }, from, position, to) {
  for (let at = from; at !== to; ) {
    const forward = at < to;
    const step = passes[forward ? at + 1 : at];
    const next = step.pairs ? (forward ? step.after : step.before).get(position) : position;
    if (next === undefined) return { lost: forward ? at + 1 : at, position, step: at };
    position = next;
    at += forward ? 1 : -1;
  }
  return { position };
}

// What a step did to the nodes of its graph (or, `before`, of the graph it was given).
export function marks(step, before) {
  const found = new Map();
  if (!step.diff) return found;
  const side = before ? 0 : 1;
  for (const position of before ? step.diff.removed : step.diff.added) found.set(position, before ? "removed" : "added");
  for (const pair of step.diff.rewired) found.set(pair[side], "rewired");
  for (const pair of step.diff.changed) found.set(pair[side], "changed");
  return found;
}

// The estimated seconds of all runs of a node in a step, 0 without a topology.
export const spent = (node) => (node.seconds ?? 0) * node.times;

// The nodes of a line of the user's: those that it makes itself or, without any, those that its calls lead to.
export function nodesOfLine(graph, line) {
  const own = graph.nodes.filter((node) => node.source && place(node.source[0]) === line);
  return own.length ? own : graph.nodes.filter((node) => node.source?.some((frame) => place(frame) === line));
}

// The bytes that each replica puts into a collective in a step, in all trips of the loops around it.
export const moved = (node) => (node.collective ? Math.round(node.collective.bytes * node.times) : 0);

// Between whom a collective is.
export const members = ({ group_size, is_over_cores }) => plural(group_size, is_over_cores ? "core" : "replica");

// Amounts are written as in a terminal, by graphdist.report.amounts: Python rounds a half to the even digit.
function fixed(number, digits) {
  const isHalf = (Math.abs(number) * 2 ** (digits + 1)) % 4 === 1;
  return (isHalf ? number - (Math.sign(number) * 0.1 ** digits) / 2 : number).toFixed(digits);
}
function scaled(number, base, units) {
  let unit = 0;
  while (Math.abs(number) >= base ** (unit + 1) && unit < units.length - 1) unit++;
  return `${fixed(number / base ** unit, unit ? 2 : 0)} ${units[unit]}`;
}
export const bytesText = (bytes) => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
export const flopsText = (flops) => scaled(flops, 1000, ["FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"]);
export function timeText(seconds) {
  const [unit, scale] = [["s", 1], ["ms", 1e-3]].find(([, scale]) => seconds >= scale) ?? ["us", 1e-6];
  return `${fixed(seconds / scale, 2)} ${unit}`;
}
export const shareText = (share) => `${fixed(100 * share, 1)}%`;
const figures = new Intl.NumberFormat("en"); // made once: toLocaleString makes one for each number
export const count = (number) => figures.format(number);
export const plural = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;
export const place = (frame) => `${frame[0].split(/[\\/]/).pop()}:${frame[1]}`;
