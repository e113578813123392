// Paints a scene: frames, edges, boxes, and the same as a map. Text is never smaller than `SMALLEST` pixels on the screen:
// when the drawing is far away it is cut sooner, and left out where nothing of it fits.
import { cut, FONTS, LINE, SIZES } from "./text.js";

const LINKS = 100;
const SMALLEST = 9;
const FAR = 0.15; // from this zoom on a box has no room for a letter
const NAMED = { width: 70, height: 18 }; // pixels of a frame that is named from afar

// The colours of the theme, by name.
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const known = new Map();
  return (name) => {
    if (!known.has(name)) known.set(name, style.getPropertyValue(`--${name}`).trim());
    return known.get(name);
  };
}

// A pen on an empty canvas of the size that it is shown at, and the colours.
export function penOf(canvas) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return { pen, width, height, colour: palette() };
}

export const kindOf = (view, box) => view.colouring?.of(box) ?? markedAs(view, box);
const markedAs = (view, box) => view.markOf.get(box.key) ?? (box.node?.collective ? "collective" : box.group ? "group" : "box");
// Muted text could not be read on all colours.
export const inkOf = (view, box, line) => (line && !view.colouring?.of(box) ? "muted" : "text");
export const lineOf = (view, box) => {
  const mark = view.markOf.get(box.key);
  if (mark) return `${mark}-line`;
  return box.node?.collective || box.group?.collectives ? "collective-line" : "line";
};
export const isNear = (view, edge) => edge.source === view.chosen || edge.target === view.chosen;
export const edgeColour = (view, edge) => (isNear(view, edge) ? "accent" : edge.change ? `${edge.change}-line` : edge.collective ? "collective-line" : "edge");

export function paintScene(pen, view, colour, seen) {
  const { scene } = view;
  const inside = (thing) => thing.x < seen.right && thing.x + thing.width > seen.left && thing.y < seen.bottom && thing.y + thing.height > seen.top;
  if (view.zoom < FAR) return paintFar(pen, view, colour, inside);
  for (const outline of scene.outlines) if (inside(outline)) paintOutline(pen, view, outline, colour);
  for (const edge of scene.edges) if (inside(edge)) paintEdge(pen, view, edge, colour);
  for (const box of scene.boxes.values()) if (inside(box)) paintBox(pen, view, box, colour);
  paintLinks(pen, view, colour);
}

// Thousands of boxes as they are seen from afar: each is one rectangle, never less than a pixel, and those of one colour
// are painted at once. Names are those of the innermost frames that have room for them.
function paintFar(pen, view, colour, inside) {
  const { boxes, edges, outlines } = view.scene;
  const pixel = 1 / view.zoom;
  const frames = outlines.filter(inside);
  for (const outline of frames) paintOutline(pen, view, outline, colour, pixel);
  const isLong = ({ points: [from], points }) => Math.abs(from.x - points.at(-1).x) + Math.abs(from.y - points.at(-1).y) > 4 * pixel;
  const lines = edges.filter((edge) => inside(edge) && !edge.aside && isLong(edge));
  pen.lineWidth = pixel / 2;
  byColour(lines, (edge) => edgeColour(view, edge), (path, { points }) => points.forEach(({ x, y }, number) => (number ? path.lineTo(x, y) : path.moveTo(x, y))), (path, name) => {
    pen.strokeStyle = colour(name);
    pen.stroke(path);
  });
  const chosen = (box) => box.key === view.chosen || view.highlighted?.has(box.key);
  const fill = (box) => (chosen(box) ? "accent" : view.colouring?.of(box) ?? (lineOf(view, box) === "line" ? "edge" : lineOf(view, box)));
  const rectangle = (path, { x, y, width, height }) => path.rect(x, y, Math.max(width, pixel), Math.max(height, pixel));
  byColour([...boxes.values()].filter(inside), fill, rectangle, (path, name) => {
    pen.fillStyle = colour(name);
    pen.fill(path);
  });
  for (const edge of edges) if (inside(edge) && isNear(view, edge)) paintEdge(pen, view, edge, colour);
  nameFrames(pen, view, frames, colour, pixel);
}

