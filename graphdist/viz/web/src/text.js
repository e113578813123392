// The texts of the drawing: how wide they are, and how much of one fits.
import { visible } from "./elements.js";

export const FONTS = ["600 13px system-ui, sans-serif", "12px system-ui, sans-serif"];
export const SIZES = [13, 12];
export const LINE = 15;

const pen = document.createElement("canvas").getContext("2d");
const known = new Map();
const LONGEST = 200;

// The width of a line of a box at its own size: the first line is the title.
export function widthOf(text, line) {
  text = visible(text.slice(0, LONGEST));
  const key = `${line ? 1 : 0}${text}`;
  if (!known.has(key)) {
    pen.font = FONTS[line ? 1 : 0];
    known.set(key, pen.measureText(text).width);
  }
  return known.get(key);
}

export function cut(text, line, width) {
  text = visible(text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text);
  if (widthOf(text, line) <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high - 1) {
    const middle = (low + high) >> 1;
    if (widthOf(`${text.slice(0, middle)}…`, line) <= width) low = middle;
    else high = middle;
  }
  return low ? `${text.slice(0, low)}…` : "";
}
