// The drawing: a canvas that pans and zooms, boxes to select, groups to open, and a minimap.
import { colouringOf, colourings } from "./colouring.js";
import { element } from "./elements.js";
import { GESTURES, watch } from "./gestures.js";
import { HoverCard } from "./hover.js";
import { arrange, prepare } from "./layout.js";
import { paintMap, paintScene, palette } from "./paint.js";
import { measure } from "./picture.js";
import { moved } from "./program.js";

const MAP = { width: 170, height: 120 };
const LEGIBLE = 0.75; // from this zoom on all lines of a box are written at their own size
const FARTHEST = 0.02;
const SLICE = 12; // milliseconds of layout in a frame

export class GraphView {
  #compactButton;
  #besideButton;

  // Of two views the second has a `name`, which its ids begin with, and no buttons.
  constructor({ picture, name = "", label = "", onSelect, onGroup, onColour, onAnnounce }) {
    Object.assign(this, { picture, onSelect, onGroup, onColour, onAnnounce });
    this.isSecond = name !== "";
    const id = (own) => (name ? `${name}-${own}` : own);
    this.open = new Set();
    this.isCompact = false;
    this.marks = new Map();
    this.canvas = element("canvas", { id: id("graph"), class: "graph", tabindex: 0, role: "application", "aria-label": `${label}Graph. Arrow keys move, plus and minus zoom, n and p walk through the boxes, Enter opens or closes a group.` });
    this.map = element("canvas", { id: id("minimap"), class: "minimap", width: MAP.width, height: MAP.height, "aria-hidden": "true" });
    this.card = new HoverCard(id("card"));
    this.legend = element("ul", { class: "legend", id: id("legend"), "aria-label": "Colours", hidden: true });
    this.tools = name ? undefined : this.#buttons();
    this.element = element("div", { id: id("drawing"), class: "drawing" }, this.canvas, this.card.element);
    watch(this);
    this.map.addEventListener("pointerdown", (event) => this.#goOnMap(event));
    new ResizeObserver(() => this.scene && this.#resized()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    matchMedia("print").addEventListener("change", () => this.#printed());
  }

  // Shows a moment, with what the pass did to the nodes of its graph.
  show(moment, marks) {
    const first = this.moment === undefined;
    this.moment = moment;
    this.marks = marks;
    this.#besideButton?.setAttribute("aria-pressed", String(!!this.beside));
    this.marked = undefined; // positions of another graph
    measure(this.picture.root, moment.graph, this.picture.program);
    this.colourBy(this.colour ?? "change");
    if (first) this.#openTheOnly(this.picture.root);
    this.arrange();
    if (first && this.isSecond) this.lookAs(this.beside);
    else if (first) this.#begin();
  }

  arrange() {
    const { picture, moment } = this;
    this.scene = arrange(picture, this.open, moment, { compact: this.isCompact });
    this.laidFor = [...this.open].sort().join();
    this.markOf = new Map();
    const mark = (slot, kind) => {
      const key = this.scene.boxOf(slot);
      this.markOf.set(key, this.markOf.has(key) && this.markOf.get(key) !== kind ? "changed" : kind);
    };
    for (const [position, kind] of this.marks) mark(picture.slots[moment.graph.nodes[position].identity], kind);
    if (moment.earlier) {
      for (const node of moment.earlier.nodes) if (!moment.graph.ofIdentity.has(node.identity)) mark(picture.slots[node.identity], "removed");
    }
    this.#highlightAgain();
    if (this.beside?.moment && this.beside.laidFor !== this.laidFor) this.beside.arrange();
    this.draw();
  }

  // Colours the boxes by a figure or a kind; by "change", as the pass marks them.
  colourBy(name) {
    this.colour = colourings(this.picture.program).includes(name) ? name : "change";
    this.#choice.value = this.colour;
    this.colouring = this.moment && colouringOf(this.colour, this.picture, this.moment.graph);
    this.legend.hidden = !this.colouring;
    this.legend.replaceChildren(...(this.colouring ? [element("li", { class: "title" }, this.colouring.title), ...this.colouring.legend.map(([kind, text]) => element("li", { style: `background:var(--${kind})` }, text))] : []));
    this.draw();
  }

  // Marks several nodes; brings the first of them into the window, if none is.
  highlight(positions) {
    this.marked = positions;
    this.#highlightAgain();
    const boxes = [...this.highlighted].map((key) => this.scene.boxes.get(key)).filter((box) => box);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const isSeen = (box) => this.x + box.x * this.zoom < width && this.x + (box.x + box.width) * this.zoom > 0 && this.y + box.y * this.zoom < height && this.y + (box.y + box.height) * this.zoom > 0;
    if (boxes.length && !boxes.some(isSeen)) this.#center(boxes[0]);
    this.draw();
  }

  #highlightAgain() {
    this.highlighted = new Set((this.marked ?? []).map((position) => this.scene.boxOf(this.slotAt(position))));
  }

  slotAt(position) {
    return this.picture.slots[this.moment.graph.nodes[position].identity];
  }

  // Makes a node the chosen one, where it is seen.
  choose(position) {
    this.chosen = position === undefined ? undefined : this.slotAt(position).key;
    this.draw();
  }

  // Opens the groups around a node, and brings it to the middle.
  reveal(position) {
    const slot = this.slotAt(position);
    for (let group = slot.home; group.parent; group = group.parent) group.keys.forEach((key) => this.open.add(key));
    this.arrange();
    this.chosen = slot.key;
    this.#center(this.scene.boxes.get(slot.key));
  }

  toggle(group) {
    const before = this.boxAt(group.key);
    const close = this.open.has(group.key);
    for (const key of group.keys) close ? this.open.delete(key) : this.open.add(key);
    this.arrange();
    const after = this.boxAt(group.key);
    if (before && after) {
      // What was pressed stays under the pointer, as far as what was opened can be seen.
      const [x, y] = [this.x + before.x * this.zoom, this.y + before.y * this.zoom];
      if (!close) this.zoom = Math.max(this.zoom, LEGIBLE);
      this.x = x - after.x * this.zoom;
      this.y = y - after.y * this.zoom;
    }
    if (!close) this.#bringIn(after);
    this.draw();
    this.onAnnounce(`${group.name} ${close ? "closed" : "opened"}`);
  }

  closeAll() {
    this.open.clear();
    this.#openTheOnly(this.picture.root);
    this.arrange();
    this.fit();
  }

  // Opens every group. They are laid out a few at a time between two frames: the page can be used meanwhile.
  async openAll() {
    const [groups, open] = [[], new Set(this.open)];
    const collect = (group) => {
      for (const child of group.children.values()) collect(child);
      group.keys.forEach((key) => open.add(key));
      groups.push(group);
    };
    collect(this.picture.root);
    const { moment, isCompact } = this;
    let until = performance.now() + SLICE;
    for (const _ of prepare(this.picture, groups, open, moment, { compact: isCompact })) {
      if (performance.now() < until) continue;
      await new Promise(requestAnimationFrame);
      until = performance.now() + SLICE;
    }
    open.forEach((key) => this.open.add(key));
    this.arrange();
    this.fit();
    this.onAnnounce(`${groups.length} groups opened`);
  }

  // Leaves out, or keeps, the room for boxes that are there at other passes.
  toggleCompact() {
    this.isCompact = !this.isCompact;
    this.#compactButton.setAttribute("aria-pressed", String(this.isCompact));
    this.arrange();
    this.fit();
    this.onAnnounce(this.isCompact ? "compact" : "boxes stay in place from pass to pass");
  }

  // Shows all boxes of this moment.
  fit() {
    const { left, top, right, bottom, zoom } = this.#whole();
    this.zoom = Math.min(1.25, zoom);
    this.x = (this.canvas.clientWidth - (left + right) * this.zoom) / 2;
    this.y = (this.canvas.clientHeight - (top + bottom) * this.zoom) / 2;
    this.fitted = [this.x, this.y, this.zoom];
    this.draw();
  }

  // Shows all boxes or, where they could not be read, those around the largest collective or the first node.
  #begin() {
    this.fit();
    if (this.zoom >= LEGIBLE || !this.scene.boxes.size) return;
    const { nodes, collectives } = this.moment.graph;
    const largest = collectives.reduce((most, one) => (moved(nodes[one]) > moved(nodes[most]) ? one : most), collectives[0] ?? 0);
    this.#center(this.boxAt(this.scene.boxOf(this.slotAt(largest))));
    const { left, top, right, bottom } = this.#whole();
    const within = (at, from, to, room) => (to - from + 24 < room ? (room - from - to) / 2 : Math.min(Math.max(at, room - 12 - to), 12 - from));
    this.x = within(this.x, left * this.zoom, right * this.zoom, this.canvas.clientWidth);
    this.y = within(this.y, top * this.zoom, bottom * this.zoom, this.canvas.clientHeight);
  }

