// Two drawings side by side: the graph before a pass (or an earlier program) at the left, the graph after it at the
// right. Both have one layout, the same groups open and the same view, so that what moves in one moves in the other.
import { element, visible } from "./elements.js";
import { GraphView } from "./graph.js";
import { pictureOf } from "./picture.js";

export class Beside {
  constructor(view, { program, onSelect, onAnnounce }) {
    this.view = view;
    this.title = element("span", { class: "caption" });
    this.now = element("span", { class: "caption", hidden: true });
    // A picture of its own: a picture has the figures of one graph at a time.
    this.make = () => new GraphView({ picture: pictureOf(program), name: "earlier", label: "Graph before. ", onSelect, onGroup: () => {}, onAnnounce });
    view.element.append(this.now);
  }

  get isShown() {
    return !!this.other && !this.other.element.hidden;
  }

  toggle(isShown) {
    if (isShown && !this.other) this.#begin();
    if (this.other) this.other.element.hidden = !isShown;
    this.now.hidden = !isShown;
    this.view.beside = isShown ? this.other : undefined;
  }

  // Shows the graph before; both have their names.
  show(graph, marks, before, now) {
    this.title.textContent = visible(before);
    this.now.textContent = visible(now);
    this.other.open = this.view.open;
    this.other.isCompact = this.view.isCompact;
    this.other.show({ graph }, marks);
    this.view.draw();
  }

  #begin() {
    this.other = this.make();
    this.other.beside = this.view;
    this.other.open = this.view.open;
    this.other.element.append(this.title);
    this.view.element.before(this.other.element);
  }
}
