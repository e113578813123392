// The program in the page: read, and indexed so that the views need not search.

export async function readProgram() {
  const text = document.getElementById("program").textContent;
  const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const program = JSON.parse(await new Response(stream).text());
  program.graphs.forEach(index);
  return program;
}

function index(graph) {
  graph.byId = new Map();
  graph.nodes.forEach((node, position) => {
    node.position = position;
    node.group ??= [];
    node.inputs ??= [];
    node.users = [];
    node.operands ??= [];
    graph.byId.set(node.id, position);
    for (const one of node.inputs) graph.nodes[one].users.push(position);
  });
  graph.root = tree(graph);
}

// The groups as a tree; a group knows the nodes anywhere below it by number, not by list.
function tree(graph) {
  const root = { key: "", name: "", children: new Map(), members: [], size: 0, collectives: 0 };
  for (const node of graph.nodes) {
    let group = root;
    root.size++;
    for (const name of node.group) {
      let child = group.children.get(name);
      if (!child) {
        const key = `${group.key}/${JSON.stringify(name)}`;
        child = { key, keys: [key], name, parent: group, children: new Map(), members: [], size: 0, collectives: 0, bytes: 0, flops: 0 };
        group.children.set(name, child);
      }
      child.size++;
      child.collectives += node.collective ? 1 : 0;
      child.bytes += node.bytes ?? 0;
      child.flops += node.flops ?? 0;
      group = child;
    }
    group.members.push(node.position);
  }
  simplify(root);
  settle(graph, root);
  return root;
}

// A group that is opened shows at least two things. One that holds nothing but another is one with it, and keeps the
// keys of both, since it may hold more in the graph of another pass; one of a single node is that node.
function simplify(group) {
  const children = new Map();
  for (let child of group.children.values()) {
    while (child.children.size === 1 && !child.members.length) {
      const [only] = child.children.values();
      child = Object.assign(only, { name: `${child.name} / ${only.name}`, keys: [...child.keys, ...only.keys], parent: group });
    }
    simplify(child);
    if (child.size > 1) children.set(child.key, child);
    else group.members.push(...child.members);
  }
  group.children = children;
}

function settle(graph, group) {
  for (const position of group.members) graph.nodes[position].home = group;
  for (const child of group.children.values()) settle(graph, child);
}

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
