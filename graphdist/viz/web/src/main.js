// The page: which pass, which node, which tab is shown. The address has the same, and nothing else is kept anywhere.
import { Beside } from "./beside.js";
import { addressOf, readAddress, writeAddress } from "./address.js";
import { changes } from "./changes.js";
import { collectives } from "./collectives.js";
import { comparison } from "./comparison.js";
import { copy } from "./copying.js";
import { element } from "./elements.js";
import { GESTURES } from "./gestures.js";
import { GraphView } from "./graph.js";
import { Lanes } from "./lanes.js";
import { memory } from "./memory.js";
import { border } from "./panes.js";
import { groupPanel, linePanel, lostPanel, nothingPanel, panel } from "./panel.js";
import { PassStrip } from "./passes.js";
import { pictureOf } from "./picture.js";
import { follow, marks, nodesOfLine, place, plural, readProgram } from "./program.js";
import { plans } from "./plans.js";
import { report } from "./report.js";
import { save } from "./saving.js";
import { Search } from "./search.js";
import { sources, stepOf } from "./sources.js";
import { verdict } from "./verdict.js";

const ALL_TABS = { comparison: ["Comparison", comparison], source: ["Source", sources], collectives: ["Collectives", collectives], changes: ["Changes", changes], memory: ["Memory", memory], report: ["Report", report], plans: ["Plans", plans] };

