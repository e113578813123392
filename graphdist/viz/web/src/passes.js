// The strip of passes: what each did, the shown one marked. Passes in a row that changed nothing fold to one button.
import { element } from "./elements.js";

export class PassStrip {
  constructor(program, onPass) {
    this.unfolded = new Set(); // the first passes of runs that were pressed
    this.buttons = program.passes.map((step, number) => button(step, number, onPass));
    this.runs = runsOf(program.passes);
    this.element = element("nav", { id: "passes", "aria-label": "Passes" }, this.buttons);
    for (const run of this.runs) {
      run.fold = element("button", { type: "button", class: "fold", title: "Show these passes", onclick: () => this.#unfold(run) }, `${run.passes.length} passes`, element("span", { class: "figures" }, "no change"));
      this.buttons[run.passes[0]].before(run.fold);
    }
  }

  // Marks the shown pass; it is not folded away.
  show(current) {
    this.current = current;
    for (const { passes, fold } of this.runs) {
      const folded = !passes.includes(current) && !this.unfolded.has(passes[0]);
      fold.hidden = !folded;
      for (const number of passes) this.buttons[number].hidden = folded;
    }
    this.buttons.forEach((button, number) => {
      if (number === current) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
    });
    this.buttons[current].scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  #unfold({ passes }) {
    this.unfolded.add(passes[0]);
    this.show(this.current);
    this.buttons[passes[0]].focus();
  }
}

function button(step, number, onPass) {
  const { diff } = step;
  const figures = diff ? [element("span", { class: "plus" }, `+${diff.added.length}`), element("span", { class: "minus" }, `−${diff.removed.length}`), element("span", { class: "tilde" }, `~${diff.rewired.length + diff.changed.length}`)] : number ? [element("span", { class: "same" }, "=")] : [];
  return element("button", { type: "button", class: "pass", "data-step": number, onclick: () => onPass(number) }, element("span", { class: "name" }, step.name), element("span", { class: "figures" }, figures));
}

// Two and more passes in a row without a change; the first graph and the last pass are always there.
function runsOf(passes) {
  const runs = [];
  passes.forEach((step, number) => {
    if (step.diff || number === 0 || number === passes.length - 1) return;
    const last = runs.at(-1);
    if (last?.passes.at(-1) === number - 1) last.passes.push(number);
    else runs.push({ passes: [number] });
  });
  return runs.filter((run) => run.passes.length > 1);
}
