// The program in the page: read, and indexed so that the views need not search.

export async function readProgram() {
  const text = document.getElementById("program").textContent;
  const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const program = JSON.parse(await new Response(stream).text());
  for (const facts of program.facts) if ("source" in facts) facts.source = program.sources[facts.source];
  for (const graph of program.graphs) index(graph, program);
  return program;
}

function index(graph, { facts, groups }) {
  graph.byId = new Map();
  graph.nodes.forEach((node, position) => {
    Object.assign(node, facts[node.facts], { position, users: [] });
    node.group = groups[node.group];
    node.results ??= [node.id];
    node.operands ??= [];
    node.inputs = [...new Set(node.operands.filter((one) => typeof one !== "string").map((one) => (Array.isArray(one) ? one[0] : one)))];
    node.text ??= line(graph, node);
    graph.byId.set(node.id, position);
    for (const one of node.inputs) graph.nodes[one].users.push(position);
  });
  graph.root = tree(graph);
}

// The line of a node in the text of its graph.
function line(graph, { results, op, operands, parameters, types }) {
  const name = (one) => (typeof one === "string" ? one : Array.isArray(one) ? graph.nodes[one[0]].results[one[1]] : graph.nodes[one].results[0]);
  const call = `${op}(${operands.map(name).join(", ")})${parameters ? ` {${parameters}}` : ""}`;
  return results.length ? `${results.join(", ")} = ${call} : ${types.join(", ")}` : call;
}

// The groups as a tree. A group knows its own nodes, what leads from one thing in it to another, and of the nodes
// anywhere below it the number alone.
function tree(graph) {
  const root = newGroup("", "", undefined);
  for (const node of graph.nodes) {
    let group = root;
    for (const name of node.group) {
      if (!group.children.has(name)) group.children.set(name, newGroup(`${group.key}/${JSON.stringify(name)}`, name, group, node.position));
      group = group.children.get(name);
    }
    group.nodes.push(node);
  }
  simplify(root);
  thin(root);
  settle(root);
  connect(graph);
  return root;
}

const newGroup = (key, name, parent, first = 0) => ({ key, keys: [key], name, parent, first, children: new Map(), nodes: [], edges: [], size: 0, collectives: 0, bytes: 0, flops: 0 });

// A group that is opened shows at least two things. One that holds nothing but another is one with it, and keeps the
// keys of both, since it may hold more in the graph of another pass; one of a single node is that node.
function simplify(group) {
  const children = new Map();
  for (let child of group.children.values()) {
    while (child.children.size === 1 && !child.nodes.length) {
      const [only] = child.children.values();
      child = Object.assign(only, { name: `${child.name} / ${only.name}`, keys: [...child.keys, ...only.keys] });
    }
    simplify(child);
    if (child.children.size || child.nodes.length > 1) children.set(child.key, child);
    else group.nodes.push(...child.nodes);
  }
  group.children = children;
}

const CROWD = 60;

// A group of very many things shows them in parts, in the order of the program.
function thin(group) {
  for (const child of group.children.values()) thin(child);
  let things = [...group.children.values(), ...group.nodes];
  if (things.length <= 2 * CROWD) return;
  const start = (one) => one.first ?? one.position;
  things.sort((a, b) => start(a) - start(b));
  for (let width = CROWD; things.length > 2 * CROWD; width *= CROWD) {
    const parts = [];
    for (let from = 0; from < things.length; from += CROWD) {
      const name = `part ${from / CROWD + 1} of ${Math.ceil(things.length / CROWD)}`;
      parts.push(filled(newGroup(`${group.key}/${width} ${from}`, name, group, start(things[from])), things.slice(from, from + CROWD)));
    }
    things = parts;
  }
  filled(group, things);
}

function filled(group, things) {
  group.children = new Map(things.filter((one) => one.key !== undefined).map((one) => [one.key, one]));
  group.nodes = things.filter((one) => one.key === undefined);
  return group;
}

function settle(group) {
  const add = (name, one) => { group[name] += one[name] ?? 0; };
  for (const child of group.children.values()) {
    child.parent = group;
    child.depth = (group.depth ?? 0) + 1;
    settle(child);
    for (const name of ["size", "collectives", "bytes", "flops"]) add(name, child);
  }
  for (const node of group.nodes) {
    node.home = group;
    group.size++;
    group.collectives += node.collective ? 1 : 0;
    add("bytes", node);
    add("flops", node);
  }
}

// Enters every edge in the innermost group that both of its ends are in.
function connect(graph) {
  const found = new Map();
  for (const node of graph.nodes) {
    for (const from of node.inputs) {
      const other = graph.nodes[from];
      let [one, two] = [other.home, node.home];
      let [source, target] = [`#${from}`, `#${node.position}`];
      while (one !== two) {
        if ((one.depth ?? 0) >= (two.depth ?? 0)) [source, one] = [one.key, one.parent];
        else [target, two] = [two.key, two.parent];
      }
      if (!found.has(one)) found.set(one, new Map());
      const edges = found.get(one);
      const key = `${source} ${target}`;
      const edge = edges.get(key);
      if (edge) edge.count++;
      else edges.set(key, { source, target, count: 1, collective: !!node.collective || !!other.collective, given: isGiven(other) });
    }
  }
  for (const [group, edges] of found) group.edges = [...edges.values()];
}

// What a program is given leads everywhere in it: its edges are drawn faintly, or they would hide the others.
const isGiven = (node) => node.op === "variable" || node.op === "input";

// What a step did to the nodes of its graph (or, `before`, of the graph it was given).
export function marks(step, before) {
  const found = new Map();
  if (!step.diff) return found;
  const side = before ? 0 : 1;
  for (const one of before ? step.diff.removed : step.diff.added) found.set(one, before ? "removed" : "added");
  for (const pair of step.diff.rewired) found.set(pair[side], "rewired");
  for (const pair of step.diff.changed) found.set(pair[side], "changed");
  return found;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
export function bytesText(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < UNITS.length - 1) [bytes, unit] = [bytes / 1024, unit + 1];
  return `${unit ? bytes.toFixed(1) : bytes} ${UNITS[unit]}`;
}
export const count = (number) => number.toLocaleString("en");
export const place = (frame) => `${frame[0].split(/[\\/]/).pop()}:${frame[1]}`;
