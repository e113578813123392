// Which boxes are seen with these groups open, and where. Each open group is laid out by itself, from the innermost
// out, as a graph of a few dozen boxes; in the group around it an open group is one box of the size it came to. So what
// opening a group costs does not grow with the program. The boxes are those of all passes: a group is laid out once, and
// from pass to pass boxes come and go and none moves. A compact scene has room for the boxes of its moment alone. An edge
// is drawn in the innermost group that both its ends are in, between the boxes they are in there.
import { codeOf, summary, titleOf, trips } from "./picture.js";
import { plural } from "./program.js";
import { PAD, shapeOf } from "./shapes.js";
import { LINE, widthOf } from "./text.js";

const GRID = 24; // widths are multiples of it, so that more groups have one shape
const TITLE = 26;
const WIDEST = 300;

// A moment is a graph and, to show what a pass removed from it, perhaps the graph before (`earlier`).
export function arrange(picture, open, moment, { compact = false } = {}) {
  const scene = { boxes: new Map(), outlines: [], edges: [] };
  const extent = seenIn(moment);
  const laid = layOut(picture, picture.root, open, compact ? extent : EVERY);
  place(scene, laid, 0, 0, 0, { picture, moment, isSeen: extent.isSeen });
  scene.width = laid.width;
  scene.height = laid.height;
  const outer = new Map(); // group -> the closed group it is seen in, or null if it is open all the way up
  const closed = (group) => {
    if (!group.parent) return null;
    if (!outer.has(group)) outer.set(group, closed(group.parent) ?? (open.has(group.key) ? null : group.key));
    return outer.get(group);
  };
  scene.boxOf = (slot) => closed(slot.home) ?? slot.key;
  return scene;
}

// What a moment has of all things of the picture.
function seenIn(moment) {
  const isSeen = (thing) => {
    if (thing.children) return thing.size > 0 || [...thing.slots, ...thing.children.values()].some(isSeen);
    return !!thing.nodes[moment.graph.number] || (moment.earlier && !!thing.nodes[moment.earlier.number]);
  };
  const isDrawn = (edge) => !!edge.in[moment.graph.number] || (moment.earlier && !!edge.in[moment.earlier.number]);
  return { moment, isSeen, isDrawn };
}

// Lays out groups in the order given, as `arrange` would: innermost first, each is short work.
export function* prepare(picture, groups, open, moment, { compact = false } = {}) {
  const extent = compact ? seenIn(moment) : EVERY;
  for (const group of groups) {
    layOut(picture, group, open, extent);
    yield;
  }
}

const EVERY = { moment: undefined, isSeen: () => true, isDrawn: () => true };

// What is in a group: `size`, the boxes and frames with their corners, and the edges, all from the group's own corner.
function layOut(picture, group, open, extent) {
  const { moment, isSeen, isDrawn } = extent;
  const inner = new Map();
  for (const child of group.children.values()) if (open.has(child.key) && isSeen(child)) inner.set(child.key, layOut(picture, child, open, extent));
  const kept = moment ? group.compact : group.laid;
  if (kept && kept.moment === moment && kept.inner.size === inner.size && [...inner].every(([key, laid]) => kept.inner.get(key) === laid)) return kept;

  const boxes = [
    ...[...group.children.values()].filter(isSeen).map((child) => ({ key: child.key, group: child, inner: inner.get(child.key) })),
    ...group.slots.filter(isSeen).map((slot) => ({ key: slot.key, slot })),
  ];
  const drawnEdges = group.edges.filter(isDrawn);
  for (const box of boxes) Object.assign(box, box.inner ? { width: box.inner.width, height: box.inner.height + TITLE - PAD } : sizeOf(picture, box));
  const numbers = new Map(boxes.map(({ key }, number) => [key, number]));
  const near = drawnEdges.filter((edge) => !edge.aside);
  const { corners, points, width, height } = shapeOf(boxes, near.map((edge) => [numbers.get(edge.source), numbers.get(edge.target)]));
  boxes.forEach((box, number) => Object.assign(box, corners[number]));
  const ends = (edge) => straight(boxes[numbers.get(edge.source)], boxes[numbers.get(edge.target)]);
  const edges = [...near.map((edge, number) => ({ edge, points: points[number] })), ...drawnEdges.filter((edge) => edge.aside).map((edge) => ({ edge, points: ends(edge) }))];
  return (group[moment ? "compact" : "laid"] = { moment, inner, boxes, edges, width: Math.max(width, 60) || 60, height: Math.max(height, 30) || 30 });
}

