// The predicted timeline of a step, under the drawing: a lane for what computes and for each kind of transfer. A slice
// is pressed to see the nodes of its line. The wheel moves the lanes, with Ctrl it zooms, as in the drawing.
import { element, visible } from "./elements.js";
import { palette } from "./paint.js";
import { timeText } from "./program.js";

const ROW = 15;
const TITLES = 92; // the room of the lanes' names
const CLOSEST = 5e4;
const COLOURS = { loops: "line", compute: "lane-compute", links: "collective-line", network: "collective-line" };

export class Lanes {
  constructor(report, { onLine, onAnnounce }) {
    const [track, start, length, title, line, phase, exposed] = [0, 1, 2, 3, 4, 5, 6];
    this.slices = report.lanes.map((slice) => ({ track: slice[track], start: slice[start], length: slice[length], title: slice[title], line: slice[line], phase: slice[phase], exposed: slice[exposed] * 1e6 }));
    const used = new Set(this.slices.map((slice) => slice.track));
    this.tracks = report.tracks.map((name, number) => ({ name, number })).filter(({ number }) => used.has(number));
    this.rowOf = new Map(this.tracks.map(({ number }, row) => [number, row]));
    this.time = report.time;
    this.end = Math.max(this.time.step * 1e6, ...this.slices.map((slice) => slice.start + slice.length));
    Object.assign(this, { onLine, onAnnounce, from: 0, zoom: 1, line: undefined });
    this.canvas = element("canvas", { id: "lanes-canvas", tabindex: 0, role: "application", "aria-label": `Predicted timeline of ${timeText(this.time.step)}. Left and right walk through the slices, Enter shows the nodes of a slice's line, plus and minus zoom.`, style: `height:${this.tracks.length * ROW + 2}px` });
    this.note = element("p", { class: "hint" });
    this.element = element("section", { id: "lanes", "aria-label": "Predicted timeline" }, this.canvas, this.note);
    this.#watch();
    this.#say();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  // Marks the slices of a line of the user's.
  show(line) {
    if (line === this.line) return;
    this.line = line;
    this.draw();
  }

  // Chooses the slice that waits longest for communication; says whether there is one.
  showExposed() {
    const longest = this.slices.reduce((most, slice) => (slice.exposed > (most?.exposed ?? 0) ? slice : most), undefined);
    if (longest) this.#press(longest);
    return !!longest || undefined;
  }

  // The slice at a place of the canvas.
  at(x, y) {
    const row = Math.floor(y / ROW);
    const time = this.#timeAt(x);
    const near = 2 / this.#scale(); // so that slices thinner than a pixel can be met
    return this.slices.find((slice) => this.rowOf.get(slice.track) === row && time >= slice.start && time <= slice.start + slice.length)
      ?? this.slices.find((slice) => this.rowOf.get(slice.track) === row && time >= slice.start - near && time <= slice.start + slice.length + near);
  }

  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.#paint();
    });
  }

  #scale() {
    return ((this.canvas.clientWidth - TITLES) / this.end) * this.zoom;
  }

  #timeAt(x) {
    return this.from + (x - TITLES) / this.#scale();
  }

  #zoomBy(factor, x = this.canvas.clientWidth / 2) {
    const at = this.#timeAt(x);
    this.zoom = Math.min(Math.max(this.zoom * factor, 1), CLOSEST);
    this.#moveTo(at - (x - TITLES) / this.#scale());
  }

  #moveTo(from) {
    this.from = Math.min(Math.max(from, 0), this.end - this.end / this.zoom);
    this.draw();
  }

  #say(slice) {
    if (!slice) {
      const { step, low, high } = this.time;
      this.note.textContent = `Predicted, no measurement: ${timeText(step)} per step, ${timeText(low)} to ${timeText(high)}. Red: communication that no computation hides.`;
      return;
    }
    const exposed = slice.exposed ? `, ${timeText(slice.exposed / 1e6)} of it not hidden` : "";
    const where = slice.line ? `, ${slice.line}${slice.phase === "step" ? "" : ` (${slice.phase})`}` : "";
    this.note.textContent = visible(`${slice.title}: ${timeText(slice.length / 1e6)}${exposed}${where}`);
  }

  #press(slice) {
    this.current = slice;
    this.#say(slice);
    if (slice?.line) this.onLine(slice.line);
    this.draw();
  }

  #watch() {
    const { canvas } = this;
    let held;
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.offsetX, from: this.from, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) {
        const slice = this.at(event.offsetX, event.offsetY);
        canvas.style.cursor = slice?.line ? "pointer" : "default";
        return this.#say(slice);
      }
      held.moved ||= Math.abs(event.offsetX - held.x) > 3;
      if (held.moved) this.#moveTo(held.from - (event.offsetX - held.x) / this.#scale());
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held && !held.moved) this.#press(this.at(event.offsetX, event.offsetY));
      held = undefined;
    });
    canvas.addEventListener("pointercancel", () => (held = undefined));
    canvas.addEventListener("pointerleave", () => this.#say(this.current));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) this.#zoomBy(Math.exp(-event.deltaY * 0.01), event.offsetX);
      else this.#moveTo(this.from + (event.deltaX || event.deltaY) / this.#scale());
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #key(event) {
    const keys = {
      ArrowRight: () => this.#walk(1), ArrowLeft: () => this.#walk(-1), Enter: () => this.#press(this.current),
      "+": () => this.#zoomBy(1.5), "=": () => this.#zoomBy(1.5), "-": () => this.#zoomBy(1 / 1.5), 0: () => this.#zoomBy(1 / CLOSEST),
    };
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault(); // the drawing has the same keys
    keys[event.key]();
  }

  #walk(by) {
    const order = this.slices.filter((slice) => this.tracks[this.rowOf.get(slice.track)].name !== "loops").sort((a, b) => a.start - b.start);
    const now = order.indexOf(this.current);
    this.current = order[now < 0 ? 0 : Math.min(Math.max(now + by, 0), order.length - 1)];
    const { start, length } = this.current;
    const [left, right] = [this.from, this.from + this.end / this.zoom];
    if (start < left || start + length > right) this.#moveTo(start - this.end / this.zoom / 3);
    this.#say(this.current);
    this.onAnnounce(this.note.textContent);
    this.draw();
  }

  #paint() {
    const { canvas } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    const pen = canvas.getContext("2d");
    const colour = palette();
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    for (const [row, { name }] of this.tracks.entries()) {
      pen.fillStyle = colour("muted");
      pen.fillText(name, 10, row * ROW + 12);
      pen.fillStyle = colour("frame-odd");
      pen.fillRect(TITLES, row * ROW + 1, width - TITLES, ROW - 2);
    }
    pen.beginPath();
    pen.rect(TITLES, 0, width - TITLES, height);
    pen.clip();
    this.#paintSlices(pen, colour, width);
  }

  #paintSlices(pen, colour, width) {
    const scale = this.#scale();
    const ends = new Map(); // by row and colour, how far it is painted: slices in one pixel are one
    const fill = (name, row, start, length) => {
      const [left, right] = [TITLES + (start - this.from) * scale, TITLES + (start + length - this.from) * scale];
      const key = `${row}${name}`;
      const end = Math.max(right - (right - left > 3 ? 1 : 0), left + 1);
      if (right < TITLES || left > width || end <= (ends.get(key) ?? 0)) return;
      ends.set(key, end);
      pen.fillStyle = colour(name);
      pen.fillRect(left, row * ROW + 1, end - left, ROW - 2);
    };
    const chosen = [];
    for (const slice of this.slices) {
      const row = this.rowOf.get(slice.track);
      if ((this.line && slice.line === this.line) || slice === this.current) chosen.push(slice);
      fill(COLOURS[this.tracks[row].name] ?? "changed-line", row, slice.start, slice.length);
      if (slice.exposed) fill("removed-line", row, slice.start + slice.length - slice.exposed, slice.exposed);
    }
    for (const slice of chosen) fill("text", this.rowOf.get(slice.track), slice.start, slice.length);
  }
}
