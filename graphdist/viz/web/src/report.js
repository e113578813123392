// The report on the step compiled for a topology: whether it fits, its predicted time, what became of its collectives.
import { element, link } from "./elements.js";
import { bytesText, count, timeText } from "./program.js";

export function report(app) {
  const { report: found } = app.program;
  return element("div", { id: "report" },
    found.warnings.map((text) => element("p", { class: "lost" }, text)),
    element("div", { class: "parts" }, memory(found), time(found), lines(app, found), held(app, found)),
    compiled(app, found));
}

export const table = (title, head, rows) =>
  element("div", { class: "part", tabindex: 0, role: "group", "aria-label": title }, element("table", {}, element("caption", {}, title),
    head && element("thead", {}, element("tr", {}, head.map(([name, kind]) => element("th", { scope: "col", class: kind }, name)))),
    element("tbody", {}, rows.map((cells) => element("tr", {}, cells.map((cell, column) =>
      element("td", { class: head?.[column][1] ?? (column === 1 ? "figure" : "") }, cell)))))));

function memory({ memory: bytes }) {
  const share = bytes.available ? `${((100 * bytes.peak) / bytes.available).toFixed(1)} % of ${bytesText(bytes.available)}` : "";
  return table("Memory of a device", undefined, [
    ["peak", bytesText(bytes.peak), share],
    ["arguments", bytesText(bytes.arguments), `${bytesText(bytes.reused)} reused for outputs`],
    ["outputs", bytesText(bytes.outputs), ""],
    ["temporary", bytesText(bytes.temporary), ""],
  ]);
}

function time({ time: found, flops }) {
  if (!found) return null;
  const interval = found.low === undefined ? "" : `${timeText(found.low)} to ${timeText(found.high)}`;
  const reached = found.utilization ? ` (${(100 * found.utilization).toFixed(1)} % of the peak)` : "";
  return table("Predicted time of a step, no measurement", undefined, [
    ["step", timeText(found.step), [interval, found.by].filter((text) => text).join(", ")],
    ...found.parts.map(([name, seconds, what]) => [name, timeText(seconds), what]),
    ["operations", `${count(Math.round(flops / 1e9))} GFLOP`, `per device${reached}`],
  ]);
}

const lineLink = (app, line) => (line ? link(line, `The nodes of ${line}`, () => app.selectLine(line)) : "without a line");

function lines(app, { lines: found }) {
  if (!found) return null;
  return table("Lines that compute longest", [["Line", ""], ["Time", "figure"], ["Part", ""]], found.map(([line, phase, seconds]) => [lineLink(app, line), timeText(seconds), phase]));
}

function held(app, { held: found }) {
  if (!found) return null;
  return table(`Held at the peak${found.line && `, ${found.line}`}`, [["Array", ""], ["Bytes", "figure"], ["Line", ""]],
    found.largest.map(([bytes, several, type, phase, line]) => [`${type}${several > 1 ? ` x ${several}` : ""}`, bytesText(bytes), line ? lineLink(app, line) : phase]));
}

function compiled(app, { collectives, compiled: kinds }) {
  const total = kinds.map(([kind, number, bytes]) => `${number} ${kind} of ${bytesText(bytes)}`).join(", ");
  return element("div", {}, table(`Collectives, and what the compiler made of them: ${total || "none"}`,
    [["Kind", ""], ["Bytes", "figure"], ["Times", "figure"], ["Time", "figure"], ["Made by", ""], ["Source", ""], ["Compiled", ""]],
    collectives.map((use) => [use.kind, count(use.bytes), count(use.times), timeText(use.seconds), use.origin || "the program", lineLink(app, use.line), use.became])));
}
