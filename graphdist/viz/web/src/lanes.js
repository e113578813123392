// The predicted timeline of a step, under the drawing: a lane for what computes and for each kind of transfer, over an
// axis of time. Of two programs both are shown, one above the other, over one axis. A slice is pressed to see the nodes
// of its line. A drag selects a stretch of time and sums it up, Enter or a double click zooms to it. The wheel moves the
// lanes, with Ctrl it zooms, as in the drawing.
import { element, visible } from "./elements.js";
import { HEIGHT, HeldMemory } from "./held.js";
import { penOf } from "./paint.js";
import { bytesText, timeText } from "./program.js";
import { cut, widthOf } from "./text.js";

const ROW = 16;
const AXIS = 17;
const CLOSEST = 5e4;
const APART = 120; // pixels between two times of the axis, at least
const NAMED = 34; // pixels of a slice that has a name
const FONT = "11px system-ui, sans-serif";
const COLOURS = { loops: "line", compute: "lane-compute", links: "collective-line", network: "collective-line" };
const colourOf = ({ name }) => COLOURS[name] ?? "lane-copies";
const seconds = (microseconds) => timeText(microseconds / 1e6);

export class Lanes {
  // `programs` are pairs of a name and a report: the one that is shown last.
  constructor(programs, { onLine, onAnnounce }) {
    Object.assign(this, { onLine, onAnnounce, from: 0, zoom: 1, rows: [], slices: [] });
    for (const [name, report] of programs) this.#add(programs.length > 1 ? name : undefined, report);
    const { time, memory_by_line: held } = programs.at(-1)[1];
    this.time = time;
    this.held = held?.moments.length ? new HeldMemory(held) : undefined;
    this.end = Math.max(...programs.map(([, { time }]) => time.step * 1e6), ...this.slices.map((slice) => slice.start + slice.length));
    this.canvas = element("canvas", { id: "lanes-canvas", tabindex: 0, role: "application", "aria-label": `Predicted timeline of ${timeText(this.time.step)}. Left and right walk through the slices, Enter shows the nodes of a slice's line, plus and minus zoom. A drag sums up a stretch of time.`, style: `height:${this.#bottom + (this.held ? HEIGHT : 0) + 2}px` });
    this.card = element("div", { class: "card", id: "lanes-card", role: "tooltip", hidden: true });
    const { step, low, high } = this.time;
    this.note = element("p", { class: "hint" }, `Predicted, no measurement: ${timeText(step)} per step, ${timeText(low)} to ${timeText(high)}. Red: communication that no computation hides.`);
    this.element = element("section", { id: "lanes", "aria-label": "Predicted timeline" }, this.canvas, this.card, this.note);
    this.#watch();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    matchMedia("print").addEventListener("change", () => this.#paint());
  }

