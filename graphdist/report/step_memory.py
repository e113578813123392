"""The memory peak of a step: the line that reaches it, and the arrays held, by line.

`graphdist.runtime.module.memory` follows the buffers of a module for TPUs or GPUs. Without such a
module the memory is counted on the graph (`graphdist.ir.live_memory`). The compiler's own peak,
which the report states, differs by what neither sees: padding, gaps between buffers, the core's own
memory. This difference is a row of its own, so that the rows add up to the peak.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from graphdist.ir.analyses import all_producers
from graphdist.ir.graph import Graph, Node, Op, Value
from graphdist.ir.live_memory import live_memory
from graphdist.ir.ops import ALL_GATHER, SCAN
from graphdist.runtime.module.instructions import Instruction
from graphdist.runtime.module.line_labels import Labels, places_of
from graphdist.runtime.module.memory import ModuleMemory

MOST_ARRAYS = 10
SMALLER, UNSEEN = "smaller arrays", "what only the compiler sees"
"""The types of the rows that stand for no single array."""
ARGUMENT = "argument"
"""The phase of the step's arguments, variables among them."""


@dataclass(frozen=True, slots=True)
class HeldArrays:
    """The arrays of one type that operations of one line make and that are held at the peak."""

    bytes: int
    count: int
    type: str
    phase: str
    line: str


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The peak of a device's memory in a step, the line at the peak, and the arrays held there.

    `largest` has the largest arrays and then rows for all others, which add up to the peak.
    """

    peak_bytes: int
    phase: str
    line: str
    largest: tuple[HeldArrays, ...]
    is_counted: bool = False
    """Whether the arrays are counted on the graph."""


def memory_of_step(memory: ModuleMemory, labels: Labels, peak_bytes: int) -> StepMemory:
    """Return the memory of a compiled step at its peak; the compiler states `peak_bytes`."""
    instruction, buffers = memory.at_peak()

    def place(maker: Instruction) -> tuple[str, str]:
        return (ARGUMENT, "") if maker.opcode == "parameter" else labels.of(maker)

    arrays = ((buffer.bytes, buffer.type, *place(buffer.maker)) for buffer in buffers)
    return StepMemory(peak_bytes, *labels.of(instruction), _rows(arrays, peak_bytes))


def memory_of_graph(graph: Graph, peak_bytes: int = 0) -> StepMemory:
    """Return the memory of a step at its peak, counted on its graph.

    `peak_bytes` is the peak that the compiler states; 0 if it states none.
    """
    memory = live_memory(graph)
    node, alive = memory.at_peak()
    makers: dict[Value, Node] = dict(all_producers(graph))
    # Slices of scanned operands are made where they are read.
    makers |= {each.value: node for each in alive if node and each.value not in makers}
    for value in graph.inputs:
        makers.pop(value, None)
    places = places_of(graph)

    def place(maker: Node | None) -> tuple[str, str]:
        return (ARGUMENT, "") if maker is None else places[maker]

    arrays = (
        (size, str(value.type.with_layout(None)), *place(makers.get(value)))
        for value, size in alive
    )
    peak = peak_bytes or memory.peak
    return StepMemory(peak, *place(node), _rows(arrays, peak), is_counted=True)


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """The memory of a device at the peak of a step, by parts, counted on the graph, in bytes."""

    variables: int
    """Parameters and slots, sharded or unsharded."""
    gathered: int
    """Sharded variables that are gathered."""
    stacked: int
    """What loops return: values saved for the backward pass, gradients of stacked layers."""
    others: int
    """All other values on the device."""
    host: int
    """Values that are in the memory of the host."""

    @property
    def total(self) -> int:
        """Return the bytes of all parts on the device."""
        return self.variables + self.gathered + self.stacked + self.others


def memory_parts(graph: Graph) -> MemoryParts:
    """Return the memory that the graph of a device needs at its peak, by parts."""
    memory = live_memory(graph)
    _, alive = memory.at_peak()
    variables = sum(variable.held(graph.mesh).bytes for variable in graph.variables)
    bytes_of = Counter[Op]()
    makers = all_producers(graph)
    for value, size in alive:
        if value in makers:
            bytes_of[makers[value].op] += size
    gathered, stacked = bytes_of[ALL_GATHER], bytes_of[SCAN]
    others = memory.peak - variables - gathered - stacked
    return MemoryParts(variables, gathered, stacked, others, memory.host_peak)


def _rows(arrays: Iterable[tuple[int, str, str, str]], peak: int) -> tuple[HeldArrays, ...]:
    """Return the largest arrays, joined where type, phase and line are equal, then all others."""
    found: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for size, type_text, phase, line in arrays:
        found[type_text, phase, line].append(size)
    joined = [HeldArrays(sum(sizes), len(sizes), *key) for key, sizes in found.items()]
    joined.sort(key=lambda each: -each.bytes)
    rows, smaller = joined[:MOST_ARRAYS], joined[MOST_ARRAYS:]
    rest = sum(each.bytes for each in smaller)
    unseen = peak - rest - sum(each.bytes for each in rows)
    others = (
        HeldArrays(rest, sum(each.count for each in smaller), SMALLER, "", ""),
        HeldArrays(unseen, 1, UNSEEN, "", ""),
    )
    return (*rows, *(each for each in others if each.bytes))
