// The picture of a program: one tree of groups for the graphs of all passes, so that what a pass keeps stays where it
// is. A slot is the place of one node, which may be there after some passes and not after others. A group knows its own
// slots, and what leads from one thing in it to another.
import { moved, place, plural } from "./program.js";

const CROWD = 60;
const FEW = 3; // groups of one shape that are drawn as one
const FEEDS = 12; // boxes that one slot may lead to before it is set aside

export function pictureOf(program) {
  const slots = program.identities.map((group, identity) => ({ key: `@${identity}`, identity, path: program.groups[group], nodes: [] }));
  for (const graph of program.graphs) for (const node of graph.nodes) slots[node.identity].nodes[graph.number] = node;
  for (const slot of slots) slot.any = slot.nodes.find((node) => node);
  const root = newGroup("", [], undefined);
  for (const slot of slots) {
    let group = root;
    for (const name of slot.path) {
      const key = `${group.key}/${JSON.stringify(name)}`;
      if (!group.children.has(key)) group.children.set(key, newGroup(key, [name], group, slot.identity));
      group = group.children.get(key);
    }
    group.slots.push(slot);
  }
  simplify(root);
  fold(root);
  thin(root);
  root.depth = 0;
  settle(root);
  connect(program, slots);
  setAside(root);
  return { root, slots, program };
}

const newGroup = (key, names, parent, first = 0) => ({ key, keys: [key], names, parent, first, children: new Map(), slots: [], edges: [] });

// A group that is opened shows at least two things. One that holds nothing but another is one with it and keeps the keys
// of both; one of a single slot is that slot.
function simplify(group) {
  const children = new Map();
  for (let child of group.children.values()) {
    while (child.children.size === 1 && !child.slots.length) {
      const [only] = child.children.values();
      child = Object.assign(only, { names: [...child.names, ...only.names], keys: [...child.keys, ...only.keys] });
    }
    simplify(child);
    if (child.children.size || child.slots.length > 1) children.set(child.key, child);
    else group.slots.push(...child.slots);
  }
  group.children = children;
}