class App {
  constructor(program) {
    this.program = program;
    this.step = program.shown ?? program.passes.length - 1;
    this.before = false;
    this.tabs = Object.fromEntries(Object.entries(ALL_TABS).filter(([name]) => (name === "source" ? stepOf(program) : !["report", "comparison", "plans"].includes(name) || program[name])));
    [this.firstTab] = Object.keys(this.tabs);
    this.tab = this.firstTab;
    this.file = stepOf(program)?.file;
    this.view = new GraphView({ picture: pictureOf(program), onSelect: (box) => this.#pressed(box), onGroup: (group) => this.#selectGroup(group), onColour: (name) => this.colourBy(name), onAnnounce: (text) => this.announce(text) });
    const timed = [[program.passes[0].name, program.earlier], ["now", program.report]].filter(([, one]) => one?.lanes);
    if (timed.length) this.lanes = new Lanes(timed, { onLine: (line) => this.selectLine(line), onAnnounce: (text) => this.announce(text) });
    this.beside = new Beside(this.view, { program, onSelect: (box) => this.#pressedBefore(box), onAnnounce: (text) => this.announce(text) });
    this.view.onBeside = () => this.toggleBeside();
    this.view.onSave = (kind) => save(this.view, kind, `${program.name} ${program.passes[this.step].name}`);
    this.search = new Search(this);
    this.strip = new PassStrip(program, (number) => this.goTo(number));
    this.#build();
    this.#restore();
    writeAddress(this.#state(), { replace: true });
    addEventListener("popstate", () => this.#restore());
  }

  get graph() {
    return this.#graphOf(this.before ? this.step - 1 : this.step);
  }

  // Shows a pass; the selected node is followed there, or the given one is selected.
  goTo(step, position) {
    this.showsChanges = true;
    this.step = Math.min(Math.max(step, 0), this.program.passes.length - 1);
    this.before = false;
    if (position !== undefined) [this.origin, this.userLine] = [{ step: this.step, position }, undefined];
    this.group = undefined;
    this.#follow();
    this.#show();
    if (position !== undefined) this.view.reveal(position);
    this.#enter();
    const { name, diff } = this.program.passes[this.step];
    this.announce(`${name}: ${diff ? `${diff.added.length} added, ${diff.removed.length} removed` : "unchanged"}${this.lost ? ", the selected node is not there" : ""}`);
  }

  showBefore(before, position) {
    this.showsChanges = true;
    if (before && this.beside.isShown && position !== undefined) {
      this.beside.other.reveal(position);
      return this.#pressedBefore({ node: this.#graphOf(Math.max(this.step - 1, 0)).nodes[position] });
    }
    this.before = before && this.step > 0;
    if (position === undefined) this.#follow();
    else [this.selected, this.lost, this.origin] = [position, undefined, { step: this.before ? this.step - 1 : this.step, position }];
    this.#show();
    if (position !== undefined) this.select(position, { reveal: true });
  }

  select(position, { reveal = false } = {}) {
    this.selected = position;
    this.lost = this.group = this.userLine = undefined;
    this.origin = { step: this.before ? this.step - 1 : this.step, position };
    if (this.view.marked) this.view.highlight([]);
    if (reveal) this.view.reveal(position);
    else this.view.choose(position);
    this.#showPanel();
    this.#showTab();
    this.#enter();
    this.announce(this.graph.nodes[position].text);
  }

  // Marks the nodes of a line, such as "train.py:41"; of a single node the line is as good as the node.
  selectLine(line, { opens } = {}) {
    const nodes = nodesOfLine(this.graph, line);
    if (opens in this.tabs) this.openTab(opens);
    if (nodes.length === 1) return this.select(nodes[0].position, { reveal: true });
    this.selected = this.lost = this.group = this.origin = undefined;
    this.userLine = line;
    this.#light(nodes.flatMap((node) => node.source).find((frame) => place(frame) === line));
    this.view.choose(undefined);
    this.view.highlight(nodes.map((node) => node.position));
    this.#showPanel();
    this.#showTab();
    this.announce(`${plural(nodes.length, "node")} of ${line}`);
  }

  colourBy(name) {
    this.view.colourBy(name);
    this.#enter();
    this.announce(`coloured by ${this.view.colour}`);
  }

  // Shows the graph before beside the graph after, or no longer.
  toggleBeside(isShown = !this.beside.isShown) {
    this.showsChanges = true;
    this.beside.toggle(isShown);
    this.#show();
    this.view.fit();
    this.#enter();
    this.announce(isShown ? "the graph before is shown beside" : "one graph is shown");
  }

  showSource(file, line) {
    [this.file, this.line] = [file, line];
    this.openTab("source");
  }

  // Marks a line of the source, if its file is at hand.
  #light(frame) {
    if (frame && this.program.files[frame[0]]) [this.file, this.line] = frame;
  }

  sortCollectives(order) {
    this.order = order;
    this.#showTab();
    document.querySelector(`#collectives th[data-column="${order.column}"] button`)?.focus();
  }

  openTab(name) {
    this.#markTab(name);
    if (name === "changes" && !this.showsChanges) {
      this.showsChanges = true;
      this.#show();
    } else this.#showTab();
    this.#enter();
  }

  announce(text) {
    document.getElementById("status").textContent = text.slice(0, 300);
  }

  // The address of what is shown.
  link() {
    return `${location.href.split("#")[0]}${addressOf(this.#state())}`;
  }

  async copyText(text, what) {
    await copy(text);
    this.announce(`copied ${what}`);
  }

  #graphOf(step) {
    return this.program.graphs[this.program.passes[step].graph];
  }

  // Where the node that was selected last is in the graph that is shown now.
  #follow() {
    this.selected = this.lost = undefined;
    if (!this.origin) return;
    const found = follow(this.program, this.origin.step, this.origin.position, this.before ? this.step - 1 : this.step);
    if (found.lost === undefined) this.selected = found.position;
    else this.lost = found;
  }

  #state() {
    return { pass: this.showsChanges && !this.program.comparison ? this.program.passes[this.step].name : undefined, node: this.selected === undefined ? undefined : this.graph.nodes[this.selected].id, tab: this.tab === this.firstTab ? undefined : this.tab, beside: this.beside.isShown === !!this.program.comparison ? undefined : this.beside.isShown ? "yes" : "no", colour: this.view.colour === "change" ? undefined : this.view.colour };
  }

  #enter() {
    if (!this.before && !this.isRestoring) writeAddress(this.#state());
  }

  // Shows what the address says; a name in it that is not there is left out.
  #restore() {
    this.isRestoring = true;
    const { pass, node, tab, colour, beside } = readAddress();
    const step = this.program.passes.findIndex((one) => one.name === pass);
    this.showsChanges = !!this.program.comparison || step >= 0;
    this.step = step >= 0 ? step : (this.program.shown ?? this.program.passes.length - 1);
    this.before = false;
    this.#markTab(tab in this.tabs ? tab : this.firstTab);
    this.beside.toggle(beside ? beside === "yes" : !!this.program.comparison);
    this.view.colourBy(colour);
    this.selected = node === undefined ? undefined : this.graph.byId.get(node);
    this.lost = this.group = this.userLine = undefined;
    this.origin = this.selected === undefined ? undefined : { step: this.step, position: this.selected };
    this.#show();
    if (this.selected !== undefined) this.view.reveal(this.selected);
    this.isRestoring = false;
  }

  #build() {
    const { program } = this;
    const side = border({ name: "side", label: "Width of the panel", controls: "side", across: true, size: 320, least: 160, most: () => innerWidth * 0.7 });
    const dock = border({ name: "dock", label: "Height of the tables", controls: "dock", across: false, size: Math.max(Math.round(innerHeight * 0.5 - (program.comparison ? 220 : 170)), 150), least: 90, most: () => innerHeight * 0.7 });
    const hide = (text, label, pane) => element("button", { type: "button", title: label, "aria-label": label, onclick: () => pane.toggle() }, text);
    document.getElementById("app").replaceChildren(
      element("header", {},
        element("h1", { title: program.name }, program.name),
        element("span", { class: "hint", id: "facts" }),
        this.search.element,
        element("div", { class: "hides" }, hide("◨", "Show or hide the panel", side), hide("⬓", "Show or hide the tables", dock))),
      element("div", { id: "verdict" }),
      this.strip.element,
      element("main", {},
        element("div", { id: "drawings" }, this.view.tools, element("div", { class: "pair" }, this.view.element)),
        side.element,
        element("div", { class: "side" }, element("aside", { id: "side", "aria-label": "Selection", tabindex: 0 }), this.view.map),
        this.lanes?.element, dock.element),
      element("section", { id: "dock", "aria-label": "Tables" },
        element("div", { role: "tablist", "aria-label": "Tables", onkeydown: (event) => this.#tabKey(event) }, Object.entries(this.tabs).map(([name, [title]]) =>
          element("button", { role: "tab", type: "button", id: `tab-${name}`, "aria-controls": "tab", onclick: () => this.openTab(name) }, title))),
        element("div", { id: "tab", role: "tabpanel", tabindex: 0 })),
      element("div", { id: "status", role: "status", "aria-live": "polite" }));
    addEventListener("beforeprint", () => document.querySelectorAll("tbody, ul").forEach((list) => list.growAll?.()));
    document.addEventListener("keydown", (event) => this.#key(event));
    document.getElementById("verdict").replaceWith(verdict(this));
  }

  #show() {
    const { graph, program } = this;
    const step = program.passes[this.step];
    this.strip.show(this.step);
    document.getElementById("facts").textContent = `${plural(program.replicas, "replica")}${program.cores ? ` of ${program.cores} cores` : ""} · ${graph.stage} · ${plural(graph.operations, "node")} · ${plural(graph.collectives.length, "collective")}${this.before ? " · before the pass" : ""}`;
    const isPair = this.beside.isShown;
    const earlier = this.showsChanges && step.diff && !this.before && !isPair ? this.#graphOf(this.step - 1) : undefined;
    this.view.show({ graph, earlier }, this.showsChanges ? marks(step, this.before) : new Map());
    if (isPair) {
      const before = Math.max(this.step - 1, 0);
      this.beside.show(this.#graphOf(before), this.step ? marks(step, true) : new Map(), program.passes[before].name, program.passes[this.before ? before : this.step].name);
    }
    this.view.choose(this.selected);
    if (this.userLine) this.view.highlight(nodesOfLine(graph, this.userLine).map((node) => node.position));
    this.search.again();
    this.#showPanel();
    this.#showTab();
  }

  // A press on a box: the node, or one that the pass removed, which is in the graph before.
  #pressed(box) {
    if (!box.gone) return this.select(box.node.position);
    this.selected = this.group = this.userLine = undefined;
    this.origin = { step: this.step - 1, position: box.node.position };
    this.lost = { lost: this.step, position: box.node.position, step: this.step - 1 };
    this.#showPanel();
  }

