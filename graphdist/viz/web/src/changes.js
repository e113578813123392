// What the pass did: a list of nodes added, removed, rewired and changed.
import { element, link } from "./elements.js";
import { grow } from "./growing.js";

export function changes(app) {
  const step = app.program.passes[app.step];
  if (!step.diff) return element("p", { class: "hint" }, app.step ? `${step.name} changed nothing.` : "The program as it is before all passes.");
  const after = app.program.graphs[step.graph].nodes;
  const before = app.program.graphs[app.program.passes[app.step - 1].graph].nodes;
  const line = (kind, sign, text, onclick) =>
    element("li", { class: kind }, element("span", { class: "sign" }, sign), link(text, kind, onclick));
  const items = [
    ...step.diff.removed.map((one) => () => line("removed", "−", before[one].text, () => app.showBefore(true, one))),
    ...step.diff.added.map((one) => () => line("added", "+", after[one].text, () => app.showBefore(false, one))),
    ...["rewired", "changed"].flatMap((kind) => step.diff[kind].map(([, one]) => () => line(kind, kind === "rewired" ? "~" : "!", after[one].text, () => app.showBefore(false, one)))),
  ];
  const { added, removed, rewired, changed, kept } = step.diff;
  return element("div", {},
    element("p", { class: "counts" },
      element("label", {}, element("input", { type: "checkbox", id: "before", checked: app.before, onchange: (event) => app.showBefore(event.target.checked) }), " show the graph before, with what was removed"),
      element("span", { class: "hint" }, `${added.length} added, ${removed.length} removed, ${rewired.length} rewired, ${changed.length} changed, ${kept} kept`)),
    grow(element("ul", { class: "changes" }), items));
}