  #add(program, report) {
    const lanes = program ? report.lanes.filter(([track]) => report.tracks[track] !== "loops") : report.lanes; // two have less room
    const used = [...new Set(lanes.map(([track]) => track))].sort((one, other) => one - other);
    if (program) this.rows.push({ title: `${visible(program)}: ${timeText(report.time.step)}` });
    const first = this.rows.length;
    this.rows.push(...used.map((track) => ({ program, name: report.tracks[track] })));
    for (const [track, start, length, title, line, phase, exposed] of lanes) this.slices.push({ row: first + used.indexOf(track), start, length, title, line, phase, exposed: exposed * 1e6 });
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
    const row = Math.floor((y - AXIS) / ROW);
    const time = this.#timeAt(x);
    const near = 2 / this.#scale(); // so that slices thinner than a pixel can be met
    const holds = (slice, by) => slice.row === row && time >= slice.start - by && time <= slice.start + slice.length + by;
    return this.slices.find((slice) => holds(slice, 0)) ?? this.slices.find((slice) => holds(slice, near));
  }

  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.#paint();
    });
  }

  get #bottom() {
    return AXIS + this.rows.length * ROW;
  }

  #heldAt(x, y) {
    return this.held && x >= this.#titles && y > this.#bottom ? this.held.at(this.#timeAt(x), this.#bottom + HEIGHT - y) : undefined;
  }

  // The room of the lanes' names.
  get #titles() {
    return this.#isNarrow ? 84 : 104;
  }

  get #isNarrow() {
    return this.canvas.clientWidth < 500;
  }

  #scale() {
    return ((this.canvas.clientWidth - this.#titles) / this.end) * this.zoom;
  }

  #timeAt(x) {
    return this.from + (x - this.#titles) / this.#scale();
  }

  #placeOf(time) {
    return this.#titles + (time - this.from) * this.#scale();
  }

  #zoomBy(factor, x = this.canvas.clientWidth / 2) {
    const at = this.#timeAt(x);
    this.zoom = Math.min(Math.max(this.zoom * factor, 1), CLOSEST);
    this.#moveTo(at - (x - this.#titles) / this.#scale());
  }

  #moveTo(from) {
    this.from = Math.min(Math.max(from, 0), this.end - this.end / this.zoom);
    this.draw();
  }

  // Zooms to the selected stretch, or back to the whole.
  #zoomToSelected() {
    const [from, to] = this.selected ?? [0, this.end];
    this.zoom = Math.min(Math.max(this.end / Math.max(to - from, 1e-3), 1), CLOSEST);
    this.#moveTo(from);
  }

  #textOf(slice) {
    const exposed = slice.exposed ? `, ${seconds(slice.exposed)} of it not hidden` : "";
    const where = slice.line ? `${slice.line}${slice.phase === "step" ? "" : ` (${slice.phase})`}` : undefined;
    return [`${slice.title}: ${seconds(slice.length)}${exposed}`, where, `from ${seconds(slice.start)}`].filter((text) => text);
  }

  // What is in a stretch of time: each lane's seconds, the line that computes longest, and what nothing hides.
  #sums([from, to]) {
    const found = [`${seconds(to - from)}, from ${seconds(from)}`];
    for (const program of new Set(this.rows.filter((row) => row.name).map((row) => row.program))) {
      const [lanes, lines] = [new Map(), new Map()];
      let exposed = 0;
      const add = (sums, key, amount) => sums.set(key, (sums.get(key) ?? 0) + amount);
      for (const slice of this.slices) {
        const row = this.rows[slice.row];
        const end = slice.start + slice.length;
        const inside = (start) => Math.max(Math.min(end, to) - Math.max(start, from), 0);
        if (row.program !== program || row.name === "loops" || !inside(slice.start)) continue;
        add(lanes, row.name, inside(slice.start));
        if (slice.line && row.name === "compute") add(lines, slice.line, inside(slice.start));
        if (slice.exposed) exposed += inside(end - slice.exposed);
      }
      const most = [...lines].sort(([, one], [, other]) => other - one)[0];
      const ofMost = most ? `, ${seconds(most[1])} of it at ${most[0]}` : "";
      const texts = [...lanes].map(([name, amount]) => `${name} ${seconds(amount)}${name === "compute" ? ofMost : ""}`);
      if (exposed) texts.push(`communication not hidden ${seconds(exposed)}`);
      found.push(`${program ? `${program}: ` : ""}${texts.join("; ") || "nothing"}`);
    }
    return found;
  }

  // Shows texts beside a place of the canvas.
  #tell(texts, x, y) {
    this.card.hidden = !texts;
    if (!texts) return;
    this.card.replaceChildren(...texts.map((text, number) => element("div", { class: number ? "hint" : "head" }, text)));
    this.card.style.left = `${Math.max(4, Math.min(x + 12, this.canvas.clientWidth - this.card.offsetWidth - 4))}px`;
    this.card.style.top = `${y - this.card.offsetHeight - 8}px`; // above: below it are the tables
  }

  #isSelected(x) {
    return !!this.selected && this.#timeAt(x) >= this.selected[0] && this.#timeAt(x) <= this.selected[1];
  }

  #press(slice) {
    this.current = slice;
    if (slice?.line) this.onLine(slice.line);
    this.draw();
  }

  #watch() {
    const { canvas } = this;
    let held;
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.offsetX, time: this.#timeAt(event.offsetX), moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", ({ offsetX: x, offsetY: y }) => {
      if (!held) {
        const [slice, inMemory] = [this.at(x, y), this.#heldAt(x, y)];
        canvas.style.cursor = slice?.line || inMemory?.line?.includes(":") ? "pointer" : "crosshair";
        return this.#tell(inMemory?.texts ?? (slice ? this.#textOf(slice) : this.#isSelected(x) ? this.#sums(this.selected) : undefined), x, y);
      }
      held.moved ||= Math.abs(x - held.x) > 3;
      if (!held.moved) return;
      const times = [held.time, this.#timeAt(x)].map((time) => Math.min(Math.max(time, 0), this.end));
      this.selected = times.sort((one, other) => one - other);
      this.#tell(this.#sums(this.selected), x, y);
      this.draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held?.moved) this.onAnnounce(this.#sums(this.selected).join(". "));
      else if (held) {
        if (!this.#isSelected(event.offsetX)) this.selected = undefined;
        const { line } = this.#heldAt(event.offsetX, event.offsetY) ?? {};
        if (line?.includes(":")) this.onLine(line);
        else this.#press(this.at(event.offsetX, event.offsetY));
      }
      held = undefined;
    });
    canvas.addEventListener("dblclick", (event) => {
      event.preventDefault();
      this.#zoomToSelected();
    });
    canvas.addEventListener("pointercancel", () => (held = undefined));
    canvas.addEventListener("pointerleave", () => this.#tell(undefined));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) this.#zoomBy(Math.exp(-event.deltaY * 0.01), event.offsetX);
      else this.#moveTo(this.from + (event.deltaX || event.deltaY) / this.#scale());
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #key(event) {
    const keys = {
      ArrowRight: () => this.#walk(1), ArrowLeft: () => this.#walk(-1), Enter: () => (this.selected ? this.#zoomToSelected() : this.#press(this.current)),
      "+": () => this.#zoomBy(1.5), "=": () => this.#zoomBy(1.5), "-": () => this.#zoomBy(1 / 1.5), 0: () => this.#zoomBy(1 / CLOSEST),
    };
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault(); // the drawing has the same keys
    keys[event.key]();
  }

  #walk(by) {
    const order = this.slices.filter((slice) => this.rows[slice.row].name !== "loops").sort((a, b) => a.start - b.start);
    const now = order.indexOf(this.current);
    this.selected = undefined;
    this.current = order[now < 0 ? 0 : Math.min(Math.max(now + by, 0), order.length - 1)];
    const { start, length, row } = this.current;
    const [left, right] = [this.from, this.from + this.end / this.zoom];
    if (start < left || start + length > right) this.#moveTo(start - this.end / this.zoom / 3);
    this.#tell(this.#textOf(this.current), this.#placeOf(start), AXIS + row * ROW);
    this.onAnnounce(this.#textOf(this.current).join(", "));
    this.draw();
  }

  #paint() {
    const { pen, width, height, colour } = penOf(this.canvas);
    if (!width) return;
    const titles = this.#titles;
    pen.font = FONT;
    for (const [row, { name, title }] of this.rows.entries()) {
      const y = AXIS + row * ROW;
      pen.fillStyle = colour(title ? "text" : "muted");
      pen.fillText(title ?? cut(name, 1, titles - 12), title ? 4 : 10, y + 12);
      pen.fillStyle = colour("frame-odd");
      if (!title) pen.fillRect(titles, y + 1, width - titles, ROW - 2);
    }
    if (this.held) {
      pen.fillStyle = colour("muted");
      ["memory", `${this.#isNarrow ? "" : "to "}${bytesText(this.held.peak)}`].forEach((text, line) => pen.fillText(cut(text, 1, titles - 12), 10, this.#bottom + 14 + 14 * line));
    }
    pen.beginPath();
    pen.rect(titles, 0, width - titles, height);
    pen.clip();
    this.#paintAxis(pen, colour, width, height);
    this.held?.paint(pen, { placeOf: (time) => this.#placeOf(time), top: this.#bottom, left: titles, right: Math.min(width, this.#placeOf(this.end)), chosen: this.line, colour });
    this.#paintSlices(pen, colour, width);
    this.#paintNames(pen, colour, width);
    if (!this.selected) return;
    const [left, right] = this.selected.map((time) => this.#placeOf(time));
    pen.fillStyle = pen.strokeStyle = colour("accent");
    pen.globalAlpha = 0.2;
    pen.fillRect(left, 0, right - left, height);
    pen.globalAlpha = 1;
    pen.strokeRect(left, 0.5, right - left, height - 1);
  }

  // Times at steps of one, two or five, with lines through the lanes.
  #paintAxis(pen, colour, width, height) {
    const least = APART / this.#scale();
    const power = 10 ** Math.floor(Math.log10(least));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= least);
    for (let number = Math.floor(this.from / step); this.#placeOf(number * step) < width; number++) {
      const x = Math.round(this.#placeOf(number * step)) + 0.5;
      pen.fillStyle = colour("line");
      pen.fillRect(x, 0, 1, height);
      pen.fillStyle = colour("muted");
      const text = number ? seconds(number * step) : "0";
      const room = pen.measureText(text).width + 4;
      pen.fillText(text, x + room > width ? x - room : x + 4, 12);
    }
  }

  #paintSlices(pen, colour, width) {
    const scale = this.#scale();
    const titles = this.#titles;
    const ends = new Map(); // by row and colour, how far it is painted: slices in one pixel are one
    const fill = (name, row, start, length, [top, height] = [1, ROW - 2]) => {
      const [left, right] = [titles + (start - this.from) * scale, titles + (start + length - this.from) * scale];
      const key = `${row}${name}`;
      const end = Math.max(right - (right - left > 3 ? 1 : 0), left + 1);
      if (right < titles || left > width || end <= (ends.get(key) ?? 0)) return;
      ends.set(key, end);
      pen.fillStyle = colour(name);
      pen.fillRect(left, AXIS + row * ROW + top, end - left, height);
    };
    const chosen = [];
    for (const slice of this.slices) {
      if ((this.line && slice.line === this.line) || slice === this.current) chosen.push(slice);
      fill(colourOf(this.rows[slice.row]), slice.row, slice.start, slice.length);
      if (slice.exposed) fill("lane-exposed", slice.row, slice.start + slice.length - slice.exposed, slice.exposed);
    }
    for (const slice of chosen) fill("text", slice.row, slice.start, slice.length, [ROW - 2, 2]); // its name stays above
  }

  // Slices that have room have names; slices of one line that follow one another have the line's.
  #paintNames(pen, colour, width) {
    const runs = new Map(); // by row, the last
    const write = ({ row, start, end, line, text }) => {
      const [left, right] = [Math.max(this.#placeOf(start), this.#titles), Math.min(this.#placeOf(end), width)];
      if (right - left < NAMED) return;
      pen.fillStyle = colour(this.rows[row].name === "loops" ? "text" : "on-lane");
      const [room, number] = [right - left - 8, line && text === line ? text.replace(/^.*:/, ":") : text];
      pen.fillText(cut(widthOf(text, 1) > room ? number : text, 1, room), left + 4, AXIS + row * ROW + 11);
    };
    for (const slice of this.slices) {
      const run = runs.get(slice.row);
      const end = slice.start + slice.length;
      if (run && slice.line && run.line === slice.line && slice.start - run.end < 2 / this.#scale()) Object.assign(run, { end, text: slice.line });
      else {
        if (run) write(run);
        runs.set(slice.row, { row: slice.row, start: slice.start, end, line: slice.line, text: slice.title });
      }
    }
    for (const run of runs.values()) write(run);
  }
}