// Groups whose names differ in a number alone, such as the layers of a model, are drawn as one until that is opened.
function fold(group) {
  for (const child of group.children.values()) fold(child);
  const stems = new Map();
  for (const child of group.children.values()) {
    const stem = child.names.map((name) => (typeof name === "string" ? name.replace(/\d+/, "#") : name)).join("/");
    if (!stem.includes("#") || typeof child.names[0] !== "string") continue;
    if (!stems.has(stem)) stems.set(stem, []);
    stems.get(stem).push(child);
  }
  for (const [stem, members] of stems) {
    if (members.length < FEW || /^# to |:#$/.test(stem)) continue;
    if (!group.slots.length && members.length === group.children.size) {
      Object.assign(group, { members, stem }); // the group is nothing but the stack
      return;
    }
    const stack = filled(newGroup(`${group.key}/*${stem}`, [], group, members[0].first), members);
    Object.assign(stack, { members, stem });
    for (const member of members) group.children.delete(member.key);
    group.children.set(stack.key, stack);
  }
}

// A group of very many things shows them in parts, in the order of the program.
function thin(group) {
  for (const child of group.children.values()) thin(child);
  let things = [...group.children.values(), ...group.slots];
  if (things.length <= 2 * CROWD) return;
  const start = (thing) => thing.first ?? thing.identity;
  things.sort((a, b) => start(a) - start(b));
  for (let width = CROWD; things.length > 2 * CROWD; width *= CROWD) {
    const parts = [];
    for (let from = 0; from < things.length; from += CROWD) {
      const name = `part ${from / CROWD + 1} of ${Math.ceil(things.length / CROWD)}`;
      parts.push(filled(newGroup(`${group.key}/${width} ${from}`, [name], group, start(things[from])), things.slice(from, from + CROWD)));
    }
    things = parts;
  }
  filled(group, things);
}

function filled(group, things) {
  group.children = new Map(things.filter((thing) => thing.children).map((thing) => [thing.key, thing]));
  group.slots = things.filter((thing) => !thing.children);
  return group;
}

function settle(group) {
  group.room = group.slots.length; // the most nodes it may have
  group.communicates = group.slots.some((slot) => slot.nodes.some((node) => node?.collective));
  for (const child of group.children.values()) {
    child.parent = group;
    child.depth = group.depth + 1;
    settle(child);
    group.room += child.room;
    group.communicates ||= child.communicates;
  }
  for (const slot of group.slots) slot.home = group;
}

// Enters every edge of every graph in the innermost group that both of its ends are in. `in` has, by the number of a
// graph, how many values go that way there.
function connect({ graphs }, slots) {
  const known = new Map(); // the edges by the slots at their ends
  const byEnds = new Map(); // by group, the edges by the boxes at their ends
  for (const graph of graphs) {
    for (const node of graph.nodes) {
      for (const producer of node.inputs) {
        const other = graph.nodes[producer];
        const ends = other.identity * slots.length + node.identity;
        if (!known.has(ends)) known.set(ends, edgeBetween(slots[other.identity], slots[node.identity], byEnds));
        const edge = known.get(ends);
        edge.in[graph.number] = (edge.in[graph.number] ?? 0) + 1;
        edge.collective ||= !!node.collective || !!other.collective;
      }
    }
  }
}

function edgeBetween(from, to, byEnds) {
  let [one, two] = [from.home, to.home];
  let [source, target] = [from.key, to.key];
  while (one !== two) {
    if (one.depth >= two.depth) [source, one] = [one.key, one.parent];
    else [target, two] = [two.key, two.parent];
  }
  if (!byEnds.has(one)) byEnds.set(one, new Map());
  const edges = byEnds.get(one);
  const key = `${source} ${target}`;
  if (!edges.has(key)) {
    const edge = { source, target, in: [], collective: false, given: isGiven(from.any) };
    edges.set(key, edge);
    one.edges.push(edge);
  }
  return edges.get(key);
}

// What a program is given leads everywhere in it: its edges are drawn faintly, or they would hide the others.
const isGiven = (node) => node.op === "variable" || node.op === "input";

// A slot that leads to most boxes around it would draw a fan over all of them: its edges are left out until it is chosen.
function setAside(group) {
  const targets = new Map();
  for (const edge of group.edges) targets.set(edge.source, (targets.get(edge.source) ?? 0) + 1);
  const most = Math.max(FEEDS, (group.slots.length + group.children.size) / 3);
  const aside = new Set(group.slots.filter((slot) => targets.get(slot.key) > most).map((slot) => slot.key));
  for (const edge of group.edges) edge.aside = aside.has(edge.source);
  for (const slot of group.slots) slot.feeds = aside.has(slot.key) ? targets.get(slot.key) : 0;
  for (const child of group.children.values()) setAside(child);
}

// Names a group as it is in a graph, and counts what it holds there: nodes, collectives and the bytes these move.
export function measure(group, graph, program) {
  group.name = titleOf(group, graph, program);
  group.size = group.collectives = group.moved = 0;
  for (const child of group.children.values()) {
    measure(child, graph, program);
    for (const figure of ["size", "collectives", "moved"]) group[figure] += child[figure];
  }
  for (const slot of group.slots) {
    const node = slot.nodes[graph.number];
    if (!node) continue;
    group.size++;
    group.collectives += node.collective ? 1 : 0;
    group.moved += moved(node);
  }
}

export const trips = (node) => (node.trips ? ` x ${node.trips.toLocaleString("en")}` : "");

// The name of a group: a scope, a function, a loop with its trips, the code of a line, or a stack of groups.
export function titleOf(group, graph, program) {
  const names = group.names.map((name) => {
    if (typeof name === "string") return name;
    const node = graph.ofIdentity.get(name) ?? program.graphs.find((other) => other.ofIdentity.has(name)).ofIdentity.get(name);
    return `${node.op} ${node.id}${trips(node)}`;
  });
  if (group.members) names.push(`${group.members.length} x ${group.stem.replaceAll("#", "").replace(/[ _.:]+$/, "")}`);
  return names.join(" / ");
}

// The code of the line that a group is made of, if it is made of one.
export function codeOf(group, program) {
  if (!/:\d+$/.test(group.names.at(-1) ?? "")) return "";
  const frame = framesIn(group).find((one) => place(one) === group.names.at(-1));
  return ((frame && program.files?.[frame[0]]?.[frame[1] - 1]) ?? "").trim();
}

// The innermost lines of the slots of a group; of its parts, where it has none of its own.
function framesIn(group) {
  const found = group.slots.flatMap((slot) => slot.any.source?.slice(0, 1) ?? []);
  return found.length ? found : [...group.children.values()].flatMap(framesIn);
}

const known = new WeakMap(); // by group, by the number of a graph: every step asks for the same again

// Which members of a stack are alike in a graph: the commonest shape, and what the others have more or less of.
export function differences(group, graph) {
  if (!known.has(group)) known.set(group, new Map());
  const found = known.get(group);
  if (!found.has(graph.number)) found.set(graph.number, differencesOf(group, graph));
  return found.get(graph.number);
}

function differencesOf(group, graph) {
  const contents = new Map(group.members.map((member) => [member, contentsOf(member, graph)]));
  const present = group.members.filter((member) => contents.get(member).size);
  const shape = (member) => [...contents.get(member)].sort().map(([what, number]) => `${what}*${number}`).join();
  const shapes = Map.groupBy ? Map.groupBy(present, shape) : present.reduce((found, member) => found.set(shape(member), [...(found.get(shape(member)) ?? []), member]), new Map());
  const common = [...shapes.values()].sort((a, b) => b.length - a.length)[0] ?? [];
  const usual = common.length ? contents.get(common[0]) : new Map();
  const others = present.filter((member) => !common.includes(member)).map((member) => {
    const own = contents.get(member);
    const changed = [...new Set([...usual.keys(), ...own.keys()])].map((what) => [what, (own.get(what) ?? 0) - (usual.get(what) ?? 0)]).filter(([, by]) => by);
    return { member, differs: changed.map(([what, by]) => `${by > 0 ? "+" : "−"}${Math.abs(by)} ${what}`) };
  });
  return { alike: common.length, others };
}

function contentsOf(group, graph, found = new Map()) {
  for (const child of group.children.values()) contentsOf(child, graph, found);
  for (const slot of group.slots) {
    const node = slot.nodes[graph.number];
    if (!node) continue;
    const what = `${node.op.replace(/^jax\./, "")} ${(node.types ?? []).map((type) => type.split(" ")[0]).join(", ")}`.trim();
    found.set(what, (found.get(what) ?? 0) + 1);
  }
  return found;
}

// What a group holds in a graph; without one, a text that is as long as any of these.
export function summary(group, graph) {
  if (!graph) return `${plural(group.room, "node")}${group.communicates ? ", 88 collectives" : ""}${group.members ? ", 8 differ" : ""}`;
  const parts = [plural(group.size, "node")];
  if (group.collectives) parts.push(plural(group.collectives, "collective"));
  if (group.members) {
    const { others } = differences(group, graph);
    parts.push(others.length ? `${others.length} differ${others.length === 1 ? "s" : ""}` : "all alike");
  }
  return parts.join(", ");
}
