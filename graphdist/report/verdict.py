"""The verdict on a step: the sentences that its report, the page and the terminal begin with.

They say whether the step fits, its time, its largest collective, its peak of memory, its slowest
line with its code, and what would help most. `verdict_of` makes them of a report and its graph,
`verdict_of_graph` of a graph alone. The last sentence is the suggestion that saves most, by the
prices of the report and of `explain()`:

1. A step that does not fit: shard the parameters, if most bytes of variables are unsharded; else
   what is gathered at once, by the reason of the pass that declined to gather it in parts; else the
   largest array.
2. Values that are computed again though they would fit into the free memory.
3. Communication that nothing hides, with the reason why a pass left its longest collective alone.
4. A larger batch, if more than half of the memory is free.

Of a step on CPUs no time is predicted. If its temporaries are so large that the C library gives
them back to the system after each step, the suggestion is huge pages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphdist.config import HUGE_PAGES, may_ask_for_huge_pages
from graphdist.ir.cost import executions, node_cost
from graphdist.ir.graph import Graph
from graphdist.report.amounts import count_text, plural, size_text, time_text
from graphdist.report.collective_uses import CollectiveUse, matched_collectives
from graphdist.report.explanation import Explanation
from graphdist.report.server_requests import ServerRequest
from graphdist.report.step_memory import ARGUMENT, SMALLER, UNSEEN, StepMemory, memory_of_graph
from graphdist.runtime.cpu_options import block_bytes
from graphdist.runtime.freed_memory import MOST_BYTES_KEPT
from graphdist.runtime.module.line_labels import RECOMPUTED, phase_and_line

if TYPE_CHECKING:
    from graphdist.report.step_report import Report

NOTABLE = 0.05
"""The share of the step's time below which nothing is suggested."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of the verdict: what it is about, its figure, and what else it says.

    `kind` is "fits", "refused" or "try", for colours. `leads` says what the sentence is about: a
    tab of the page such as "report", "exposed" for exposed communication, "line train.py:41", or
    "collective 3" for a collective by its position in the graph.
    """

    title: str
    figure: str
    text: str
    leads: str = ""
    kind: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.figure, self.text)))


def verdict_of(
    report: Report, graph: Graph, explain: Callable[[], Explanation]
) -> tuple[Sentence, ...]:
    """Return the verdict on a report. `explain` explains the passes; it is called if needed."""
    memory = report.memory or memory_of_graph(graph, report.needed_bytes)
    return (
        _fits(report),
        *_time(report),
        _collective(report.collectives, report.servers),
        _peak(memory),
        _slowest(report, graph),
        _suggestion(report, graph, explain),
    )


def verdict_of_graph(graph: Graph, servers: Sequence[ServerRequest] = ()) -> tuple[Sentence, ...]:
    """Return the verdict on a graph that has no report."""
    uses = [each.use(None, is_compiled=False) for each in matched_collectives(graph, ())]
    return (
        Sentence("Fits?", "not known", "without a topology the memory of a device is not known"),
        _collective(uses, servers),
        _peak(memory_of_graph(graph)),
        _most_computed(graph),
        _TOPOLOGY,
    )


_TOPOLOGY = Sentence(
    "Try",
    "--topology",
    "such as --topology v5e:2x4, which predicts memory and time on chips that are not here",
    kind="try",
)


def _fits(report: Report) -> Sentence:
    needed, available = report.needed_bytes, report.available_bytes
    by_graph = "" if report.is_compiled else "by its graph it needs "
    text = f"{by_graph}{size_text(needed)}"
    if available:
        text += f" of the {size_text(available)} of a device, {_share(needed, available)}"
    if report.fits:
        if not report.is_compiled:
            return Sentence("Fits?", report.target, f"{text}; it is not compiled", "report")
        return Sentence("Fits", report.target, text, "report", "fits")
    if report.is_refused_without_sizes:
        text = f"{report.refusal}; by its graph it needs {text.removeprefix(by_graph)}"
    else:
        text += (
            f": {size_text(needed - available)} too much" if available else f". {report.refusal}"
        )
    return Sentence("Does not fit", report.target, text, "report", "refused")


def _time(report: Report) -> Iterator[Sentence]:
    found = report.timeline
    if found is not None:
        exposed = f"{time_text(found.exposed)} ({_share(found.exposed, found.seconds)})"
        interval = f"predicted, {time_text(found.low)} to {time_text(found.high)}"
        text = f"{interval}; {exposed} is communication that nothing hides"
        yield Sentence("Step", time_text(found.seconds), text, "exposed")


def _collective(uses: Sequence[CollectiveUse], servers: Sequence[ServerRequest]) -> Sentence:
    if servers and not uses:
        first = max(servers, key=lambda request: request.bytes)
        total = size_text(sum(request.bytes for request in servers))
        several = f"{plural(len(servers), 'request')} move {total} a step"
        text = f"{first.kind} of {', '.join(first.variables)}, {first.place}; {several}"
        return Sentence("Largest request", size_text(first.bytes), text, "collectives")
    if not uses:
        return Sentence("Collectives", "none", "the replicas need nothing of each other")
    position, largest = max(enumerate(uses), key=lambda item: item[1].bytes_a_step)
    line = f", {largest.place}" if ":" in largest.place else ""
    total = size_text(sum(use.bytes_a_step for use in uses))
    several = f"; all {len(uses)} carry {total} a step" if len(uses) > 1 else ", the only one"
    text = f"{largest.kind}{line}, by {largest.pass_name or 'the program'}{several}"
    leads = f"collective {position}"
    return Sentence("Largest collective", size_text(largest.bytes_a_step), text, leads)


_WITHOUT_LINE = {ARGUMENT: "variables or arguments of the step"}


def _peak(memory: StepMemory) -> Sentence:
    first = next((held for held in memory.largest if held.type not in (SMALLER, UNSEEN)), None)
    parts = ["by the graph"] if memory.is_counted else []
    parts += [f"at {memory.line}"] if memory.line else []
    if first is not None:
        several = f" x {first.count}" if first.count > 1 else ""
        made = f"made at {first.line}" if first.line else _WITHOUT_LINE.get(first.phase, "")
        made = "made there" if first.line and first.line == memory.line else made
        text = f"{size_text(first.bytes)} of it {first.type}{several}"
        parts.append(", ".join(filter(None, (text, made))))
    line = (first.line if first else "") or memory.line
    leads = f"line {line}" if line else "memory"
    return Sentence("Peak", size_text(memory.peak_bytes), "; ".join(parts), leads)


def _slowest(report: Report, graph: Graph) -> Sentence:
    if report.timeline is None:
        return _most_computed(graph)
    seconds: defaultdict[str, float] = defaultdict(float)
    for spent in report.timeline.lines:
        seconds[spent.line] += spent.seconds
    return _line_sentence("Slowest line", graph, seconds, time_text, report.timeline.seconds)


def _most_computed(graph: Graph) -> Sentence:
    flops: defaultdict[str, float] = defaultdict(float)
    for node, times, every in executions(graph):
        if not node.graphs:
            count = sum(node_cost(node).flops.values()) * times / every
            flops[phase_and_line(node.source)[1]] += count
    title = "Most computed line"
    return _line_sentence(
        title, graph, flops, lambda n: f"{count_text(n)}FLOP", sum(flops.values())
    )


def _line_sentence(
    title: str,
    graph: Graph,
    amounts: Mapping[str, float],
    written: Callable[[float], str],
    whole: float,
) -> Sentence:
    """Return the sentence about the line with the largest amount, with the line's code."""
    line = max(filter(None, amounts), key=amounts.__getitem__, default="")
    if not line:
        return Sentence(title, "not known", "no operation has a line")
    amount = amounts[line]
    code = next((code for code in _codes(graph, line) if code), "")
    text = f"{_share(amount, whole)}, {line}{f': {code}' if code else ''}"
    return Sentence(title, written(amount), text, f"line {line}")


