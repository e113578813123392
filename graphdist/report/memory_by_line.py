"""The memory that a step holds over its timeline, by the user's lines that made the values.

A computation is a graph or a computation of a compiled module, with the stretch of its schedule in
which each of its buffers is in use. What a loop's body holds is added to what is held around the
loop, so that the parts of an instruction add up to the bytes that are held while it runs, and the
parts of the peak to the peak. The lines that hold most at the peak have a part each, all other
lines one together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

from graphdist.ir.analyses import all_producers
from graphdist.ir.graph import Graph, Node
from graphdist.ir.live_memory import LiveMemory, live_memory
from graphdist.report.step_memory import UNSEEN
from graphdist.runtime.module.instructions import CompiledModule, Instruction
from graphdist.runtime.module.line_labels import Labels, places_of
from graphdist.runtime.module.memory import ModuleMemory

MOST_LINES = 8
ARGUMENTS, WITHOUT_LINE, OTHERS = "variables and arguments", "without a line", "other lines"
"""The names of parts that are of no single line."""

WorkT = TypeVar("WorkT")
HeldParts = Mapping[str, int]
"""The bytes that are held, by the user's line."""


class BufferSpan(NamedTuple):
    """A buffer: the positions of its first and its last use, its bytes, and its line."""

    first: int
    last: int
    bytes: int
    line: str


@dataclass(frozen=True)
class BufferSchedule(Generic[WorkT]):
    """The buffers of a computation, and those of the computations that its work runs."""

    works: Sequence[WorkT]
    spans: Sequence[BufferSpan]
    bodies: Mapping[int, Sequence[BufferSchedule[WorkT]]]
    """The computations that run at a position."""

    @cached_property
    def totals(self) -> list[int]:
        """Return the bytes held at each position, by the computations that run there, too."""
        changes = [0] * (len(self.works) + 1)
        for span in self.spans:
            changes[span.first] += span.bytes
            changes[span.last + 1] -= span.bytes
        return [
            own + max((body.peak for body in self.bodies.get(position, ())), default=0)
            for position, own in enumerate(accumulate(changes[:-1]))
        ]

    @cached_property
    def peak(self) -> int:
        """Return the most bytes that are held at one position."""
        return max(self.totals, default=0)

    @cached_property
    def at_peak(self) -> Counter[str]:
        """Return the bytes of each line at the peak."""
        found = Counter[str]()
        if self.totals:
            at = self.totals.index(self.peak)
            for span in self.spans:
                if span.first <= at <= span.last:
                    found[span.line] += span.bytes
            found += self._inside(at)
        return found

    def _inside(self, position: int) -> Counter[str]:
        bodies = self.bodies.get(position, ())
        return max(bodies, key=lambda body: body.peak).at_peak if bodies else Counter()

    def parts(
        self, name: Callable[[str], str], around: Counter[str]
    ) -> Iterator[tuple[WorkT, Counter[str]]]:
        """Yield each work with the bytes held while it runs; `around` is held around all of it."""
        changes: list[list[tuple[str, int]]] = [[] for _ in range(len(self.works) + 1)]
        for span in self.spans:
            changes[span.first].append((name(span.line), span.bytes))
            changes[span.last + 1].append((name(span.line), -span.bytes))
        held = around.copy()
        for position, work in enumerate(self.works):
            for line, size in changes[position]:
                held[line] += size
            inside = Counter[str]()
            for line, size in self._inside(position).items():
                inside[name(line)] += size
            yield work, held + inside
            for body in self.bodies.get(position, ()):
                yield from body.parts(name, held)


def _held_parts(schedule: BufferSchedule[WorkT], unseen: int = 0) -> dict[WorkT, HeldParts]:
    """Return the parts of each work; where it runs several times, those of the largest sum."""
    largest = {line for line, _ in schedule.at_peak.most_common(MOST_LINES)}
    found: dict[WorkT, HeldParts] = {}
    more = {UNSEEN: unseen} if unseen else {}
    for work, held in schedule.parts(lambda each: each if each in largest else OTHERS, Counter()):
        if work not in found or held.total() + unseen > sum(found[work].values()):
            found[work] = {**held, **more}
    return found


def held_by_module(
    module: CompiledModule, memory: ModuleMemory, labels: Labels, unseen: int
) -> Mapping[Instruction, HeldParts]:
    """Return what is held while each instruction runs; `unseen` is what only the compiler sees."""

    def line_of(maker: Instruction) -> str:
        return ARGUMENTS if maker.opcode == "parameter" else labels.of(maker)[1] or WITHOUT_LINE

    @cache
    def schedule(computation: str) -> BufferSchedule[Instruction]:
        held = memory.of(computation)
        spans = [
            BufferSpan(each.first, each.last, each.bytes, line_of(each.maker))
            for each in held.buffers
            if each.bytes
        ]
        bodies = {
            position: list(map(schedule, names))
            for position, instruction in enumerate(held.instructions)
            if (names := module.run_by(instruction))
        }
        return BufferSchedule(held.instructions, spans, bodies)

    return _held_parts(schedule(module.entry), unseen)


def held_by_graph(graph: Graph) -> Mapping[Node, HeldParts]:
    """Return what is held while each node of a graph and of its loops and branches runs."""
    places, makers = places_of(graph), all_producers(graph)

    def schedule(graph: Graph, memory: LiveMemory, around: str) -> BufferSchedule[Node]:
        nodes, end = graph.nodes, len(graph.nodes)
        spans = [
            BufferSpan(max(each.first, 0), min(each.last, end), each.bytes, line or WITHOUT_LINE)
            for each in memory.held
            if nodes  # a graph that returns its inputs has no position
            for line in [places[makers[each.value]][1] if each.value in makers else around]
        ]
        bodies = {
            position: [schedule(*each, places[nodes[position]][1]) for each in nested]
            for position, nested in memory.nested.items()
        }
        # What is written for the outputs, after the last node, counts at that node, too.
        return BufferSchedule([*nodes, *nodes[-1:]], spans, bodies)

    return _held_parts(schedule(graph, live_memory(graph), ARGUMENTS))