function byColour(things, colourOf, add, paint) {
  const paths = new Map();
  for (const thing of things) {
    const name = colourOf(thing);
    if (!paths.has(name)) paths.set(name, new Path2D());
    add(paths.get(name), thing);
  }
  for (const [name, path] of paths) paint(path, name);
}

function nameFrames(pen, view, frames, colour, pixel) {
  const named = frames.filter(({ width, height }) => width > NAMED.width * pixel && height > NAMED.height * pixel);
  const hasNamed = new Set();
  for (const { group } of named) for (let outer = group.parent; outer; outer = outer.parent) hasNamed.add(outer);
  pen.font = FONTS[0].replace("13px", `${SIZES[0] * pixel}px`);
  pen.textAlign = "center";
  pen.lineWidth = 4 * pixel;
  pen.lineJoin = "round";
  for (const { group, code, x, y, width, height } of named) {
    if (hasNamed.has(group)) continue;
    const at = [cut(code || group.name, 0, width / pixel - 8), x + width / 2, y + height / 2 + 4 * pixel];
    pen.strokeStyle = colour("surface");
    pen.strokeText(...at);
    pen.fillStyle = colour("text");
    pen.fillText(...at);
  }
  pen.textAlign = "start";
}

// Writes a line at its own size, or larger if it were too small to read; says whether it found room.
function write(pen, view, text, line, x, y, width, room) {
  const grown = Math.max(1, SMALLEST / view.zoom / SIZES[line ? 1 : 0]);
  if (SIZES[line ? 1 : 0] * grown > room) return false;
  const shown = cut(grown > 1.2 ? text.replace(/^[⊞⊟] /, "") : text, line, width / grown);
  if (!shown) return false;
  pen.font = grown === 1 ? FONTS[line ? 1 : 0] : FONTS[line ? 1 : 0].replace(/[\d.]+px/, `${SIZES[line ? 1 : 0] * grown}px`);
  pen.fillText(shown, x, y);
  return true;
}

function paintOutline(pen, view, outline, colour, pixel = 1) {
  const chosen = outline.key === view.chosen;
  pen.beginPath();
  pen.roundRect(outline.x, outline.y, outline.width, outline.height, 8 * pixel);
  pen.fillStyle = colour(outline.depth % 2 ? "frame-odd" : "frame-even");
  pen.fill();
  pen.lineWidth = chosen ? 2 * pixel : pixel;
  pen.strokeStyle = colour(chosen ? "accent" : "line");
  pen.stroke();
  if (pixel > 1) return;
  pen.fillStyle = colour("muted");
  write(pen, view, `⊟ ${outline.code ? `${outline.code}  ${outline.group.name}` : outline.group.name}`, 0, outline.x + 8, outline.y + 16, outline.width - 16, 22);
}

function paintEdge(pen, view, edge, colour) {
  const near = isNear(view, edge);
  if (edge.aside && !near) return;
  const { points } = edge;
  pen.beginPath();
  pen.moveTo(points[0].x, points[0].y);
  for (let i = 1; i < points.length - 1; i++) {
    const next = points[i + 1];
    const end = i === points.length - 2 ? next : { x: (points[i].x + next.x) / 2, y: (points[i].y + next.y) / 2 };
    pen.quadraticCurveTo(points[i].x, points[i].y, end.x, end.y);
  }
  const last = points[points.length - 1];
  if (points.length === 2) pen.lineTo(last.x, last.y);
  pen.strokeStyle = pen.fillStyle = colour(edgeColour(view, edge));
  pen.lineWidth = near || edge.change ? 2 : Math.min(1 + Math.log2(edge.count) / 3, 3);
  pen.globalAlpha = edge.given && !near && !edge.change ? 0.4 : 1;
  if (edge.change === "removed") pen.setLineDash([4, 4]);
  pen.stroke();
  pen.setLineDash([]);
  const from = points[points.length - 2];
  const angle = Math.atan2(last.y - from.y, last.x - from.x);
  pen.beginPath();
  pen.moveTo(last.x, last.y);
  pen.lineTo(last.x - 7 * Math.cos(angle - 0.4), last.y - 7 * Math.sin(angle - 0.4));
  pen.lineTo(last.x - 7 * Math.cos(angle + 0.4), last.y - 7 * Math.sin(angle + 0.4));
  pen.fill();
  pen.globalAlpha = 1;
}