def _codes(graph: Graph, line: str) -> Iterator[str]:
    for node, _, _ in executions(graph):
        frame = node.source.frame
        if frame is not None and phase_and_line(node.source)[1] == line:
            yield frame.code


def _suggestion(report: Report, graph: Graph, explain: Callable[[], Explanation]) -> Sentence:
    if not report.fits:
        return _less_memory(report, explain())
    timeline = report.timeline
    is_large = report.temp_bytes >= MOST_BYTES_KEPT and report.target.startswith("cpu")
    if is_large and not block_bytes(graph) and may_ask_for_huge_pages():
        return _huge_pages(report.temp_bytes)
    if timeline is None or not report.available_bytes:
        return _TOPOLOGY
    again = [spent for spent in timeline.lines if spent.phase == RECOMPUTED]
    recomputed = sum(spent.seconds for spent in again)
    free, least = report.available_bytes - report.needed_bytes, NOTABLE * timeline.seconds
    if recomputed > max(least, timeline.exposed) and free > report.needed_bytes / 2:
        line = next((spent.line for spent in again if spent.line), "")
        text = (
            f"{size_text(free)} of memory are free: keep values for the backward pass that are "
            f"computed again, most at {line or 'lines that are not known'}"
        )
        return _try(f"up to {time_text(recomputed)} less", text, line)
    if timeline.exposed > least:
        return _less_communication(report, timeline.exposed, explain())
    if free > report.needed_bytes:
        text = f"{size_text(free)} are free"
        text += f", and {_share(timeline.utilization, 1)} of the chip's peak is reached"
        return _try("a larger batch", text)
    text = f"communication and recomputation take less than {NOTABLE:.0%} of the step"
    return _try("nothing more", text)


