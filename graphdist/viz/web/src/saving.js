// The drawing as a file: an SVG of all its boxes, or a PNG of the same.
import { element } from "./elements.js";
import { edgeColour, inkOf, isNear, kindOf, lineOf, paintScene, palette } from "./paint.js";
import { cut, LINE, SIZES } from "./text.js";

const MARGIN = 12;
const MOST_PIXELS = 8192; // a side of a canvas, in all browsers
const SVG = "http://www.w3.org/2000/svg";

export async function save(view, kind, name) {
  const blob = kind === "svg" ? new Blob([svgOf(view)], { type: "image/svg+xml" }) : await pngOf(view);
  const address = URL.createObjectURL(blob);
  const link = element("a", { href: address, download: `${name.replace(/[^\w.-]+/g, "_").slice(0, 80)}.${kind}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function extent({ boxes, outlines }) {
  const all = [...boxes.values(), ...outlines];
  const [x, y] = [Math.min(...all.map((box) => box.x)) - MARGIN, Math.min(...all.map((box) => box.y)) - MARGIN];
  return { x, y, width: Math.max(...all.map((box) => box.x + box.width)) + MARGIN - x, height: Math.max(...all.map((box) => box.y + box.height)) + MARGIN - y };
}

function pngOf(view) {
  const { x, y, width, height } = extent(view.scene);
  const zoom = Math.min(2, MOST_PIXELS / width, MOST_PIXELS / height);
  const canvas = element("canvas", { width: Math.ceil(width * zoom), height: Math.ceil(height * zoom) });
  const pen = canvas.getContext("2d");
  const colour = palette();
  pen.fillStyle = colour("ground");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.scale(zoom, zoom);
  pen.translate(-x, -y);
  paintScene(pen, { ...shownBy(view), zoom: Math.max(zoom, 1) }, colour, { left: x, top: y, right: x + width, bottom: y + height });
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

const shownBy = ({ scene, chosen, highlighted, colouring, markOf, moment, picture }) => ({ scene, chosen, highlighted, colouring, markOf, moment, picture });

function svgOf(view) {
  const colour = palette();
  const { x, y, width, height } = extent(view.scene);
  const rounded = (number) => Math.round(number * 10) / 10;
  const shape = (name, attributes, ...children) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(key, typeof value === "number" ? rounded(value) : value);
    made.append(...children);
    return made;
  };
  const box = (at, fill, stroke, dashes) => shape("rect", { x: at.x, y: at.y, width: at.width, height: at.height, rx: 7, fill: colour(fill), stroke: colour(stroke), "stroke-dasharray": dashes });
  const text = (words, line, left, top, room, fill) => shape("text", { x: left, y: top, fill: colour(fill), "font-size": SIZES[line ? 1 : 0], "font-weight": line ? undefined : 600 }, printable(cut(words, line, room)));
  const drawn = [
    ...view.scene.outlines.flatMap((at) => [box(at, at.depth % 2 ? "frame-odd" : "frame-even", "line"), text(at.code ? `${at.code}  ${at.group.name}` : at.group.name, 0, at.x + 8, at.y + 16, at.width - 16, "muted")]),
    ...view.scene.edges.filter((edge) => !edge.aside || isNear(view, edge)).map((edge) => shape("polyline", {
      points: edge.points.map((point) => `${rounded(point.x)},${rounded(point.y)}`).join(" "), fill: "none", stroke: colour(edgeColour(view, edge)),
      opacity: edge.given && !edge.change ? 0.4 : undefined, "stroke-dasharray": edge.change === "removed" ? "4 4" : undefined, "marker-end": "url(#end)" })),
    ...[...view.scene.boxes.values()].map((at) => shape("g", {},
      shape("title", {}, printable(at.node ? at.node.text.slice(0, 1000) : at.lines.join("\n"))),
      box(at, kindOf(view, at), lineOf(view, at), at.gone ? "4 3" : undefined),
      ...at.lines.map((line, number) => text(line.replace("⊞ ", ""), number, at.x + 9, at.y + 18 + number * LINE, at.width - 16, inkOf(view, at, number))))),
  ];
  const end = shape("marker", { id: "end", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, shape("path", { d: "M0 1L7 4L0 7z", fill: colour("edge") }));
  const root = shape("svg", { viewBox: [x, y, width, height].map(rounded).join(" "), width, height, "font-family": "system-ui, sans-serif" },
    shape("defs", {}, end), shape("rect", { x, y, width, height, fill: colour("ground") }), ...drawn);
  return new XMLSerializer().serializeToString(root);
}

// XML has no control characters, not even as entities.
const printable = (text) => text.replace(/[^\P{C}\n]/gu, "");
