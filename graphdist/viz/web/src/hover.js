// A card beside the pointer: what the box under it is, in full.
import { element } from "./elements.js";
import { differences, summary } from "./picture.js";
import { bytesText, moved, place, spent, timeText } from "./program.js";

export class HoverCard {
  constructor(id) {
    this.element = element("div", { id, class: "card", role: "tooltip", hidden: true });
  }

  show(view, box, x, y) {
    this.key = box.key;
    this.element.replaceChildren(...[...(box.group ? ofGroup(view, box) : ofNode(box.node)), view.colouring?.say(box)].filter((line) => line).map((line, number) => element("div", { class: number ? "hint" : "head" }, line)));
    this.element.hidden = false;
    const { clientWidth: width, clientHeight: height } = view.canvas;
    this.element.style.left = `${Math.max(4, Math.min(x + 14, width - this.element.offsetWidth - 4))}px`;
    this.element.style.top = `${y + 18 + this.element.offsetHeight > height ? Math.max(4, y - this.element.offsetHeight - 10) : y + 18}px`;
  }

  hide() {
    this.key = undefined;
    this.element.hidden = true;
  }
}

function ofNode(node) {
  return [
    node.text.slice(0, 400),
    node.collective && `${bytesText(moved(node))} from each replica per step${node.times > 1 ? `, in ${node.times} runs` : ""}`,
    node.bytes && `${bytesText(node.bytes)} per replica`,
    spent(node) && `${timeText(spent(node))} by itself`,
    node.scope,
    node.source && place(node.source[0]),
  ];
}

function ofGroup(view, { group }) {
  const { graph } = view.moment;
  const others = group.members ? differences(group, graph).others.slice(0, 5) : [];
  return [
    group.name,
    summary(group, graph),
    group.moved && `${bytesText(group.moved)} from each replica per step`,
    ...others.map(({ member, differs }) => `${member.name}: ${differs.join(", ")}`.slice(0, 200)),
  ];
}
