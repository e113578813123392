// The drawing: a canvas that pans and zooms, boxes to select, groups to open, and a minimap.
import { element } from "./elements.js";
import { arrange } from "./layout.js";

const MAP = { width: 170, height: 120 };
const LINKS = 100;
const LEGIBLE = 0.75;

export class GraphView {
  constructor({ onSelect, onAnnounce }) {
    this.onSelect = onSelect;
    this.onAnnounce = onAnnounce;
    this.open = new Set();
    this.marks = new Map();
    this.canvas = element("canvas", { id: "graph", tabindex: 0, role: "application", "aria-label": "Graph. Arrow keys move, plus and minus zoom, n and p walk through the boxes, Enter opens or closes a group." });
    this.map = element("canvas", { id: "minimap", width: MAP.width, height: MAP.height, "aria-hidden": "true" });
    this.element = element("div", { id: "drawing" }, this.canvas, this.map, this.#buttons());
    this.#listen();
  }

  show(graph, marks) {
    const first = this.graph === undefined;
    this.graph = graph;
    this.marks = marks;
    if (first) this.#openTheOnly(graph.root);
    this.arrange();
    if (first) this.fit();
  }

  arrange() {
    this.scene = arrange(this.graph, this.open);
    this.markOf = new Map();
    for (const [position, mark] of this.marks) {
      const key = this.scene.boxOf(position);
      this.markOf.set(key, this.markOf.has(key) && this.markOf.get(key) !== mark ? "changed" : mark);
    }
    this.draw();
  }

  // Opens the groups around a node, and brings it to the middle.
  reveal(position) {
    for (let group = this.graph.nodes[position].home; group.parent; group = group.parent) group.keys.forEach((key) => this.open.add(key));
    this.arrange();
    this.chosen = `#${position}`;
    this.#center(this.scene.boxes.get(this.chosen));
  }

  toggle(group) {
    const before = this.#boxOrOutline(group.key);
    const close = this.open.has(group.key);
    for (const key of group.keys) close ? this.open.delete(key) : this.open.add(key);
    this.arrange();
    const after = this.#boxOrOutline(group.key);
    if (before && after) {
      // What was pressed stays under the pointer, as far as what was opened can be seen.
      const [x, y] = [this.x + before.x * this.zoom, this.y + before.y * this.zoom];
      if (!close) this.zoom = Math.max(this.zoom, LEGIBLE);
      this.x = x - after.x * this.zoom;
      this.y = y - after.y * this.zoom;
    }
    if (!close) this.#bringIn(after);
    this.draw();
    this.onAnnounce(`${group.name} ${this.open.has(group.key) ? "opened" : "closed"}`);
  }

  closeAll() {
    this.open.clear();
    this.#openTheOnly(this.graph.root);
    this.arrange();
    this.fit();
  }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const { scene } = this;
    this.zoom = Math.min(1.25, Math.max(0.02, Math.min(width / scene.width, height / scene.height) * 0.96));
    if (this.zoom < 0.45) this.zoom = 0.45;
    this.x = (width - scene.width * this.zoom) / 2;
    this.y = Math.max((height - scene.height * this.zoom) / 2, 8);
    this.draw();
  }

