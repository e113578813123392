// Which boxes are seen with these groups open, and where. dagre lays out each open group by itself, from the innermost
// out, as a graph of a few dozen boxes; in the group around it an open group is one box of the size it came to. So what
// opening a group costs does not grow with the program, and what is laid out stays so until a group in it is opened or
// closed. An edge is drawn in the innermost group that both its ends are in, between the boxes they are in there.
import dagre from "@dagrejs/dagre";

const LINE = 13;
const PAD = 12;
const TITLE = 26;

export function arrange(graph, open) {
  const scene = { boxes: new Map(), outlines: [], edges: [] };
  const laid = layOut(graph.root, open);
  place(scene, laid, 0, 0, 0);
  scene.width = laid.width;
  scene.height = laid.height;
  const outer = new Map(); // group -> the closed group it is seen in, or null if it is open all the way up
  const closed = (group) => {
    if (!group.parent) return null;
    if (!outer.has(group)) outer.set(group, closed(group.parent) ?? (open.has(group.key) ? null : group.key));
    return outer.get(group);
  };
  scene.boxOf = (position) => closed(graph.nodes[position].home) ?? `#${position}`;
  return scene;
}

// What is in a group: `size`, the boxes and frames with their corners, and the edges, all from the group's own corner.
function layOut(group, open) {
  const inner = new Map();
  for (const child of group.children.values()) if (open.has(child.key)) inner.set(child.key, layOut(child, open));
  const kept = group.laid;
  if (kept && kept.inner.size === inner.size && [...inner].every(([key, one]) => kept.inner.get(key) === one)) return kept;

  const boxes = [
    ...[...group.children.values()].map((child) => inner.has(child.key) ? { key: child.key, group: child, inner: inner.get(child.key) } : { key: child.key, group: child }),
    ...group.nodes.map((node) => ({ key: `#${node.position}`, node })),
  ];
  const drawn = new dagre.graphlib.Graph();
  drawn.setGraph({ rankdir: "TB", nodesep: 18, edgesep: 6, ranksep: 38, marginx: PAD, marginy: PAD, ranker: boxes.length > 150 ? "longest-path" : "network-simplex" });
  drawn.setDefaultEdgeLabel(() => ({}));
  for (const box of boxes) drawn.setNode(box.key, box.inner ? { width: box.inner.width, height: box.inner.height + TITLE - PAD } : size(box));
  for (const edge of group.edges) drawn.setEdge(edge.source, edge.target);
  dagre.layout(drawn);
  for (const box of boxes) {
    const { x, y, width, height } = drawn.node(box.key);
    Object.assign(box, { x: x - width / 2, y: y - height / 2, width, height });
  }
  const edges = group.edges.map((edge) => ({ ...edge, points: drawn.edge(edge.source, edge.target).points }));
  const whole = drawn.graph();
  return (group.laid = { inner, boxes, edges, width: Math.max(whole.width, 60) || 60, height: Math.max(whole.height, 30) || 30 });
}

function place(scene, laid, x, y, depth) {
  for (const edge of laid.edges) {
    const points = edge.points.map((one) => ({ x: one.x + x, y: one.y + y }));
    scene.edges.push({ ...edge, points, ...bounds(points) });
  }
  for (const box of laid.boxes) {
    const placed = { ...box, x: box.x + x, y: box.y + y, depth };
    if (box.inner) {
      scene.outlines.push(placed);
      place(scene, box.inner, placed.x, placed.y + TITLE - PAD, depth + 1);
    } else scene.boxes.set(box.key, placed);
  }
}

function bounds(points) {
  const [xs, ys] = [points.map((one) => one.x), points.map((one) => one.y)];
  const [x, y] = [Math.min(...xs), Math.min(...ys)];
  return { x, y, width: Math.max(...xs) - x || 1, height: Math.max(...ys) - y || 1 };
}

function size(box) {
  box.lines = labels(box);
  const widest = Math.max(...box.lines.map((one, number) => one.length * (number ? 6.1 : 7.2)));
  return { width: Math.min(260, Math.max(90, widest + (box.group ? 36 : 22))), height: 14 + box.lines.length * LINE };
}

function labels({ group, node }) {
  if (group) return [group.name, `${plural(group.size, "node")}${group.collectives ? `, ${plural(group.collectives, "collective")}` : ""}`];
  const lines = [node.op === "variable" ? node.variable : node.op.replace(/^jax\./, "")];
  lines.push(node.op === "return" ? plural(node.operands.length, "result") : node.id);
  if (node.types) lines.push(node.types.length > 1 ? `${node.types.length} results` : node.types[0]);
  return lines;
}

const plural = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
