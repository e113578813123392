// Two programs compared: their figures, their collectives, and the lines whose nodes differ.
import { element, link } from "./elements.js";
import { bytesText, count, timeText } from "./program.js";

const SHOWN = 300;
const WRITE = { "": count, bytes: bytesText, seconds: timeText };

export function comparison(app) {
  const { names, figures, collectives, lines } = app.program.comparison;
  return element("div", { id: "comparison" },
    element("div", { class: "parts" }, figuresOf(names, figures), linesOf(app, lines)),
    collectivesOf(app, names, collectives));
}

const table = (title, head, rows, more) =>
  element("div", { class: "part", tabindex: 0, role: "group", "aria-label": title }, element("table", {}, element("caption", {}, title),
    element("thead", {}, element("tr", {}, head.map(([name, kind]) => element("th", { scope: "col", class: kind ?? "" }, name)))),
    element("tbody", {}, rows)), more > 0 ? element("p", { class: "hint" }, `and ${more} more`) : null);
const row = (cells, head, kind = "") => element("tr", { class: kind }, cells.map((cell, column) => element("td", { class: head[column][1] ?? "" }, cell)));

function growth(before, after) {
  if (before === after) return "=";
  if (!before) return "new";
  const by = (100 * (after - before)) / before;
  return `${by > 0 ? "+" : "−"}${Math.abs(by) < 0.1 ? "<0.1" : Math.abs(by).toPrecision(3).replace(/\.0+$/, "")} %`;
}

function figuresOf(names, figures) {
  const head = [["Figure", ""], [names[0], "figure"], [names[1], "figure"], ["Change", "figure"]];
  return table("The two programs", head, figures.map(([name, unit, before, after]) =>
    row([name, WRITE[unit](before), WRITE[unit](after), growth(before, after)], head, before === after ? "" : "differs")));
}

function linesOf(app, lines) {
  const head = [["Line", ""], ["Nodes", ""], ["Bytes before", "figure"], ["Bytes now", "figure"]];
  const signs = (numbers) => numbers.map((number, kind) => (number ? `${"+−~!"[kind]}${count(number)}` : "")).filter((text) => text).join(" ");
  return table(lines.length ? "Lines whose nodes differ" : "No node differs", head, lines.slice(0, SHOWN).map(([place, ...figures]) =>
    row([place ? link(place, `The nodes of ${place}`, () => app.selectLine(place)) : "without a line", signs(figures.slice(0, 4)), bytesText(figures[4]), bytesText(figures[5])], head)), lines.length - SHOWN);
}

// A collective leads to its node: in the program now or, if that has none, in the one before.
function collectivesOf(app, names, collectives) {
  const head = [["Is", ""], ["Kind", ""], [`Bytes in ${names[0]}`, "figure"], [`Bytes in ${names[1]}`, "figure"], ["Change", "figure"], ["Node", ""]];
  const node = (position, step) => app.program.graphs[app.program.passes[step].graph].nodes[position];
  const rows = collectives.slice(0, SHOWN).map(([kind, before, after, bytesBefore, bytesAfter]) => {
    const sign = before === null ? "+" : after === null ? "−" : bytesBefore === bytesAfter ? "=" : "!";
    const at = after === null ? node(before, 0) : node(after, 1);
    const show = () => {
      app.goTo(1, after ?? undefined);
      if (after === null) app.showBefore(true, before);
    };
    return row([sign, kind, before === null ? "" : count(bytesBefore), after === null ? "" : count(bytesAfter), before === null || after === null ? "" : growth(bytesBefore, bytesAfter), link(at.id, at.text, show)], head, { "+": "added", "−": "removed", "!": "changed" }[sign] ?? "");
  });
  return table(collectives.length ? "Collectives" : "Neither program has collectives", head, rows, collectives.length - SHOWN);
}
