"""The memory peak of a compiled step: the line that reaches it, and the arrays held, by line.

`graphdist.runtime.module.memory` follows the module's buffers. The compiler's own peak, which the
report states, is larger by padding and by gaps between buffers. If the compiler refuses a program,
there is no module, and the values of the program's graph are followed, node by node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from graphdist.ir.analyses import bytes_inside, held_values, walk
from graphdist.ir.graph import Graph, Node, Value
from graphdist.runtime.module.instructions import Instruction
from graphdist.runtime.module.line_labels import Labels, phase_and_line
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
    node, alive = _at_peak(graph)
    makers = {result: each for each in walk(graph) for result in each.results}
    arrays = (
        (value.type.bytes, str(value.type.with_layout(None)), *_place(makers.get(value)))
        for value in alive
    )
    return StepMemory(held_values(graph).peak, *_place(node), _largest(arrays))


def _place(node: Node | None) -> tuple[str, str]:
    """Return the phase and the line of a value's node. `node` is None for an argument."""
    return (ARGUMENT, "") if node is None else phase_and_line(node.source)


def _at_peak(graph: Graph) -> tuple[Node | None, list[Value]]:
    """Return the innermost node at the peak, and the values that are alive there.

    The node is None if the peak is before the first node.
    """
    held = held_values(graph)
    if held.position < 0:
        return None, list(held.alive)
    node, alive = graph.nodes[held.position], list(held.alive)
    if node.graphs:
        nested = max(node.graphs, key=bytes_inside)
        inner, inside = _at_peak(nested)
        node = inner or node
        alive += [value for value in inside if value not in nested.inputs]
    return node, alive


def _largest(arrays: Iterable[tuple[int, str, str, str]]) -> tuple[HeldArrays, ...]:
    """Return the largest arrays, joined where type, phase and line are equal."""
    found: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for size, type_text, phase, line in arrays:
        found[type_text, phase, line].append(size)
    joined = [HeldArrays(sum(sizes), len(sizes), *key) for key, sizes in found.items()]
    return tuple(sorted(joined, key=lambda each: -each.bytes)[:MOST_ARRAYS])
