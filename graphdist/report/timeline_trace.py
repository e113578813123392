"""A predicted timeline as a trace for Perfetto and Chrome, with a track for each lane.

Counters above the tracks show the MiB held, in all and by the user's lines. The track `loops` shows
each iteration of a loop as a slice. If the trace would have more than `most_events` events, each
loop shows its first iteration, its last iteration, and one slice for all iterations between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any  # Any: JSON

from graphdist.report.step_timeline import StepTimeline, TimelineEvents
from graphdist.report.trace_events import memory_counters, trace_document, trace_slice
from graphdist.runtime.timing.lanes import COMPUTE, LANES, Event, Turn

MOST_EVENTS = 50_000
_TRACKS = {lane: number for number, lane in enumerate(LANES, 1)}
_LOOPS = 0
"""The track of loops, above the tracks of the instructions in the loops."""


def trace_of(timeline: StepTimeline, name: str, most_events: int = MOST_EVENTS) -> dict[str, Any]:
    """Return the trace as a JSON object, in the format of Chrome's trace viewer."""
    events = timeline.events
    assert events is not None, "a timeline that was read from JSON has no events"
    writer = _Writer(events, shows_all=_num_events(events.turn) <= most_events)
    tracks = {"loops": _LOOPS, **_TRACKS}
    named = {number: f"{lane} (predicted)" for lane, number in tracks.items()}
    return trace_document(name, named, writer.events(events.turn, 0.0))


def _num_events(turn: Turn[Any]) -> int:
    return sum(
        1 + (event.times * _num_events(event.body) if event.body is not None else 0)
        for event in turn.events
    )


class _Writer:
    def __init__(self, timeline: TimelineEvents, *, shows_all: bool) -> None:
        self._timeline, self._shows_all = timeline, shows_all

    def events(self, turn: Turn[Any], start: float) -> Iterator[dict[str, Any]]:
        """Yield the events of an iteration that begins `start` seconds after the step."""
        for event in turn.events:
            if event.every > 1:  # `seconds` is an average: the branch's own events are longer
                title = f"branch of every {event.every} steps"
                yield trace_slice(title, _LOOPS, start + event.start, event.seconds)
                continue
            if event.lane == COMPUTE and event.work in self._timeline.held:
                parts = self._timeline.held[event.work]
                yield from memory_counters(start + event.start, parts)
            if event.body is None:
                yield self._slice(event, start)
            else:
                yield from self._turns(event, event.body, start + event.start)

    def _turns(self, event: Event[Any], body: Turn[Any], start: float) -> Iterator[dict[str, Any]]:
        name, shown = self._timeline.facts(event.work).name, range(event.times)
        if not self._shows_all and event.times > 2:
            between = event.times - 2
            title = f"{between} more turns of {name}"
            yield trace_slice(title, _LOOPS, start + body.seconds, between * body.seconds)
            shown = range(0, event.times, event.times - 1)
        for number in shown:
            begun, title = start + number * body.seconds, f"turn {number + 1} of {event.times}"
            yield trace_slice(f"{name}, {title}", _LOOPS, begun, body.seconds)
            yield from self.events(body, begun)

    def _slice(self, event: Event[Any], start: float) -> dict[str, Any]:
        facts = self._timeline.facts(event.work)
        shown: dict[str, Any] = {"line": facts.line, "phase": facts.phase, "type": facts.type}
        if event.collective:
            shown["exposed seconds"] = event.wait
        if facts.cycles is not None:
            shown["compiler's cycles"] = facts.cycles
        title = event.collective or facts.name
        return trace_slice(title, _TRACKS[event.lane], start + event.start, event.seconds, shown)