def _huge_pages(temporaries: int) -> Sentence:
    text = (
        f"in the environment of the process: the C library gives {size_text(temporaries)} of "
        "temporaries back to the system after each step, and large pages are cleared faster"
    )
    return _try(f"GLIBC_TUNABLES={HUGE_PAGES}", text)


def _less_memory(report: Report, explained: Explanation) -> Sentence:
    """Suggest what makes a step fit, or what takes most of its memory."""
    stored = report.variables
    sharded = stored.held_bytes - stored.full_bytes // max(report.num_devices, 1)
    if sharded > stored.held_bytes // 2:
        text = "of variables with shard_parameters=True, or --shard-parameters"
        return _try(f"{size_text(sharded)} less", text)
    gathered = [reason for reason in _declined(explained) if "gathered at once" in reason]
    if gathered:
        return _try("gather in parts", re.sub(r"(?<= )/\S*/", "", gathered[0]))
    first = report.memory.largest[0] if report.memory and report.memory.largest else None
    what = f": {first.type} of {first.line or first.phase}" if first else ""
    text = f"recompute, shard or cut into microbatches what takes most memory{what}"
    return _try("less memory", text, first.line if first else "")


def _less_communication(report: Report, exposed: float, explained: Explanation) -> Sentence:
    longest = max(report.collectives, key=lambda use: use.seconds, default=None)
    text = (
        "of communication that nothing hides: more work a replica hides it, fewer bytes shorten it"
    )
    if longest is None:
        return _try(f"up to {time_text(exposed)} less", text)
    why = next((each for each in _declined(explained) if longest.place in each), "")
    text += f"; longest is {longest.kind}, {longest.place}{f' ({why})' if why else ''}"
    return _try(f"up to {time_text(exposed)} less", text, longest.place)


def _declined(explained: Explanation) -> Iterator[str]:
    return (reason for step in explained.steps for reason in step.declined)


def _try(figure: str, text: str, line: str = "") -> Sentence:
    leads = f"line {line}" if ":" in line else "report"
    return Sentence("Try", figure, text, leads, "try")


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0.0:.1%}"
