// The search: a text, or a regular expression, in names, operations, types, scopes and lines. Enter goes to the next
// find, Shift and Enter to the one before.
import { element } from "./elements.js";
import { count } from "./program.js";

const LISTED = 50;

export class Search {
  constructor(app) {
    this.app = app;
    this.found = [];
    this.at = -1;
    this.input = element("input", { id: "search", type: "search", placeholder: "Search  ( / )", "aria-label": "Search names, operations, types, scopes and lines", "aria-controls": "found", autocomplete: "off", spellcheck: "false", oninput: () => this.#look(), onkeydown: (event) => this.#key(event) });
    this.regex = element("button", { id: "regex", type: "button", title: "Regular expression", "aria-label": "Regular expression", "aria-pressed": "false", onclick: () => this.#toggle() }, ".*");
    this.figure = element("span", { id: "figure", class: "hint", "aria-live": "polite" });
    this.list = element("ol", { id: "found", hidden: true, "aria-label": "Found" });
    const step = (text, label, by) => element("button", { type: "button", title: label, "aria-label": label, onclick: () => this.go(by) }, text);
    this.element = element("div", { class: "search", role: "search" }, this.input, this.regex, step("‹", "Previous find", -1), step("›", "Next find", 1), this.figure, this.list);
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  // Another graph is shown: the finds are those in it.
  again() {
    if (!this.input.value.trim()) return;
    this.found = this.#matches();
    this.at = this.found.indexOf(this.app.selected);
    this.list.hidden = true;
    this.#tell();
  }

  go(by) {
    if (!this.found.length) return;
    this.at = this.at < 0 && by < 0 ? this.found.length - 1 : (this.at + by + this.found.length) % this.found.length;
    this.list.hidden = true;
    this.app.select(this.found[this.at], { reveal: true });
    this.#tell();
  }

  #toggle() {
    this.regex.setAttribute("aria-pressed", String(this.regex.getAttribute("aria-pressed") !== "true"));
    this.#look();
    this.input.focus();
  }

  // Positions of the nodes that match; undefined where the regular expression is none.
  #matches() {
    const wanted = this.input.value.trim();
    if (!wanted) return [];
    let holds = (text) => text.toLowerCase().includes(wanted.toLowerCase());
    if (this.regex.getAttribute("aria-pressed") === "true") {
      try {
        const expression = new RegExp(wanted, "iu");
        holds = (text) => expression.test(text);
      } catch {
        return undefined;
      }
    }
    return this.app.graph.nodes.filter((node) => holds(textOf(node))).map((node) => node.position);
  }

  #look() {
    const matches = this.#matches();
    this.found = matches ?? [];
    this.at = -1;
    this.input.toggleAttribute("aria-invalid", matches === undefined);
    this.list.hidden = !this.input.value.trim();
    const items = this.found.slice(0, LISTED).map((position, number) => {
      const node = this.app.graph.nodes[position];
      return element("li", {}, element("button", { type: "button", onclick: () => this.#take(number) }, element("b", {}, node.id), ` ${node.op} `, element("span", { class: "hint" }, (node.types ?? []).join(", "))));
    });
    if (matches === undefined) items.push(element("li", { class: "hint" }, "no regular expression"));
    else if (!items.length) items.push(element("li", { class: "hint" }, "nothing found"));
    if (this.found.length > LISTED) items.push(element("li", { class: "hint" }, `and ${count(this.found.length - LISTED)} more`));
    this.list.replaceChildren(...items);
    this.#tell();
  }

  #tell() {
    const found = this.input.value.trim() ? `${this.at < 0 ? "" : `${count(this.at + 1)} of `}${count(this.found.length)}` : "";
    this.figure.textContent = found;
  }

  #take(number) {
    this.at = number - 1;
    this.go(1);
    this.app.view.canvas.focus();
  }

  #key(event) {
    if (event.key === "Enter") this.go(event.shiftKey ? -1 : 1);
    else if (event.key === "ArrowDown") this.list.querySelector("button")?.focus();
    else if (event.key === "Escape") {
      this.list.hidden = true;
      this.app.view.canvas.focus();
    } else return;
    event.preventDefault();
  }

  // Arrows in the list of finds; says whether the key was one of them.
  keyInList(event) {
    if (!event.target.closest?.("#found") || !["ArrowDown", "ArrowUp", "Escape"].includes(event.key)) return false;
    const item = event.target.closest("li");
    const next = { ArrowDown: item.nextElementSibling, ArrowUp: item.previousElementSibling }[event.key];
    (next?.querySelector("button") ?? this.input).focus();
    if (event.key === "Escape") this.list.hidden = true;
    return true;
  }
}

const textOf = (node) => `${node.text} ${node.scope ?? ""} ${node.variable ?? ""} ${node.origin ?? ""} ${(node.source ?? []).map((frame) => `${frame[0]}:${frame[1]}`).join(" ")}`;