  zoomBy(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const zoom = Math.min(4, Math.max(0.02, this.zoom * factor));
    this.x = x - ((x - this.x) * zoom) / this.zoom;
    this.y = y - ((y - this.y) * zoom) / this.zoom;
    this.zoom = zoom;
    this.draw();
  }

  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.#paint();
    });
  }

  // Where a box is on the screen, for tests and for the tooltip: x and y of its middle.
  screenPlace(key) {
    const box = this.#boxOrOutline(key);
    const bounds = this.canvas.getBoundingClientRect();
    return box && { x: bounds.x + this.x + (box.x + box.width / 2) * this.zoom, y: bounds.y + this.y + (box.y + Math.min(box.height / 2, 12)) * this.zoom };
  }

  #buttons() {
    const button = (text, title, onclick) => element("button", { type: "button", title, "aria-label": title, onclick }, text);
    return element("div", { class: "tools" },
      button("+", "Zoom in (+)", () => this.zoomBy(1.25)),
      button("−", "Zoom out (-)", () => this.zoomBy(0.8)),
      button("Fit", "Show all (0)", () => this.fit()),
      button("Collapse", "Close all groups (c)", () => this.closeAll()));
  }

  #boxOrOutline(key) {
    return this.scene.boxes.get(key) ?? this.scene.outlines.find((one) => one.key === key);
  }

  #openTheOnly(group) {
    while (group.children.size === 1 && group.nodes.length === 0) {
      [group] = group.children.values();
      group.keys.forEach((key) => this.open.add(key));
    }
  }

  // Moves a frame into the window; of one that is larger than the window, its uppermost box.
  #bringIn(frame) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const inside = ([...this.scene.boxes.values(), ...this.scene.outlines]).filter((one) => one !== frame && contains(frame, one));
    const first = inside.reduce((best, one) => (best && best.y <= one.y ? best : one), undefined);
    const move = (start, size, room, target, middle) => {
      if (size <= room) return Math.max(start, 12) + Math.min(0, room - Math.max(start, 12) - size) - start;
      return target < 12 || target > room - 80 ? middle - target : 0;
    };
    const left = (one) => this.x + one.x * this.zoom;
    const top = (one) => this.y + one.y * this.zoom;
    this.x += move(left(frame), frame.width * this.zoom, width - 24, left(first ?? frame), width / 2 - ((first ?? frame).width / 2) * this.zoom);
    this.y += move(top(frame), frame.height * this.zoom, height - 24, top(first ?? frame), Math.min(height / 3, 90));
  }

  #center(box) {
    if (!box) return;
    this.zoom = Math.max(this.zoom, LEGIBLE);
    this.x = this.canvas.clientWidth / 2 - (box.x + box.width / 2) * this.zoom;
    this.y = this.canvas.clientHeight / 2 - (box.y + box.height / 2) * this.zoom;
    this.draw();
  }

  #at(x, y) {
    const [left, top] = [(x - this.x) / this.zoom, (y - this.y) / this.zoom];
    const holds = (one) => left >= one.x && left <= one.x + one.width && top >= one.y && top <= one.y + one.height;
    for (const box of this.scene.boxes.values()) if (holds(box)) return box;
    // Of a frame only its title can be pressed: the rest of it is to move the drawing.
    return this.scene.outlines.findLast((one) => holds(one) && top <= one.y + 20);
  }

  #press(box) {
    this.chosen = box?.key;
    if (!box) return this.draw();
    if (box.group) this.toggle(box.group);
    else this.onSelect(box.node.position);
    this.draw();
  }

  #listen() {
    const { canvas } = this;
    let held;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      held = { x: event.offsetX, y: event.offsetY, moved: false };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) {
        canvas.style.cursor = this.#at(event.offsetX, event.offsetY) ? "pointer" : "grab";
        return;
      }
      if (Math.hypot(event.offsetX - held.x, event.offsetY - held.y) > 3) held.moved = true;
      if (!held.moved) return;
      this.x += event.movementX;
      this.y += event.movementY;
      this.draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held && !held.moved) this.#press(this.#at(event.offsetX, event.offsetY));
      held = undefined;
    });
    canvas.addEventListener("pointercancel", () => { held = undefined; });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY * 0.0015), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.#key(event));
    this.map.addEventListener("pointerdown", (event) => {
      const { left, top, scale } = this.#mapping();
      this.x = canvas.clientWidth / 2 - ((event.offsetX - left) / scale) * this.zoom;
      this.y = canvas.clientHeight / 2 - ((event.offsetY - top) / scale) * this.zoom;
      this.draw();
    });
    new ResizeObserver(() => this.scene && this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const move = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    if (move) {
      this.x += move[0];
      this.y += move[1];
      this.draw();
    } else if (event.key === "+" || event.key === "=") this.zoomBy(1.25);
    else if (event.key === "-") this.zoomBy(0.8);
    else if (event.key === "0") this.fit();
    else if (event.key === "c") this.closeAll();
    else if (event.key === "n" || event.key === "p") this.#walk(event.key === "n" ? 1 : -1);
    else if (event.key === "Enter" || event.key === " ") {
      const box = this.#boxOrOutline(this.chosen);
      if (box) this.#press(box);
    } else return;
    event.preventDefault();
  }

  #walk(by) {
    const order = [...this.scene.boxes.values(), ...this.scene.outlines].sort((a, b) => a.y - b.y || a.x - b.x);
    const at = order.findIndex((one) => one.key === this.chosen);
    const box = order[(at + by + order.length) % order.length];
    this.chosen = box.key;
    this.#center(box);
    this.onAnnounce(box.group ? `group ${box.group.name}, ${box.group.size} nodes` : box.node.text);
  }

  #colours() {
    const style = getComputedStyle(document.documentElement);
    const known = new Map();
    return (name) => {
      if (!known.has(name)) known.set(name, style.getPropertyValue(`--${name}`).trim());
      return known.get(name);
    };
  }

  #paint() {
    const { canvas, scene } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    const colour = this.#colours();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.translate(this.x, this.y);
    pen.scale(this.zoom, this.zoom);
    const seen = { left: -this.x / this.zoom, top: -this.y / this.zoom, right: (width - this.x) / this.zoom, bottom: (height - this.y) / this.zoom };
    const inside = (one) => one.x < seen.right && one.x + one.width > seen.left && one.y < seen.bottom && one.y + one.height > seen.top;
    for (const one of scene.outlines) if (inside(one)) this.#outline(pen, one, colour);
    for (const edge of scene.edges) if (inside(edge)) this.#edge(pen, edge, colour);
    for (const box of scene.boxes.values()) if (inside(box)) this.#box(pen, box, colour);
    this.#links(pen, colour);
    this.#paintMap(colour, seen);
  }

  #outline(pen, one, colour) {
    pen.beginPath();
    pen.roundRect(one.x, one.y, one.width, one.height, 8);
    pen.fillStyle = colour(one.depth % 2 ? "frame-odd" : "frame-even");
    pen.fill();
    pen.lineWidth = one.key === this.chosen ? 2 : 1;
    pen.strokeStyle = colour(one.key === this.chosen ? "accent" : "line");
    pen.stroke();
    pen.fillStyle = colour("muted");
    pen.font = "600 11px system-ui, sans-serif";
    pen.fillText((one.shown ??= cut(pen, `⊟ ${one.group.name}`, one.width - 16)), one.x + 8, one.y + 15);
  }

  #edge(pen, edge, colour) {
    const { points } = edge;
    const near = edge.source === this.chosen || edge.target === this.chosen;
    pen.beginPath();
    pen.moveTo(points[0].x, points[0].y);
    for (let i = 1; i < points.length - 1; i++) {
      const next = points[i + 1];
      const end = i === points.length - 2 ? next : { x: (points[i].x + next.x) / 2, y: (points[i].y + next.y) / 2 };
      pen.quadraticCurveTo(points[i].x, points[i].y, end.x, end.y);
    }
    const last = points[points.length - 1];
    if (points.length === 2) pen.lineTo(last.x, last.y);
    pen.strokeStyle = pen.fillStyle = colour(near ? "accent" : edge.collective ? "collective-line" : "edge");
    pen.lineWidth = near ? 2 : Math.min(1 + Math.log2(edge.count) / 3, 3);
    pen.globalAlpha = edge.given && !near ? 0.4 : 1;
    pen.stroke();
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
  #links(pen, colour) {
    const node = this.scene.boxes.get(this.chosen)?.node;
    if (!node) return;
    const home = (position) => this.graph.nodes[position].home;
    const middle = (box) => box.x + box.width / 2;
    const curve = (from, to) => {
      const [x, y, toX, toY] = [middle(from), from.y + from.height, middle(to), to.y];
      pen.moveTo(x, y);
      pen.bezierCurveTo(x, y + 40, toX, toY - 40, toX, toY);
    };
    const own = this.scene.boxes.get(this.chosen);
    const seen = (positions) => [...new Set(positions.filter((one) => home(one) !== node.home).slice(0, LINKS).map(this.scene.boxOf))].map((key) => this.scene.boxes.get(key));
    pen.beginPath();
    for (const one of seen(node.inputs)) curve(one, own);
    for (const one of seen(node.users)) curve(own, one);
    pen.setLineDash([5, 4]);
    pen.lineWidth = 1.5;
    pen.strokeStyle = colour("accent");
    pen.stroke();
    pen.setLineDash([]);
  }

  #box(pen, box, colour) {
    const mark = this.markOf.get(box.key);
    const chosen = box.key === this.chosen;
    const kind = mark ?? (box.node?.collective ? "collective" : box.group ? "group" : "box");
    if (box.group) {
      pen.beginPath();
      pen.roundRect(box.x + 3, box.y + 3, box.width, box.height, 7);
      pen.fillStyle = colour("frame-odd");
      pen.fill();
      pen.strokeStyle = colour("line");
      pen.stroke();
    }
    pen.beginPath();
    pen.roundRect(box.x, box.y, box.width, box.height, 7);
    pen.fillStyle = colour(kind);
    pen.fill();
    pen.lineWidth = chosen ? 2.5 : 1;
    pen.strokeStyle = colour(chosen ? "accent" : mark ? `${mark}-line` : box.node?.collective || box.group?.collectives ? "collective-line" : "line");
    pen.stroke();
    if (this.zoom < 0.2) return;
    box.lines.forEach((line, number) => {
      pen.font = number ? "10.5px system-ui, sans-serif" : "600 12px system-ui, sans-serif";
      pen.fillStyle = colour(number ? "muted" : "text");
      const text = number === 0 && box.group ? `⊞ ${line}` : line;
      box.shown ??= [];
      pen.fillText((box.shown[number] ??= cut(pen, text, box.width - 16)), box.x + 9, box.y + 17 + number * 13);
    });
  }

  #mapping() {
    const { scene } = this;
    const scale = Math.min((MAP.width - 8) / scene.width, (MAP.height - 8) / scene.height);
    return { scale, left: (MAP.width - scene.width * scale) / 2, top: (MAP.height - scene.height * scale) / 2 };
  }

  #paintMap(colour, seen) {
    // Of what is in view as a whole no map is needed.
    this.map.hidden = seen.left <= 0 && seen.top <= 0 && seen.right >= this.scene.width && seen.bottom >= this.scene.height;
    if (this.map.hidden) return;
    const pen = this.map.getContext("2d");
    const { scale, left, top } = this.#mapping();
    pen.clearRect(0, 0, MAP.width, MAP.height);
    for (const box of this.scene.boxes.values()) {
      const mark = this.markOf.get(box.key);
      pen.fillStyle = colour(mark ? `${mark}-line` : box.node?.collective || box.group?.collectives ? "collective-line" : "edge");
      pen.fillRect(left + box.x * scale, top + box.y * scale, Math.max(box.width * scale, 1), Math.max(box.height * scale, 1));
    }
    pen.strokeStyle = colour("accent");
    pen.lineWidth = 1.5;
    const clamp = (value, most) => Math.min(Math.max(value, 1), most - 1);
    const [x1, y1] = [clamp(left + seen.left * scale, MAP.width), clamp(top + seen.top * scale, MAP.height)];
    const [x2, y2] = [clamp(left + seen.right * scale, MAP.width), clamp(top + seen.bottom * scale, MAP.height)];
    pen.strokeRect(x1, y1, x2 - x1, y2 - y1);
  }
}

const contains = (frame, one) => one.x >= frame.x && one.y >= frame.y && one.x + one.width <= frame.x + frame.width && one.y + one.height <= frame.y + frame.height;

function cut(pen, text, width) {
  if (text.length > 200) text = `${text.slice(0, 200)}…`;
  if (pen.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high - 1) {
    const middle = (low + high) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle;
  }
  return `${text.slice(0, low)}…`;
}
