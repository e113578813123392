// The borders between the drawing, the panel beside it and the dock below: they are moved by the pointer or by arrow
// keys, and hide what they border on with Enter or a double click.
import { element } from "./elements.js";

const STEP = 24;

// `name` is the property of the style with the size of the pane, which is to the right of the border or below it.
export function border({ name, label, controls, across, size, least, most }) {
  const root = document.documentElement;
  let shown = size;
  const bar = element("div", { class: `border ${across ? "across" : "along"}`, role: "separator", tabindex: 0, "aria-label": label, "aria-controls": controls, "aria-orientation": across ? "vertical" : "horizontal", "aria-valuemin": 0, title: `${label}: drag it, or double click to hide` });
  const set = (wanted) => {
    const value = wanted < least / 2 ? 0 : Math.round(Math.min(Math.max(wanted, least), most()));
    if (value) shown = value;
    root.style.setProperty(`--${name}`, `${value}px`);
    document.getElementById(controls)?.toggleAttribute("inert", value === 0);
    bar.setAttribute("aria-valuenow", value);
    bar.setAttribute("aria-valuemax", Math.round(most()));
    bar.toggleAttribute("data-hidden", value === 0);
  };
  const now = () => Number(bar.getAttribute("aria-valuenow"));
  const toggle = () => set(now() ? 0 : shown);
  bar.addEventListener("pointerdown", (event) => {
    const [start, from] = [across ? event.clientX : event.clientY, now()];
    bar.setPointerCapture(event.pointerId);
    const move = (moved) => set(from + start - (across ? moved.clientX : moved.clientY));
    bar.addEventListener("pointermove", move);
    bar.addEventListener("pointerup", () => bar.removeEventListener("pointermove", move), { once: true });
  });
  bar.addEventListener("dblclick", toggle);
  bar.addEventListener("keydown", (event) => {
    const by = { [across ? "ArrowLeft" : "ArrowUp"]: STEP, [across ? "ArrowRight" : "ArrowDown"]: -STEP }[event.key];
    if (by) set(now() + by);
    else if (event.key === "Enter") toggle();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  set(size);
  return { element: bar, set, toggle };
}
