// Where the boxes of one group are, and how its edges run. dagre lays out a shape once: the layers of a model are groups
// of one shape. Boxes that edges join are laid out together, and what no edge joins is put side by side, in rows. What
// would be a tower is cut into columns, read from left to right, so that the whole of it can be seen at once.
import dagre from "@dagrejs/dagre";

export const PAD = 12;
const GAP = 18;
const GUTTER = 60; // between columns: the edges from one to the next run there
const CROWDED = 150;
const TOWER = { height: 4000, ratio: 3 };

const known = new Map(); // by the sizes of the boxes, and the boxes at the ends of the edges

// `links` are pairs of numbers of boxes. Returns a corner for each box, points for each link, and the size of it all.
export function shapeOf(boxes, links) {
  const key = `${boxes.map(({ width, height }) => `${width}x${height}`).join()} ${links.map((ends) => ends.join(">")).join()}`;
  if (!known.has(key)) known.set(key, laidOut(boxes, links));
  return known.get(key);
}

function laidOut(boxes, links) {
  const parts = joined(boxes.length, links).map((part) => inColumns(drawn(part, boxes, links), boxes, links));
  const area = parts.reduce((sum, { width, height }) => sum + (width + GAP) * (height + GAP), 0);
  const room = Math.max(Math.sqrt(area * 2), ...parts.map(({ width }) => width));
  const [corners, points] = [[], []];
  let [x, y, tallest, widest] = [PAD, PAD, 0, 0];
  for (const part of parts) {
    if (x > PAD && x + part.width > PAD + room) [x, y, tallest] = [PAD, y + tallest + GAP, 0];
    const at = (place) => ({ x: place.x + x, y: place.y + y });
    for (const [box, corner] of part.corners) corners[box] = at(corner);
    for (const [link, line] of part.points) points[link] = line.map(at);
    x += part.width + GAP;
    tallest = Math.max(tallest, part.height);
    widest = Math.max(widest, x - GAP + PAD);
  }
  return { corners, points, width: widest, height: y + tallest + PAD };
}

// The boxes that links join, and their links, by number. Those with links come first.
function joined(several, links) {
  const first = Array.from({ length: several }, (_, box) => box);
  const root = (box) => {
    while (first[box] !== box) box = first[box] = first[first[box]];
    return box;
  };
  for (const [source, target] of links) first[root(target)] = root(source);
  const parts = new Map();
  for (let box = 0; box < several; box++) {
    if (!parts.has(root(box))) parts.set(root(box), { boxes: [], links: [] });
    parts.get(root(box)).boxes.push(box);
  }
  links.forEach(([source], link) => parts.get(root(source)).links.push(link));
  return [...parts.values()].sort((one, other) => !one.links.length - !other.links.length);
}

function drawn(part, boxes, links) {
  if (!part.links.length) return { ...boxes[part.boxes[0]], corners: [[part.boxes[0], { x: 0, y: 0 }]], points: [] };
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 18, edgesep: 6, ranksep: 38, ranker: part.boxes.length > CROWDED ? "longest-path" : "network-simplex" });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const box of part.boxes) graph.setNode(String(box), { width: boxes[box].width, height: boxes[box].height });
  for (const link of part.links) graph.setEdge(...links[link].map(String));
  dagre.layout(graph);
  const corner = (box) => {
    const { x, y, width, height } = graph.node(String(box));
    return [box, { x: x - width / 2, y: y - height / 2 }];
  };
  const { width, height } = graph.graph();
  return { width, height, corners: part.boxes.map(corner), points: part.links.map((link) => [link, graph.edge(...links[link].map(String)).points]) };
}

// Cuts a tower where no box is, into columns that are together about as wide as they are high.
function inColumns(part, boxes, links) {
  const { width, height } = part;
  if (height < TOWER.height || height < TOWER.ratio * width) return part;
  const most = height / Math.round(Math.sqrt((1.4 * height) / width));
  const columnOf = new Map();
  const tops = [0];
  let [bottom, highest] = [0, 0];
  for (const [box, corner] of [...part.corners].sort(([, one], [, other]) => one.y - other.y)) {
    if (corner.y > bottom && bottom - tops.at(-1) > most) tops.push(corner.y);
    columnOf.set(box, tops.length - 1);
    bottom = Math.max(bottom, corner.y + boxes[box].height);
    highest = Math.max(highest, bottom - tops.at(-1));
  }
  const left = (column) => column * (width + GUTTER);
  const moved = ({ x, y }, column) => ({ x: x + left(column), y: y - tops[column] });
  const route = ([link, points]) => {
    const [from, to] = links[link].map((box) => columnOf.get(box));
    if (from === to) return [link, points.map((point) => moved(point, from))];
    const [start, end] = [moved(points[0], from), moved(points.at(-1), to)];
    const [under, beside, over] = [highest + GAP / 2, left(to) - GUTTER / 2, -GAP / 2];
    const corners = [{ x: start.x, y: under }, { x: beside, y: under }, { x: beside, y: over }, { x: end.x, y: over }];
    return [link, [start, ...corners.flatMap((corner) => [corner, corner]), end]]; // a corner twice is not rounded
  };
  return { width: left(tops.length) - GUTTER, height: highest + GAP, corners: part.corners.map(([box, corner]) => [box, moved(corner, columnOf.get(box))]), points: part.points.map(route) };
}
