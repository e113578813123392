// The first thing that is read: whether the step fits, its time, its largest collective, its peak of memory, its slowest
// line, and what would help most. Each sentence leads to what it says. Without a topology they are by the graph alone.
import { element } from "./elements.js";
import { bytesText, count, moved, place, timeText } from "./program.js";

const NOTABLE = 0.05; // of the step: what takes less is no suggestion

export function verdict(app) {
  const { report } = app.program;
  const sentences = [...(report?.time ? [fits, time] : [report ? fits : unknown]), collective, peak, slowest, suggestion];
  return element("section", { id: "verdict", "aria-label": "Verdict" }, sentences.map((sentence) => {
    const { title, figure, text, onclick, kind = "" } = sentence(app);
    const content = [element("span", {}, title, " ", element("b", {}, figure)), element("span", { class: "says" }, text)];
    return onclick ? element("button", { type: "button", class: `sentence ${kind}`, title: text, onclick }, content) : element("div", { class: `sentence ${kind}` }, content);
  }));
}

const share = (part, whole) => `${((100 * part) / whole).toPrecision(2)} %`;

function unknown({ program }) {
  const name = program.replicas === 1 ? "one replica" : `${count(program.replicas)} replicas`;
  const text = program.topology ? `${program.topology}: this graph is not compiled` : `for ${name} without a topology: --topology v5e:2x4 predicts memory and time`;
  return { title: "Fits?", figure: "not known", text };
}

function fits(app) {
  const { report, topology } = app.program;
  const { peak, available } = report.memory;
  const text = available ? `${bytesText(peak)} of the ${bytesText(available)} of a device, ${share(peak, available)}` : report.verdict;
  return { title: report.fits ? "Fits" : "Does not fit", figure: topology ?? report.target, text: report.fits || !available ? text : `${text}: ${bytesText(peak - available)} too much`, kind: report.fits ? "fits" : "refused", onclick: () => app.openTab("report") };
}

function time(app) {
  const { step, low, high, parts } = app.program.report.time;
  const exposed = parts.find(([name]) => name === "exposed")[1];
  return { title: "Step", figure: timeText(step), text: `predicted, ${timeText(low)} to ${timeText(high)}; ${timeText(exposed)} (${share(exposed, step)}) is communication that nothing hides`, onclick: () => app.lanes?.showExposed() ?? app.openTab("report") };
}

function collective(app) {
  const { graph } = app;
  const largest = graph.collectives.map((position) => graph.nodes[position]).sort((one, other) => moved(other) - moved(one))[0];
  const servers = app.program.servers ?? [];
  if (!largest && servers.length) {
    const [first] = [...servers].sort((one, other) => other.bytes - one.bytes);
    const all = servers.reduce((sum, { bytes }) => sum + bytes, 0);
    return { title: "Largest request", figure: bytesText(first.bytes), text: `${first.kind} of ${first.variables.join(", ")}, ${first.place}; all ${count(servers.length)} move ${bytesText(all)} a step`, onclick: () => app.openTab("collectives") };
  }
  if (!largest) return { title: "Collectives", figure: "none", text: "the replicas need nothing of each other" };
  const several = graph.collectives.length;
  const line = largest.source ? `, ${place(largest.source[0])}` : "";
  const all = graph.collectives.reduce((sum, position) => sum + moved(graph.nodes[position]), 0);
  return { title: "Largest collective", figure: bytesText(moved(largest)), text: `${largest.op}${line}, by ${largest.origin ?? "the program"}${several > 1 ? `; all ${count(several)} send ${bytesText(all)} a step` : ", the only one"}`, onclick: () => app.select(largest.position, { reveal: true }) };
}

