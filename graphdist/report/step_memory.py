"""The memory peak of a compiled step: the line that reaches it, and the arrays held, by line.

`graphdist.runtime.module.memory` follows the module's buffers. The compiler's own peak, which the
report states, is larger by padding and by gaps between buffers. If the compiler refuses a program,
there is no module, and the memory is counted on the program's graph (`graphdist.ir.live_memory`).
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
    """The peak of a device's memory in a step, the line at the peak, and the arrays held there."""

    peak_bytes: int
    phase: str
    line: str
    largest: tuple[HeldArrays, ...]


def memory_of_step(memory: ModuleMemory, labels: Labels) -> StepMemory:
    """Return the memory of a step at its peak."""
    instruction, buffers = memory.at_peak()

    def place(maker: Instruction) -> tuple[str, str]:
        return (ARGUMENT, "") if maker.opcode == "parameter" else labels.of(maker)

    arrays = ((buffer.bytes, buffer.type, *place(buffer.maker)) for buffer in buffers)
    return StepMemory(memory.entry.peak, *labels.of(instruction), _largest(arrays))


def memory_of_graph(graph: Graph) -> StepMemory:
    """Return the memory of a step at its peak on the graph, if there is no compiled module."""
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
    return StepMemory(memory.peak, *place(node), _largest(arrays))


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


def _largest(arrays: Iterable[tuple[int, str, str, str]]) -> tuple[HeldArrays, ...]:
    """Return the largest arrays, joined where type, phase and line are equal."""
    found: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for size, type_text, phase, line in arrays:
        found[type_text, phase, line].append(size)
    joined = [HeldArrays(sum(sizes), len(sizes), *key) for key, sizes in found.items()]
    return tuple(sorted(joined, key=lambda each: -each.bytes)[:MOST_ARRAYS])
