// The report on the step compiled for a topology: whether it fits, its predicted time, what became of its collectives.
import { element } from "./elements.js";
import { bytesText, count, flopsText, shareText, timeText } from "./program.js";
import { lineLink, markRows, table } from "./tables.js";

export function report(app) {
  const { report: found } = app.program;
  return element("div", { id: "report" },
    found.warnings.map((text) => element("p", { class: "lost" }, text)),
    element("div", { class: "parts" }, memory(found), time(found), lines(app, found)),
    compiled(app, found));
}
report.mark = markRows;

function memory({ memory: bytes }) {
  return table("Memory of a device", undefined, [
    ["peak", bytesText(bytes.peak), bytes.available ? `${shareText(bytes.peak / bytes.available)} of ${bytesText(bytes.available)}` : ""],
    ["arguments", bytesText(bytes.arguments), `${bytesText(bytes.reused)} reused for outputs`],
    ["outputs", bytesText(bytes.outputs), ""],
    ["temporary", bytesText(bytes.temporary), ""],
  ]);
}

function time({ time: found, flops }) {
  if (!found) return null;
  const interval = found.low === undefined ? "" : `${timeText(found.low)} to ${timeText(found.high)}`;
  return table("Predicted time of a step, no measurement", undefined, [
    ["step", timeText(found.step), [interval, found.by].filter((text) => text).join(", ")],
    ...found.parts.map(([name, seconds, what]) => [name, timeText(seconds), what]),
    ["operations", flopsText(flops), "per device"],
  ]);
}

function lines(app, { lines: found }) {
  if (!found) return null;
  return table("Lines that compute longest", [["Line", ""], ["Time", "figure"], ["Part", ""]], found.map(([line, phase, seconds]) => [lineLink(app, line), timeText(seconds), phase]));
}

function compiled(app, { collectives, compiled: kinds }) {
  const total = kinds.map(([kind, number, bytes]) => `${number} ${kind} of ${bytesText(bytes)}`).join(", ");
  return table(`Collectives, and what the compiler made of them: ${total || "none"}`,
    [["Kind", ""], ["Bytes", "figure"], ["Times", "figure"], ["Time", "figure"], ["Made by", ""], ["Source", ""], ["Compiled", ""]],
    collectives.map((use) => [use.kind, bytesText(use.bytes), count(use.times), timeText(use.seconds), use.origin || "the program", lineLink(app, use.line), use.became]));
}