// By the report, or else by the graph: what is held then, and the largest of it.
function peak(app) {
  const { graph, program: { report } } = app;
  if (report?.held) {
    const { line, largest: [first] } = report.held;
    const [bytes, several, type, phase, made] = first ?? [];
    const text = first ? `${line ? `at ${line}; ` : ""}${bytesText(bytes)} of it ${type}${several > 1 ? ` x ${several}` : ""}, ${made ? (made === line ? "made there" : `made at ${made}`) : phase}` : "";
    return { title: "Peak", figure: bytesText(report.memory.peak), text, onclick: made || line ? () => app.selectLine(made || line) : () => app.openTab("memory") };
  }
  const [name, bytes, position = graph.byId.get(name)] = graph.memory.live[0] ?? [];
  const node = graph.nodes[position];
  if (!node) return { title: "Peak", figure: bytesText(graph.memory.peak), text: "by the graph", onclick: () => app.openTab("memory") };
  const type = node.types[Math.max(node.results.indexOf(name), 0)];
  const made = node.variable ?? (node.source ? place(node.source[0]) : name);
  return { title: "Peak", figure: bytesText(graph.memory.peak), text: `by the graph; ${bytesText(bytes)} of it ${type}, ${made}`, onclick: () => app.select(node.position, { reveal: true }) };
}

function slowest(app) {
  const { graph, program: { report, files } } = app;
  const [what, write] = report?.lines?.length ? ["Slowest line", timeText] : ["Most computed line", (flops) => `${short(flops)}FLOP`];
  const amounts = new Map();
  const add = (line, amount) => line && amount && amounts.set(line, (amounts.get(line) ?? 0) + amount);
  if (report?.lines?.length) report.lines.forEach(([line, , seconds]) => add(line, seconds));
  else for (const node of graph.nodes) add(node.source && place(node.source[0]), (node.flops ?? 0) * node.times);
  const [line, amount] = [...amounts].sort(([, one], [, other]) => other - one)[0] ?? [];
  if (!line) return { title: what, figure: "not known", text: "no node has a line" };
  const whole = report?.time?.step ?? [...amounts.values()].reduce((sum, each) => sum + each, 0);
  const frame = graph.nodes.flatMap((node) => node.source ?? []).find((one) => place(one) === line);
  const code = frame ? files[frame[0]]?.[frame[1] - 1]?.trim() : undefined;
  return { title: what, figure: write(amount), text: `${share(amount, whole)}, ${line}${code ? `: ${code}` : ""}`, onclick: () => app.selectLine(line, { opens: true }) };
}

function short(number) {
  const [scale, letter] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([size]) => number >= size) ?? [1, ""];
  return `${(number / scale).toFixed(1)} ${letter}`;
}

// What takes most of the step and need not, by the numbers of the report.
function suggestion(app) {
  const { report } = app.program;
  const say = (figure, text, onclick) => ({ title: "Try", figure, text, onclick, kind: "try" });
  if (!report) return say("--topology", "graphdist-viz TARGET --topology v5e:2x4 compiles the step for chips that are not here");
  const { memory, time: found, held } = report;
  const [first] = held?.largest ?? [];
  const toLine = (line) => (line ? () => app.selectLine(line, { opens: true }) : () => app.openTab("report"));
  if (!report.fits) return say("less memory", first ? `recompute, shard or cut into microbatches what is held most: ${first[2]}${first[4] ? ` of ${first[4]}` : ""}` : "shard the parameters, or use smaller microbatches", toLine(first?.[4]));
  if (!found) return say("--topology", "the time of a step is predicted for chips that have published rates");
  const again = (report.lines ?? []).filter(([, phase]) => /again|recomput/.test(phase));
  const recomputed = again.reduce((sum, [, , seconds]) => sum + seconds, 0);
  const exposed = found.parts.find(([name]) => name === "exposed")[1];
  const free = memory.available - memory.peak;
  if (recomputed > NOTABLE * found.step && recomputed >= exposed && free > memory.peak / 2)
    return say(`${timeText(recomputed)} less`, `recomputes for the backward pass, most at ${again[0][0]}: ${bytesText(free)} are free to keep it`, toLine(again[0][0]));
  if (exposed > NOTABLE * found.step) {
    const use = [...report.collectives].sort((one, other) => other.seconds - one.seconds)[0];
    return say(`${timeText(exposed)} less`, `of communication that nothing hides: more work a replica hides it, fewer bytes shorten it${use?.line ? `; longest: ${use.line}` : ""}`, toLine(use?.line));
  }
  if (free > memory.peak) return say("a larger batch", `${bytesText(free)} are free${found.utilization ? `, and ${share(found.utilization, 1)} of the chip's peak is reached` : ""}`, () => app.openTab("report"));
  return say("nothing more", `communication and recomputation take less than ${100 * NOTABLE} % of the step`);
}
