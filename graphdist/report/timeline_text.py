"""The timeline of a step as text: seconds, exposed collectives, lines that compute longest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphdist.report.amounts import fitted_lines, indented_table, time_text
from graphdist.runtime.module.line_labels import RECOMPUTED

if TYPE_CHECKING:
    from graphdist.report.step_timeline import StepTimeline

MOST_EXPOSED = 5
MOST_LINES = 12
_PHASES = ("forward", "backward", RECOMPUTED, "step")


def timeline_lines(timeline: StepTimeline, why: str = "") -> Iterator[str]:
    """Yield the lines of a timeline. `why` is the reason why it is the graph's."""
    step, low, high = map(time_text, (timeline.seconds, timeline.low, timeline.high))
    by_graph = "; by the graph" * (not timeline.is_compiled) + f", since {why}" * bool(why)
    yield from fitted_lines(
        [f"PREDICTED, no measurement: {step} a step, {low} to {high} ({timeline.fitted}{by_graph})"]
    )
    reach = f"the model's own operations reach {timeline.utilization:.1%} of the peak"
    parts = [
        ("compute", timeline.compute, reach),
        ("repeated", timeline.repeated, "of it the compiler repeats, since it lacks memory"),
        ("exposed", timeline.exposed, "communication that nothing hides"),
        ("copies", timeline.idle, "waits for copies between memories"),
    ]
    rows = [(name, time_text(spent), text) for name, spent, text in parts if spent]
    yield from indented_table(rows, left=(0, 2))
    yield from _exposed(timeline)
    yield from _lines(timeline)


def _exposed(timeline: StepTimeline) -> Iterator[str]:
    exposed = [each for each in timeline.collectives if each.exposed][:MOST_EXPOSED]
    rows = []
    for each in exposed:
        runs = f" x {each.runs}" if each.runs > 1 else ""
        text = ", ".join(filter(None, (f"{each.kind}{runs}", each.links, each.line, each.name)))
        rows.append((time_text(each.exposed), time_text(each.seconds), text))
    if rows:
        yield "Collectives that are exposed longest"
        yield from indented_table([("exposed", "of", ""), *rows], left=(2,))


def _lines(timeline: StepTimeline) -> Iterator[str]:
    spent: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for each in timeline.lines:
        spent[each.line][each.phase] = each.seconds
    named = sorted(filter(None, spent), key=lambda line: -sum(spent[line].values()))
    shown = [*named[:MOST_LINES], *([""] if "" in spent else [])]
    phases = [phase for phase in _PHASES if any(phase in spent[line] for line in shown)]
    rows = [("line", *phases)]
    for line in shown:
        seconds = [spent[line].get(phase) for phase in phases]
        texts = ["" if each is None else time_text(each) for each in seconds]
        rows.append((line or "without a line", *texts))
    yield "Lines that compute longest"
    yield from indented_table(rows)
