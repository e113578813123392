// Where the boxes of one group are, and how its edges run. dagre lays out a shape once: the layers of a model are groups
// of one shape. Boxes that no edge leads to are put in rows below the others.
import dagre from "@dagrejs/dagre";

export const PAD = 12;
const GAP = 18;
const CROWDED = 150;

const known = new Map(); // by the sizes of the boxes, and the boxes at the ends of the edges

// `links` are pairs of numbers of boxes. Returns a corner for each box, points for each link, and the size of it all.
export function shapeOf(boxes, links) {
  const key = `${boxes.map(({ width, height }) => `${width}x${height}`).join()} ${links.map((ends) => ends.join(">")).join()}`;
  if (!known.has(key)) known.set(key, laidOut(boxes, links));
  return known.get(key);
}

function laidOut(boxes, links) {
  const linked = new Set(links.flat());
  const corners = [];
  const drawn = new dagre.graphlib.Graph();
  drawn.setGraph({ rankdir: "TB", nodesep: 18, edgesep: 6, ranksep: 38, marginx: PAD, marginy: PAD, ranker: boxes.length > CROWDED ? "longest-path" : "network-simplex" });
  drawn.setDefaultEdgeLabel(() => ({}));
  for (const [number, { width, height }] of boxes.entries()) if (linked.has(number)) drawn.setNode(String(number), { width, height });
  for (const [source, target] of links) drawn.setEdge(String(source), String(target));
  if (linked.size) dagre.layout(drawn);
  for (const number of linked) {
    const { x, y, width, height } = drawn.node(String(number));
    corners[number] = { x: x - width / 2, y: y - height / 2 };
  }
  const size = shelve(boxes, corners, linked.size ? drawn.graph() : { width: 0, height: 0 });
  return { corners, points: links.map(([source, target]) => drawn.edge(String(source), String(target)).points), ...size };
}

// Puts boxes without a corner in rows: side by side they would be as wide as they are many.
function shelve(boxes, corners, { width: used, height: top }) {
  const alone = [...boxes.keys()].filter((number) => !corners[number]);
  if (!alone.length) return { width: used, height: top };
  const area = alone.reduce((sum, number) => sum + (boxes[number].width + GAP) * (boxes[number].height + GAP), 0);
  const room = Math.max(used - PAD, Math.sqrt(area * 2), ...alone.map((number) => boxes[number].width + PAD + GAP));
  let [x, y, tallest, widest] = [PAD, Math.max(top, PAD), 0, used];
  for (const number of alone) {
    const { width, height } = boxes[number];
    if (x > PAD && x + width > room) [x, y, tallest] = [PAD, y + tallest + GAP, 0];
    corners[number] = { x, y };
    x += width + GAP;
    tallest = Math.max(tallest, height);
    widest = Math.max(widest, x - GAP + PAD);
  }
  return { width: widest, height: y + tallest + PAD };
}
