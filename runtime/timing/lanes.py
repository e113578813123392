"""A predicted timeline: pieces of work on lanes, each of which runs one piece at a time.

* `compute`: what the chip computes, and loops, whose bodies have timelines of their own.
* `links` and `network`: collectives. A permutation of a ring of cores uses links in one direction
  alone: those that send to the device before have a lane of their own. Collectives overlap with
  computation from their start to their end; the end waits for the rest of their time. A synchronous
  collective ends at once.
* `copies`: copies between the memories of a chip, in the order of their starts. Copies to and from
  the host have lanes of their own. The end of a copy waits for the rest of its time, too.

So the time of a step is the sum of computation, exposed communication, and waits for copies. A loop
is laid out for one iteration, and counted for all. A branch that every H-th step takes counts 1/H.

The pieces of work are instructions of a compiled module (`graphdist.runtime.module.timeline`) or
nodes of a graph that is not compiled (`graph_timeline.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

COMPUTE, LINKS, LINKS_BACK, NETWORK, COPIES = "compute", "links", "links back", "network", "copies"
TO_HOST, FROM_HOST = "to the host", "from the host"
LANES = (COMPUTE, LINKS, LINKS_BACK, NETWORK, COPIES, TO_HOST, FROM_HOST)

WorkT = TypeVar("WorkT")


@dataclass(slots=True)
class Event(Generic[WorkT]):
    """A piece of work on the timeline: `start` and `seconds` within one run of its computation.

    `wait` are the seconds that the compute lane waits for the work. `members` are the replicas of
    one group of a collective. `body` is the run of the computation that a loop or a call runs,
    `times` times in every `every`-th step.
    """

    work: WorkT
    lane: str
    start: float
    seconds: float
    collective: str = ""
    members: Sequence[int] = ()
    wait: float = 0.0
    body: Turn[WorkT] | None = None
    times: int = 1
    every: int = 1

    @property
    def end(self) -> float:
        """Return the end within the run of the computation, in seconds."""
        return self.start + self.seconds


@dataclass(slots=True)
class Turn(Generic[WorkT]):
    """One run of a computation: its events, and its seconds of each kind.

    `exposed` are the seconds of communication that overlap with no computation, `idle` the seconds
    of waits for copies. `compute`, `exposed` and `idle` add up to `seconds`.
    """

    events: list[Event[WorkT]] = field(default_factory=list)
    compute: float = 0.0
    exposed: float = 0.0
    idle: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the seconds of the run."""
        return self.compute + self.exposed + self.idle


def all_events(turn: Turn[WorkT], times: float = 1) -> Iterator[tuple[Event[WorkT], float]]:
    """Yield the events of a run and of nested runs, each with its number of times per step."""
    for event in turn.events:
        yield event, times
        if event.body is not None:
            yield from all_events(event.body, times * event.times / event.every)


class Lanes(Generic[WorkT]):
    """The lanes of one run of a computation, on which work is placed in its order.

    >>> lanes = Lanes()
    >>> gather = lanes.start("gather", LINKS, 3.0, "all_gather")
    >>> lanes.compute("product", 2.0)
    >>> lanes.hold(gather)
    >>> lanes.turn.seconds, lanes.turn.exposed
    (3.0, 1.0)
    """

    def __init__(self) -> None:
        """Begin an empty run."""
        self.turn: Turn[WorkT] = Turn()
        self._free = dict.fromkeys(LANES, 0.0)

    def compute(self, work: WorkT, seconds: float) -> None:
        """Compute for some seconds."""
        self.turn.events.append(Event(work, COMPUTE, self.turn.seconds, seconds))
        self.turn.compute += seconds

    def call(self, work: WorkT, body: Turn[WorkT], times: int, every: int) -> None:
        """Run a loop's body, or a branch that only every `every`-th step takes."""
        share = times / every
        event = Event(work, COMPUTE, self.turn.seconds, body.seconds * share)
        event.body, event.times, event.every = body, times, every
        self.turn.events.append(event)
        self.turn.compute += body.compute * share
        self.turn.exposed += body.exposed * share
        self.turn.idle += body.idle * share

    def start(
        self,
        work: WorkT,
        lane: str,
        seconds: float,
        collective: str = "",
        members: Sequence[int] = (),
        ready: float | None = None,
    ) -> Event[WorkT]:
        """Start a collective or a copy on its lane, now or when its operands were `ready`."""
        start = max(self.turn.seconds if ready is None else ready, self._free[lane])
        event = Event(work, lane, start, seconds, collective, members)
        self._free[lane] = event.end
        self.turn.events.append(event)
        return event

    def hold(self, event: Event[WorkT]) -> None:
        """Let the compute lane wait until an event has ended."""
        event.wait = max(event.end - self.turn.seconds, 0.0)
        if event.collective:
            self.turn.exposed += event.wait
        else:
            self.turn.idle += event.wait
