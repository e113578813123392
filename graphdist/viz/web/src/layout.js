// Which boxes are visible with these groups open, and where dagre puts them.
import dagre from "@dagrejs/dagre";

const LINE = 13;

// A box is a node or a closed group; frames are the open groups around them.
export function visible(graph, open) {
  const boxes = new Map();
  const frames = new Map();
  const boxOf = new Array(graph.nodes.length);
  const closed = new Map(); // group -> the box it is part of, or null if it is open all the way up
  const outer = (group) => {
    if (!group.parent) return null;
    let found = closed.get(group.key);
    if (found === undefined) {
      found = outer(group.parent);
      if (found === null && !open.has(group.key)) found = group.key;
      closed.set(group.key, found);
      if (found === null) frames.set(group.key, group);
      else if (found === group.key) boxes.set(group.key, { key: group.key, group, parent: group.parent.key });
    }
    return found;
  };
  for (const node of graph.nodes) {
    const key = outer(node.home) ?? `#${node.position}`;
    boxOf[node.position] = key;
    if (!boxes.has(key)) boxes.set(key, { key, node, parent: node.home.key });
  }
  const edges = new Map();
  for (const node of graph.nodes) {
    for (const from of node.inputs) {
      const [source, target] = [boxOf[from], boxOf[node.position]];
      if (source === target) continue;
      const key = `${source} ${target}`;
      const edge = edges.get(key);
      if (edge) edge.count++;
      else edges.set(key, { source, target, count: 1, collective: !!node.collective || !!graph.nodes[from].collective });
    }
  }
  return { boxes, frames, edges: [...edges.values()], boxOf };
}

export function layOut(scene) {
  const drawn = new dagre.graphlib.Graph({ compound: true });
  drawn.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 42, marginx: 16, marginy: 16, ranker: scene.boxes.size > 300 ? "longest-path" : "network-simplex" });
  drawn.setDefaultEdgeLabel(() => ({}));
  for (const key of scene.frames.keys()) drawn.setNode(key, {});
  for (const box of scene.boxes.values()) {
    box.lines = labels(box);
    const widest = Math.max(...box.lines.map((one, number) => one.length * (number ? 6.1 : 7.2)));
    drawn.setNode(box.key, { width: Math.min(260, Math.max(90, widest + 22)), height: 14 + box.lines.length * LINE });
  }
  for (const one of [...scene.boxes.values(), ...scene.frames.values()]) {
    const parent = one.group || one.node ? one.parent : one.parent.key;
    if (parent) drawn.setParent(one.key, parent);
  }
  for (const edge of scene.edges) drawn.setEdge(edge.source, edge.target);
  dagre.layout(drawn);
  for (const box of scene.boxes.values()) Object.assign(box, corner(drawn.node(box.key)));
  scene.outlines = [...scene.frames.values()].map((group) => ({
    key: group.key,
    group,
    depth: depth(group),
    ...corner(drawn.node(group.key)),
  }));
  scene.outlines.sort((a, b) => a.depth - b.depth);
  makeRoomForTitles(scene);
  for (const edge of scene.edges) edge.points = drawn.edge(edge.source, edge.target).points;
  const size = drawn.graph();
  scene.width = size.width || 1;
  scene.height = size.height || 1;
  return scene;
}

// dagre knows no titles: a frame grows upwards by a line for itself and for each level in it.
function makeRoomForTitles(scene) {
  const levels = new Map();
  for (const { group } of scene.outlines.toReversed()) {
    const own = (levels.get(group.key) ?? 0) + 1;
    levels.set(group.key, own);
    levels.set(group.parent.key, Math.max(levels.get(group.parent.key) ?? 0, own));
  }
  for (const one of scene.outlines) {
    const room = 12 * levels.get(one.key);
    one.y -= room;
    one.height += room;
  }
}

function depth(group) {
  let found = 0;
  while (group.parent) [group, found] = [group.parent, found + 1];
  return found;
}

const corner = ({ x, y, width, height }) => ({ x: x - width / 2, y: y - height / 2, width, height });

function labels({ group, node }) {
  if (group) return [group.name, `${group.size} node${group.size > 1 ? "s" : ""}${group.collectives ? `, ${group.collectives} collective${group.collectives > 1 ? "s" : ""}` : ""}`];
  const lines = [node.op === "variable" ? node.variable : node.op.replace(/^jax\./, "")];
  lines.push(node.op === "return" ? `${node.operands.length} results` : node.id);
  if (node.types) lines.push(node.types.length > 1 ? `${node.types.length} results` : node.types[0]);
  return lines;
}
