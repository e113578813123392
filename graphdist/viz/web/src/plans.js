// The plans that a search compared: memory against time, as a picture and as rows.
import { element } from "./elements.js";
import { bytesText, timeText } from "./program.js";
import { table } from "./tables.js";

export function plans(app) {
  const { memory, picture, rows } = app.program.plans;
  return element("div", { id: "plans", class: "parts" },
    element("img", { src: `data:image/svg+xml,${encodeURIComponent(picture)}`, alt: "memory and time of the plans, which the table lists" }),
    table(`Plans for ${bytesText(memory)}, as the search predicted them`,
      [["", ""], ["Step", "figure"], ["Peak", "figure"], ["", ""]],
      rows.map(([name, seconds, bytes, compiled]) => [name, timeText(seconds), bytesText(bytes), compiled ? "compiled" : "by its graph"])));
}
