// The memory held over a step, under the lanes of its timeline: a band for each of the user's lines, one upon the other,
// so that they add up to what is held. Of moments in one pixel the one is shown that holds most.
import { bytesText } from "./program.js";
import { cut } from "./text.js";

export const HEIGHT = innerHeight < 800 ? 48 : 84;
const KINDS = 8; // colours
const NAMED = 12; // pixels of a band that has a name
const sum = (parts) => parts.reduce((all, bytes) => all + bytes, 0);

export class HeldMemory {
  constructor({ lines, moments }) {
    this.lines = lines;
    this.moments = moments.map(([start, ...parts]) => ({ start, parts, total: sum(parts), top: sum(parts.filter((bytes) => bytes > 0)) }));
    this.most = Math.max(...this.moments.map(({ top }) => top));
    this.peak = Math.max(...this.moments.map(({ total }) => total));
  }

  // What is held at a time: the line whose band is at a height, from the bottom, and the largest parts.
  at(time, height) {
    const { parts, total } = this.moments.findLast(({ start }) => start <= time) ?? this.moments[0];
    let base = 0;
    const number = parts.findIndex((bytes) => bytes > 0 && (base += bytes) / this.most >= height / HEIGHT);
    const largest = parts.map((bytes, each) => [bytes, this.lines[each]]).filter(([bytes]) => bytes).sort(([one], [other]) => Math.abs(other) - Math.abs(one));
    const texts = largest.map(([bytes, line]) => `${line === this.lines[number] ? "▸ " : ""}${bytesText(bytes)}  ${line}`);
    return { line: this.lines[number], texts: [`${bytesText(total)} held, at most ${bytesText(this.peak)}`, ...texts] };
  }

  paint(pen, { placeOf, top, left, right, chosen, colour }) {
    const names = this.lines.map(() => ({ room: 0 }));
    const bottom = top + HEIGHT;
    for (const { x, until, parts } of this.#columns(placeOf, left, right)) {
      let y = bottom;
      parts.forEach((bytes, number) => {
        if (bytes <= 0) return;
        const height = (bytes / this.most) * (HEIGHT - 2);
        y -= height;
        pen.fillStyle = colour(this.lines[number] === chosen ? "rewired-line" : `kind-${(number % KINDS) + 1}`);
        pen.fillRect(x, y, until - x, height);
        const name = names[number];
        if (height >= NAMED && name.until === x && Math.abs(name.y - y) < height / 2) Object.assign(name, { until, y: Math.max(name.y, y) });
        else if (height >= NAMED && !(name.until - name.x > 90)) Object.assign(name, { x, until, y });
      });
    }
    for (const [number, { x, until, y }] of names.entries()) {
      pen.fillStyle = colour(this.lines[number] === chosen ? "surface" : "text");
      if (until - x > 40) pen.fillText(cut(this.lines[number], 1, until - x - 8), x + 4, y + 11);
    }
  }

  // The moments as stretches of the canvas, at least a pixel wide.
  #columns(placeOf, left, right) {
    const found = [];
    this.moments.forEach(({ start, parts, top }, number) => {
      const [x, until] = [Math.max(placeOf(start), left), Math.min(number + 1 < this.moments.length ? placeOf(this.moments[number + 1].start) : right, right)].map(Math.round);
      if (until <= left || x >= right) return;
      const last = found.at(-1);
      if (last && x - last.x < 1) Object.assign(last, { until }, top > last.top && { parts, top });
      else found.push({ x: last ? last.until : x, until, parts, top });
    });
    return found;
  }
}