const straight = (from, to) => [{ x: from.x + from.width / 2, y: from.y + from.height }, { x: to.x + to.width / 2, y: to.y }];

function place(scene, laid, x, y, depth, context) {
  const { moment, isSeen, picture } = context;
  const { number } = moment.graph;
  for (const { edge, points } of laid.edges) {
    const [now, before] = [edge.in[number] ?? 0, moment.earlier ? edge.in[moment.earlier.number] ?? 0 : 0];
    if (!now && !before) continue;
    const change = moment.earlier && !before ? "added" : now ? undefined : "removed";
    const moved = points.map((point) => ({ x: point.x + x, y: point.y + y }));
    scene.edges.push({ source: edge.source, target: edge.target, count: now || before, collective: edge.collective, given: edge.given, aside: edge.aside, change, points: moved, ...bounds(moved) });
  }
  for (const box of laid.boxes) {
    if (!isSeen(box.group ?? box.slot)) continue;
    const node = box.slot?.nodes[number] ?? box.slot?.nodes[moment.earlier?.number];
    const placed = { key: box.key, group: box.group, slot: box.slot, node, width: box.width, height: box.height, x: box.x + x, y: box.y + y, depth };
    placed.gone = box.slot ? !box.slot.nodes[number] : box.group.size === 0;
    if (box.inner) {
      placed.code = codeOf(box.group, picture.program);
      scene.outlines.push(placed);
      place(scene, box.inner, placed.x, placed.y + TITLE - PAD, depth + 1, context);
    } else {
      placed.lines = labels(picture, box, node, moment.graph);
      scene.boxes.set(box.key, placed);
    }
  }
}

function bounds(points) {
  const [xs, ys] = [points.map((point) => point.x), points.map((point) => point.y)];
  const [x, y] = [Math.min(...xs), Math.min(...ys)];
  return { x, y, width: Math.max(...xs) - x || 1, height: Math.max(...ys) - y || 1 };
}

// A box has room for what it says in every graph.
function sizeOf(picture, box) {
  const texts = box.group
    ? picture.program.graphs.map((graph) => labels(picture, box, undefined, graph, summary(box.group)))
    : box.slot.nodes.filter((node) => node).map((node) => labels(picture, box, node));
  const widest = Math.max(...texts.flatMap((lines) => lines.map((line, number) => widthOf(line, number))));
  return { width: Math.min(WIDEST, Math.max(96, Math.ceil((widest + 22) / GRID) * GRID)), height: 14 + Math.max(...texts.map((lines) => lines.length)) * LINE };
}

function labels(picture, { group, slot }, node, graph, figures) {
  if (group) {
    const [title, code] = [titleOf(group, graph, picture.program), codeOf(group, picture.program)];
    const counted = figures ?? summary(group, graph);
    return code ? [`⊞ ${code}`, `${title}, ${counted}`] : [`⊞ ${title}`, counted];
  }
  const lines = [node.op === "variable" ? node.variable : node.op.replace(/^jax\./, "") + trips(node)];
  lines.push(node.op === "return" ? plural(node.operands.length, "result") : node.id);
  if (node.types) lines.push(node.types.length > 1 ? `${node.types.length} results` : node.types[0]);
  if (slot.feeds) lines.push(`feeds ${slot.feeds} boxes`);
  return lines;
}
