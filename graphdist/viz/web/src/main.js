// The page: which pass, which node, which tab is shown, and nothing else is kept anywhere.
import { changes } from "./changes.js";
import { collectives } from "./collectives.js";
import { element } from "./elements.js";
import { GraphView } from "./graph.js";
import { memory } from "./memory.js";
import { groupless, panel } from "./panel.js";
import { count, marks, readProgram } from "./program.js";
import { sources } from "./sources.js";

const TABS = { collectives: ["Collectives", collectives], changes: ["Changes", changes], memory: ["Memory", memory], source: ["Source", sources] };
const FOUND = 50;

class App {
  constructor(program) {
    this.program = program;
    this.step = program.passes.length - 1;
    this.before = false;
    this.tab = "collectives";
    this.view = new GraphView({ onSelect: (position) => this.select(position), onAnnounce: (text) => this.announce(text) });
    this.#build();
    this.#show();
  }

  get graph() {
    const step = this.before ? this.step - 1 : this.step;
    return this.program.graphs[this.program.passes[step].graph];
  }

  goTo(step) {
    const kept = this.selected === undefined ? undefined : this.graph.nodes[this.selected];
    this.step = Math.min(Math.max(step, 0), this.program.passes.length - 1);
    this.before = false;
    // Names are given out anew in every pass: one with the same line is the same node.
    const same = this.graph.byId.get(kept?.id);
    this.selected = same !== undefined && this.graph.nodes[same].text === kept.text ? same : undefined;
    this.view.chosen = this.selected === undefined ? undefined : `#${this.selected}`;
    this.#show();
    const { name, diff } = this.program.passes[this.step];
    this.announce(`${name}: ${diff ? `${diff.added.length} added, ${diff.removed.length} removed` : "unchanged"}`);
  }

  showBefore(before, position) {
    this.before = before && this.step > 0;
    this.selected = position;
    this.#show();
    if (position !== undefined) this.select(position, { reveal: true });
  }

  select(position, { reveal = false } = {}) {
    this.selected = position;
    if (reveal) this.view.reveal(position);
    else this.view.chosen = `#${position}`;
    this.#showPanel();
    this.#showTab();
    this.announce(this.graph.nodes[position].text);
  }

  showSource(file, line) {
    [this.file, this.line] = [file, line];
    this.openTab("source");
    document.querySelector("#lines .marked")?.scrollIntoView({ block: "center" });
  }

  sortCollectives(order) {
    this.order = order;
    this.#showTab();
    document.querySelectorAll("#collectives th button")[order.column]?.focus();
  }

  openTab(name) {
    this.tab = name;
    for (const tab of document.querySelectorAll("[role=tab]")) {
      tab.setAttribute("aria-selected", String(tab.id === `tab-${name}`));
      tab.tabIndex = tab.id === `tab-${name}` ? 0 : -1;
    }
    this.#showTab();
  }

  announce(text) {
    document.getElementById("status").textContent = text.slice(0, 300);
  }