// From the chosen node to its operands and users in other groups, whose edges end at the frames.
function paintLinks(pen, view, colour) {
  const own = view.scene.boxes.get(view.chosen);
  if (!own?.slot || own.gone) return;
  const { graph } = view.moment;
  const slotOf = (position) => view.picture.slots[graph.nodes[position].identity];
  const middle = (box) => box.x + box.width / 2;
  const curve = (from, to) => {
    const [x, y, toX, toY] = [middle(from), from.y + from.height, middle(to), to.y];
    pen.moveTo(x, y);
    pen.bezierCurveTo(x, y + 40, toX, toY - 40, toX, toY);
  };
  const others = (positions) => [...new Set(positions.map(slotOf).filter((slot) => slot.home !== own.slot.home).slice(0, LINKS).map(view.scene.boxOf))].map((key) => view.scene.boxes.get(key)).filter((box) => box);
  pen.beginPath();
  for (const box of others(own.node.inputs)) curve(box, own);
  for (const box of others(own.node.users)) curve(own, box);
  pen.setLineDash([5, 4]);
  pen.lineWidth = 1.5;
  pen.strokeStyle = colour("accent");
  pen.stroke();
  pen.setLineDash([]);
}

function paintBox(pen, view, box, colour) {
  const chosen = box.key === view.chosen || view.highlighted?.has(box.key);
  if (box.group) {
    const sheets = box.group.members ? [6, 3] : [3]; // a stack of groups has one more
    for (const by of sheets) {
      pen.beginPath();
      pen.roundRect(box.x + by, box.y + by, box.width, box.height, 7);
      pen.fillStyle = colour("frame-odd");
      pen.fill();
      pen.lineWidth = 1;
      pen.strokeStyle = colour("line");
      pen.stroke();
    }
  }
  pen.beginPath();
  pen.roundRect(box.x, box.y, box.width, box.height, 7);
  pen.fillStyle = colour(kindOf(view, box));
  pen.fill();
  pen.lineWidth = chosen ? 2.5 : 1;
  pen.strokeStyle = colour(chosen ? "accent" : lineOf(view, box));
  if (box.gone) pen.setLineDash([4, 3]);
  pen.stroke();
  pen.setLineDash([]);
  const small = SMALLEST / view.zoom > SIZES[0]; // then there is room for the title alone
  for (const [number, line] of box.lines.entries()) {
    pen.fillStyle = colour(inkOf(view, box, number));
    const [y, room] = small ? [box.y + box.height / 2 + SMALLEST / view.zoom / 3, box.height] : [box.y + 18 + number * LINE, LINE];
    if (!write(pen, view, line, number, box.x + 9, y, box.width - 16, room) || small) break;
  }
}

export function paintMap(pen, view, colour, seen, { width, height, scale, left, top }) {
  pen.clearRect(0, 0, width, height);
  for (const box of view.scene.boxes.values()) {
    const line = lineOf(view, box);
    pen.fillStyle = colour(line === "line" ? "edge" : line);
    pen.fillRect(left + box.x * scale, top + box.y * scale, Math.max(box.width * scale, 1), Math.max(box.height * scale, 1));
  }
  pen.strokeStyle = colour("accent");
  pen.lineWidth = 1.5;
  const clamp = (value, most) => Math.min(Math.max(value, 1), most - 1);
  const [x1, y1] = [clamp(left + seen.left * scale, width), clamp(top + seen.top * scale, height)];
  const [x2, y2] = [clamp(left + seen.right * scale, width), clamp(top + seen.bottom * scale, height)];
  pen.strokeRect(x1, y1, x2 - x1, y2 - y1);
}
