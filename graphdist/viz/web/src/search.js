// The search: a text, or a regular expression, in names, operations, types, scopes, variables and code. Enter goes to the
// next node that is found, Shift and Enter to the one before. Lines of code are listed first.
import { element } from "./elements.js";
import { count, place } from "./program.js";

const LISTED = 50;
const LINES = 8;
// What the user's libraries call an operation.
const ALSO = { "jax.dot_general": "matmul dot einsum", "jax.conv_general_dilated": "convolution", "jax.gather": "take index", "jax.select_n": "where" };

export class Search {
  constructor(app) {
    this.app = app;
    this.found = [];
    this.at = -1;
    this.input = element("input", { id: "search", type: "search", placeholder: "Search  ( / )", "aria-label": "Search names, operations, types, scopes, variables and code", "aria-controls": "found", autocomplete: "off", spellcheck: "false", oninput: () => this.#look(), onkeydown: (event) => this.#key(event) });
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
    this.found = this.#matches(this.#test() ?? (() => false));
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

  // Says whether a text has what is wanted; undefined where the regular expression is none.
  #test() {
    const wanted = this.input.value.trim();
    if (!wanted) return () => false;
    if (this.regex.getAttribute("aria-pressed") !== "true") return (text) => text.toLowerCase().includes(wanted.toLowerCase());
    try {
      const expression = new RegExp(wanted, "iu");
      return (text) => expression.test(text);
    } catch {
      return undefined;
    }
  }

  // Positions of the nodes that match: first those whose operation does, then those whose line does.
  #matches(holds) {
    const { graph, program } = this.app;
    const found = graph.nodes.filter((node) => holds((node.searched ??= textOf(node, program))));
    const rank = new Map(found.map((node) => [node, holds(node.op) ? 0 : holds(node.text) ? 1 : 2]));
    return found.sort((one, other) => rank.get(one) - rank.get(other)).map((node) => node.position);
  }

  // The lines of code with what is wanted, as items of the list.
  #lines(holds) {
    const found = [];
    for (const [file, lines] of Object.entries(this.app.program.files)) {
      for (const [number, text] of lines.entries()) {
        if (found.length === LINES) return found;
        if (!holds(text)) continue;
        const at = place([file, number + 1]);
        found.push(element("li", {}, element("button", { type: "button", class: "code-line", onclick: () => this.#takeLine(file, number + 1) }, element("code", {}, text.trim()), element("span", { class: "hint" }, `  ${at}`))));
      }
    }
    return found;
  }

  #takeLine(file, line) {
    this.list.hidden = true;
    this.app.selectLine(place([file, line]));
    this.app.showSource(file, line);
  }

  #look() {
    const holds = this.#test();
    this.found = holds ? this.#matches(holds) : [];
    this.at = -1;
    this.input.toggleAttribute("aria-invalid", !holds);
    this.list.hidden = !this.input.value.trim();
    const items = this.found.slice(0, LISTED).map((position, number) => {
      const node = this.app.graph.nodes[position];
      return element("li", {}, element("button", { type: "button", onclick: () => this.#take(number) }, element("b", {}, node.id), ` ${node.op} `, element("span", { class: "hint" }, (node.types ?? []).join(", "))));
    });
    if (holds) items.unshift(...this.#lines(holds));
    if (!holds) items.push(element("li", { class: "hint" }, "no regular expression"));
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

function textOf(node, { files }) {
  const frames = (node.source ?? []).map((frame) => `${frame[0]}:${frame[1]} ${frame[2]}`);
  const code = node.source ? files[node.source[0][0]]?.[node.source[0][1] - 1] : "";
  return [node.text, ALSO[node.op], node.scope, node.variable, node.origin, ...frames, code].join(" ");
}