  // What was shown as a whole is so in a window of another size.
  #resized() {
    if (!this.isSecond && this.canvas.clientWidth && this.fitted?.join() === [this.x, this.y, this.zoom].join()) this.fit();
    this.draw();
  }

  // Paper has a size and colours of its own, and no later frame.
  #printed() {
    if (!this.scene || !this.canvas.clientWidth) return;
    this.fit();
    this.#paint();
  }

  // The corners of all that is drawn, and the zoom at which the window has room for it.
  #whole() {
    if (!this.scene.corners) {
      const corners = (this.scene.corners = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity });
      for (const { x, y, width, height } of [...this.scene.boxes.values(), ...this.scene.outlines]) {
        corners.left = Math.min(corners.left, x);
        corners.top = Math.min(corners.top, y);
        corners.right = Math.max(corners.right, x + width);
        corners.bottom = Math.max(corners.bottom, y + height);
      }
    }
    const { left, top, right, bottom } = this.scene.corners;
    const zoom = 0.98 * Math.min(this.canvas.clientWidth / (right - left + 24), this.canvas.clientHeight / (bottom - top + 24));
    return { left, top, right, bottom, zoom: Math.max(zoom, 1e-4) };
  }

  zoomBy(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const zoom = Math.min(4, Math.max(Math.min(FARTHEST, this.#whole().zoom), this.zoom * factor));
    this.x = x - ((x - this.x) * zoom) / this.zoom;
    this.y = y - ((y - this.y) * zoom) / this.zoom;
    this.zoom = zoom;
    this.draw();
  }

  moveBy(x, y) {
    this.x += x;
    this.y += y;
    this.draw();
  }

  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.#paint();
      this.beside?.lookAs(this);
    });
  }

  // Looks at the same place as the view beside it, which drew last.
  lookAs({ x, y, zoom, chosen }) {
    if (!this.scene || (this.x === x && this.y === y && this.zoom === zoom && this.chosen === chosen)) return;
    Object.assign(this, { x, y, zoom, chosen });
    this.draw();
  }

  // Where a box is on the screen, for tests and for the card: x and y of its middle.
  screenPlace(key) {
    const box = this.boxAt(key);
    const bounds = this.canvas.getBoundingClientRect();
    return box && { x: bounds.x + this.x + (box.x + box.width / 2) * this.zoom, y: bounds.y + this.y + (box.y + Math.min(box.height / 2, 12)) * this.zoom };
  }

  boxAt(key) {
    return this.scene.boxes.get(key) ?? this.scene.outlines.find((outline) => outline.key === key);
  }

  // The box at a place of the canvas. Of a frame only its title can be pressed: the rest of it is to move the drawing.
  at(x, y) {
    const [left, top] = [(x - this.x) / this.zoom, (y - this.y) / this.zoom];
    const holds = (box) => left >= box.x && left <= box.x + box.width && top >= box.y && top <= box.y + box.height;
    for (const box of this.scene.boxes.values()) if (holds(box)) return box;
    return this.scene.outlines.findLast((outline) => holds(outline) && top <= outline.y + 20);
  }

  press(box) {
    if (!box) return;
    this.chosen = box.key;
    if (box.group) {
      this.toggle(box.group);
      this.onGroup(box.group);
    } else this.onSelect(box);
    this.draw();
  }

  pressChosen() {
    const box = this.chosen && this.boxAt(this.chosen);
    if (!box) return;
    if (this.zoom < LEGIBLE && !box.group) this.#center(box);
    this.press(box);
  }

  walk(by) {
    const order = [...this.scene.boxes.values(), ...this.scene.outlines].sort((a, b) => a.y - b.y || a.x - b.x);
    if (!order.length) return;
    const now = order.findIndex((box) => box.key === this.chosen);
    const box = order[now < 0 ? (by > 0 ? 0 : order.length - 1) : (now + by + order.length) % order.length];
    this.chosen = box.key;
    this.#center(box);
    if (box.group) this.onGroup(box.group);
    else this.onSelect(box);
  }

  #choice = element("select", { "aria-label": "Colour by", title: "Colour by", onchange: (event) => this.onColour(event.target.value) });

  #buttons() {
    this.#choice.append(...colourings(this.picture.program).map((name) => element("option", { value: name }, name === "change" ? "colours: change" : name)));
    const button = (text, title, onclick) => element("button", { type: "button", title, "aria-label": title, onclick }, text);
    return element("div", { class: "tools", role: "toolbar", "aria-label": "Drawing" },
      button("+", "Zoom in (+)", () => this.zoomBy(GESTURES.step)),
      button("−", "Zoom out (−)", () => this.zoomBy(1 / GESTURES.step)),
      button("Fit", "Fit: show all (0)", () => this.fit()),
      button("Open", "Open all groups (o)", () => this.openAll()),
      button("Collapse", "Collapse all groups (c)", () => this.closeAll()),
      this.#compactButton = button("Compact", "Compact: leave no room for boxes of other passes (k)", () => this.toggleCompact()),
      this.#besideButton = button("Before", "Before and after side by side (b)", () => this.onBeside()),
      this.#choice,
      button("SVG", "Save the drawing as SVG", () => this.onSave("svg")),
      button("PNG", "Save the drawing as PNG", () => this.onSave("png")),
      this.legend);
  }

  #openTheOnly(group) {
    while (group.children.size === 1 && group.slots.length === 0) {
      [group] = group.children.values();
      group.keys.forEach((key) => this.open.add(key));
    }
  }

  // Moves a frame into the window; of one that is larger than the window, its uppermost box.
  #bringIn(frame) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const inside = ([...this.scene.boxes.values(), ...this.scene.outlines]).filter((box) => box !== frame && contains(frame, box));
    const first = inside.reduce((best, box) => (best && best.y <= box.y ? best : box), undefined);
    const move = (start, size, room, target, middle) => {
      if (size <= room) return Math.max(start, 12) + Math.min(0, room - Math.max(start, 12) - size) - start;
      return target < 12 || target > room - 80 ? middle - target : 0;
    };
    const left = (box) => this.x + box.x * this.zoom;
    const top = (box) => this.y + box.y * this.zoom;
    this.x += move(left(frame), frame.width * this.zoom, width - 24, left(first ?? frame), width / 2 - ((first ?? frame).width / 2) * this.zoom);
    this.y += move(top(frame), frame.height * this.zoom, height - 24, top(first ?? frame), Math.min(height / 3, 90));
  }

  #center(box) {
    if (!box) return;
    this.zoom = Math.max(this.zoom, LEGIBLE);
    this.x = this.canvas.clientWidth / 2 - (box.x + box.width / 2) * this.zoom;
    this.y = this.canvas.clientHeight / 2 - (box.y + Math.min(box.height, this.canvas.clientHeight * 0.8) / 2) * this.zoom;
    this.draw();
  }

  #goOnMap(event) {
    const { left, top, scale } = this.#mapping();
    this.x = this.canvas.clientWidth / 2 - ((event.offsetX - left) / scale) * this.zoom;
    this.y = this.canvas.clientHeight / 2 - ((event.offsetY - top) / scale) * this.zoom;
    this.draw();
  }

  #mapping() {
    const { width, height } = this.scene;
    const scale = Math.min((MAP.width - 8) / width, (MAP.height - 8) / height);
    return { scale, left: (MAP.width - width * scale) / 2, top: (MAP.height - height * scale) / 2 };
  }

  #paint() {
    const { canvas, scene } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    const colour = palette();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.translate(this.x, this.y);
    pen.scale(this.zoom, this.zoom);
    const seen = { left: -this.x / this.zoom, top: -this.y / this.zoom, right: (width - this.x) / this.zoom, bottom: (height - this.y) / this.zoom };
    paintScene(pen, this, colour, seen);
    // Of what is in view as a whole no map is needed.
    const { left, top, right, bottom } = this.#whole();
    this.map.hidden = seen.left <= left && seen.top <= top && seen.right >= right && seen.bottom >= bottom;
    if (!this.map.hidden) paintMap(this.map.getContext("2d"), this, colour, seen, { ...MAP, ...this.#mapping() });
  }
}

const contains = (frame, box) => box.x >= frame.x && box.y >= frame.y && box.x + box.width <= frame.x + frame.width && box.y + box.height <= frame.y + frame.height;
