// Two programs compared: their figures, their collectives, and the lines whose nodes differ.
import { element, link } from "./elements.js";
import { bytesText, count, shareText, timeText } from "./program.js";
import { lineLink, markRows, table } from "./tables.js";

const WRITE = { "": count, bytes: bytesText, seconds: timeText };

export function comparison(app) {
  const { names, figures, collectives, lines } = app.program.comparison;
  return element("div", { id: "comparison" },
    element("div", { class: "parts" }, figuresOf(names, figures), linesOf(app, lines)),
    collectivesOf(app, names, collectives));
}
comparison.mark = markRows;

function growth(before, after) {
  if (before === after) return "=";
  return before ? `${after > before ? "+" : ""}${shareText(after / before - 1)}` : "new";
}

function figuresOf(names, figures) {
  const head = [["Figure", ""], [names[0], "figure"], [names[1], "figure"], ["Change", "figure"]];
  return table("The two programs", head,
    figures.map(([name, unit, before, after]) => [name, WRITE[unit](before), WRITE[unit](after), growth(before, after)]),
    figures.map(([, , before, after]) => (before === after ? "" : "differs")));
}

function linesOf(app, lines) {
  const head = [["Line", ""], ["Nodes", ""], ["Bytes before", "figure"], ["Bytes now", "figure"]];
  const signs = (numbers) => numbers.map((number, kind) => (number ? `${"+−~!"[kind]}${count(number)}` : "")).filter((text) => text).join(" ");
  return table(lines.length ? "Lines whose nodes differ" : "No node differs", head,
    lines.map(([line, ...figures]) => [lineLink(app, line), signs(figures.slice(0, 4)), bytesText(figures[4]), bytesText(figures[5])]));
}

// A collective leads to its node: in the program now or, if that has none, in the one before.
function collectivesOf(app, names, collectives) {
  const head = [["Is", ""], ["Kind", ""], [`Bytes in ${names[0]}`, "figure"], [`Bytes in ${names[1]}`, "figure"], ["Change", "figure"], ["Node", ""]];
  const node = (position, step) => app.program.graphs[app.program.passes[step].graph].nodes[position];
  const sign = ([, before, after, bytesBefore, bytesAfter]) => (before === null ? "+" : after === null ? "−" : bytesBefore === bytesAfter ? "=" : "!");
  const rows = collectives.map((each) => {
    const [kind, before, after, bytesBefore, bytesAfter] = each;
    const at = after === null ? node(before, 0) : node(after, 1);
    const show = () => {
      app.goTo(1, after ?? undefined);
      if (after === null) app.showBefore(true, before);
    };
    return [sign(each), kind, before === null ? "" : bytesText(bytesBefore), after === null ? "" : bytesText(bytesAfter), before === null || after === null ? "" : growth(bytesBefore, bytesAfter), link(at.id, at.text, show)];
  });
  return table(collectives.length ? "Collectives" : "Neither program has collectives", head, rows, collectives.map((each) => ({ "+": "added", "−": "removed", "!": "changed" })[sign(each)]));
}
