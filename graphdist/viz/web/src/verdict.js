// The sentences at the head of the page, which Python makes (graphdist.report.verdict), and where each leads.
import { element } from "./elements.js";

export function verdict(app) {
  const { graph, program } = app;
  const lead = (title, leads) => {
    const [what, to] = leads.split(" ");
    if (what === "line") return () => app.selectLine(to, { opens: title === "Peak" && program.report?.held ? "memory" : "source" });
    if (what === "collective") return () => app.select(graph.collectives[to], { reveal: true });
    if (what === "exposed") return () => app.lanes?.showExposed() ?? app.openTab("report");
    return app.tabs[what] && (() => app.openTab(what));
  };
  return element("section", { id: "verdict", "aria-label": "Verdict" }, program.verdict.map(({ title, figure, text, leads, kind }) => {
    const parts = text.split(/(?<=\()/).flatMap((part, number) => (number ? [element("wbr"), part] : [part])); // code is broken after "("
    const content = [element("span", {}, title, " ", element("b", {}, figure)), element("span", { class: "says" }, parts)];
    const [onclick, attributes] = [lead(title, leads), { class: `sentence ${kind}`, title: text }];
    return onclick ? element("button", { type: "button", ...attributes, onclick }, content) : element("div", attributes, content);
  }));
}