  #build() {
    const { program } = this;
    document.getElementById("app").replaceChildren(
      element("header", {},
        element("h1", { title: program.name }, program.name),
        element("span", { class: "hint", id: "facts" }),
        element("div", { class: "search", role: "search" },
          element("input", { id: "search", type: "search", placeholder: "Search names, operations, types, lines  ( / )", "aria-label": "Search", autocomplete: "off", oninput: (event) => this.#search(event.target.value), onkeydown: (event) => this.#searchKey(event) }),
          element("ol", { id: "found", hidden: true, "aria-label": "Found" }))),
      element("nav", { id: "passes", "aria-label": "Passes" }, program.passes.map((step, number) => this.#passButton(step, number))),
      element("main", {}, this.view.element, element("aside", { id: "side" })),
      element("section", { id: "dock" },
        element("div", { role: "tablist", "aria-label": "Tables", onkeydown: (event) => this.#tabKey(event) }, Object.entries(TABS).map(([name, [title]]) =>
          element("button", { role: "tab", type: "button", id: `tab-${name}`, "aria-controls": "tab", "aria-selected": String(name === this.tab), tabindex: name === this.tab ? 0 : -1, onclick: () => this.openTab(name) }, title))),
        element("div", { id: "tab", role: "tabpanel", tabindex: 0 })),
      element("div", { id: "status", role: "status", "aria-live": "polite" }));
    document.addEventListener("keydown", (event) => this.#key(event));
  }

  #passButton(step, number) {
    const { diff } = step;
    const figures = diff ? [element("span", { class: "plus" }, `+${diff.added.length}`), element("span", { class: "minus" }, `−${diff.removed.length}`), element("span", { class: "tilde" }, `~${diff.rewired.length + diff.changed.length}`)] : number ? [element("span", { class: "same" }, "=")] : [];
    return element("button", { type: "button", class: "pass", "data-step": number, onclick: () => this.goTo(number) }, element("span", { class: "name" }, step.name), element("span", { class: "figures" }, figures));
  }

  #show() {
    document.querySelectorAll(".pass").forEach((one, number) => {
      if (number === this.step) one.setAttribute("aria-current", "step");
      else one.removeAttribute("aria-current");
      if (number === this.step) one.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
    const { graph, program } = this;
    document.getElementById("facts").textContent = `${program.replicas} replica${program.replicas > 1 ? "s" : ""} · ${graph.stage} · ${count(graph.nodes.length)} nodes · ${graph.collectives.length} collective${graph.collectives.length === 1 ? "" : "s"}${this.before ? " · before the pass" : ""}`;
    this.view.show(graph, marks(program.passes[this.step], this.before));
    this.#showPanel();
    this.#showTab();
  }

  #showPanel() {
    document.getElementById("side").replaceChildren(this.selected === undefined ? groupless() : panel(this, this.selected));
    this.view.draw();
  }

  #showTab() {
    const place = document.getElementById("tab");
    const { scrollTop } = place;
    place.setAttribute("aria-labelledby", `tab-${this.tab}`);
    place.replaceChildren(TABS[this.tab][1](this, this.order));
    place.scrollTop = scrollTop;
  }

  #search(text) {
    const list = document.getElementById("found");
    const wanted = text.trim().toLowerCase();
    list.hidden = !wanted;
    if (!wanted) return list.replaceChildren();
    const holds = (node) => `${node.text} ${node.scope ?? ""} ${node.variable ?? ""} ${(node.source ?? []).map((one) => `${one[0]}:${one[1]}`).join(" ")}`.toLowerCase().includes(wanted);
    const found = [];
    for (const node of this.graph.nodes) if (holds(node) && found.push(node) > FOUND) break;
    list.replaceChildren(...found.slice(0, FOUND).map((node) =>
      element("li", {}, element("button", { type: "button", onclick: () => this.#take(node) }, element("b", {}, node.id), ` ${node.op} `, element("span", { class: "hint" }, (node.types ?? []).join(", "))))),
      ...(found.length ? [] : [element("li", { class: "hint" }, "nothing found")]),
      ...(found.length > FOUND ? [element("li", { class: "hint" }, "and more")] : []));
  }

  #take(node) {
    document.getElementById("found").hidden = true;
    this.select(node.position, { reveal: true });
    this.view.canvas.focus();
  }

  #searchKey(event) {
    if (event.key === "Enter") document.querySelector("#found button")?.click();
    else if (event.key === "ArrowDown") document.querySelector("#found button")?.focus();
    else if (event.key === "Escape") {
      document.getElementById("found").hidden = true;
      this.view.canvas.focus();
    } else return;
    event.preventDefault();
  }

  #tabKey(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const names = Object.keys(TABS);
    const next = names[(names.indexOf(this.tab) + by + names.length) % names.length];
    this.openTab(next);
    document.getElementById(`tab-${next}`).focus();
  }

  #key(event) {
    const list = event.target.closest?.("#found");
    if (list && ["ArrowDown", "ArrowUp", "Escape"].includes(event.key)) {
      const item = event.target.closest("li");
      const next = event.key === "ArrowDown" ? item.nextElementSibling : event.key === "ArrowUp" ? item.previousElementSibling : null;
      (next?.querySelector("button") ?? document.getElementById("search")).focus();
      if (event.key === "Escape") list.hidden = true;
      event.preventDefault();
      return;
    }
    if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") document.getElementById("search").focus();
    else if (event.key === "[") this.goTo(this.step - 1);
    else if (event.key === "]") this.goTo(this.step + 1);
    else return;
    event.preventDefault();
  }
}

readProgram().then((program) => {
  globalThis.graphdist = new App(program);
}, (error) => {
  document.getElementById("app").textContent = `The program in this page cannot be read: ${error}`;
  throw error;
});