  // A press on a box of the graph before: the same node now, or what became of it.
  #pressedBefore({ node }) {
    const before = Math.max(this.step - 1, 0);
    const found = follow(this.program, before, node.position, this.step);
    if (found.lost === undefined) this.select(found.position, { reveal: true });
    else this.#pressed({ node, gone: true });
    this.view.chosen = this.beside.other.chosen;
    this.view.draw();
  }

  #selectGroup(group) {
    this.selected = this.lost = this.origin = this.userLine = undefined;
    this.group = group;
    this.#showPanel();
  }

  #showPanel() {
    const shown = this.selected !== undefined ? panel(this, this.selected) : this.lost ? lostPanel(this, this.lost) : this.group ? groupPanel(this, this.group) : this.userLine ? linePanel(this, this.userLine) : nothingPanel();
    document.getElementById("side").replaceChildren(shown);
    const source = this.selected !== undefined && this.graph.nodes[this.selected].source;
    this.#light(source?.[0]);
    this.lanes?.show(source ? place(source[0]) : this.userLine);
    this.view.draw();
  }

  #markTab(name) {
    this.tab = name;
    for (const tab of document.querySelectorAll("[role=tab]")) {
      tab.setAttribute("aria-selected", String(tab.id === `tab-${name}`));
      tab.tabIndex = tab.id === `tab-${name}` ? 0 : -1;
    }
  }

  #showTab() {
    const panel = document.getElementById("tab");
    const { scrollTop } = panel;
    const [made, shown] = [this.tabs[this.tab][1], [this.tab, this.graph, this.order, this.tab === "source" && this.file]];
    if (made.mark && shown.every((part, number) => part === this.shownTab?.[number])) return made.mark(panel, this);
    this.shownTab = shown;
    panel.setAttribute("aria-labelledby", `tab-${this.tab}`);
    panel.replaceChildren(made(this, this.order));
    if (scrollTop) panel.scrollTop = scrollTop; // it has the browser lay out the table at once
  }

  #tabKey(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const names = Object.keys(this.tabs);
    const next = names[(names.indexOf(this.tab) + by + names.length) % names.length];
    this.openTab(next);
    document.getElementById(`tab-${next}`).focus();
  }

  // The keys work wherever the focus is, but in fields. Arrows and Enter are the drawing's where nothing else has them.
  #key(event) {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const isFree = event.target === this.view.canvas || event.target === document.body;
    if (this.search.keyInList(event) || this.#everywhere(event.key) || (isFree && this.#onDrawing(event.key))) event.preventDefault();
  }

  #everywhere(key) {
    const { view } = this;
    const keys = {
      "/": () => this.search.focus(),
      "[": () => this.goTo(this.step - 1),
      "]": () => this.goTo(this.step + 1),
      "+": () => view.zoomBy(GESTURES.step),
      "=": () => view.zoomBy(GESTURES.step),
      "-": () => view.zoomBy(1 / GESTURES.step),
      0: () => view.fit(),
      o: () => view.openAll(),
      c: () => view.closeAll(),
      k: () => view.toggleCompact(),
      b: () => this.toggleBeside(),
      n: () => view.walk(1),
      p: () => view.walk(-1),
      y: () => this.copyText(this.link(), "the link"),
    };
    keys[key]?.();
    return key in keys;
  }

  #onDrawing(key) {
    const move = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[key];
    if (move) this.view.moveBy(...move);
    else if (key === "Enter" || key === " ") this.view.pressChosen();
    return !!move || key === "Enter" || key === " ";
  }
}

readProgram().then((program) => {
  globalThis.graphdist = new App(program);
}, (error) => {
  document.getElementById("app").textContent = `The program in this page cannot be read: ${error}`;
  throw error;
});
