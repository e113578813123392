"""Which values of a graph XLA writes to memory, and from which values it computes all others.

XLA computes the elements of most values where they are read, in the loop of the operation that
reads them ("Operation fusion", openxla.org/xla). `FusedValues` decides, node by node:

* *Fused*: elementwise operations, broadcasts, slices, joins. Their results are read as the values
  behind them, which are in memory.
* *Views*: reshapes, transpositions, names. A view is its operand. So is a result of a barrier,
  whose operands are in memory from where they are computed.
* *Products and reductions* compute fused operands as they read them. All other operations (kernels,
  collectives, loops, gathers) take their operands from memory.
* *Kept*: a fused value with several readers is written to memory after all if that frees more bytes
  than it takes: the values behind it that nobody else reads later. Thus a residual sum of two
  activations is kept, the normalized activation is computed at each of its readers. A value that
  is computed from one other is kept only if it frees that value at once.

Which values XLA keeps depends on costs that a graph does not have. The rules are those that came
closest to the buffers in compiled modules for TPUs (`tests/truth/peaks.json`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.operation_table import ELEMENTWISE, TABLE
from graphdist.ir.ops import BARRIER, CONCATENATE, RESHAPE, TAKE_PART, TAKE_STEP, UNPACK

BARRIERS = {BARRIER.name, "jax.optimization_barrier"}
VIEWS = {RESHAPE.name, "jax.copy", "jax.name", "jax.reshape", "jax.squeeze", "jax.transpose"}
IOTA = "jax.iota"
FUSED = (
    ELEMENTWISE.difference(VIEWS)
    .union(op.name for op in (CONCATENATE, TAKE_PART, TAKE_STEP, UNPACK))
    .union(
        ["jax.broadcast_in_dim", "jax.concatenate", "jax.dynamic_slice", IOTA, "jax.pad", "jax.rev"]
    )
    .union(["jax.slice", "jax.split", "jax.stack", "jax.tile", "jax.unstack"])
)
CONVOLUTION = "jax.conv_general_dilated"
FUSES_OPERANDS = {
    CONVOLUTION,
    "jax.dot_general",
    *(name for name in TABLE if name.startswith(("jax.reduce", "jax.arg"))),
}
"""The operations that compute fused operands while they read them."""
_READ_IN_PLACE = FUSED | FUSES_OPERANDS | VIEWS

DYNAMIC_UPDATE = "jax.dynamic_update_slice"
UPDATES = {DYNAMIC_UPDATE}.union(
    f"jax.scatter{kind}" for kind in ("", "-add", "-sub", "-mul", "-min", "-max")
)
"""The operations that write to a part of their first operand."""
LARGE_PART = 4
"""A value counts as large beside another with at least one part in so many of its bytes."""


class FusedValues:
    """The values behind each value of a graph, without the values in nested graphs.

    `free` are inputs whose memory is counted elsewhere. `behind` has the values in memory from
    which a value is computed where it is read; a value in memory has itself. `kept` are fused
    values that are in memory. `readers` has the positions of the nodes that read a value, directly
    or through fused values; the position after the last node stands for the graph's outputs.
    `literals` are the values that are computed from literals alone.
    """

    def __init__(self, graph: Graph, free: Collection[Value]) -> None:
        """Decide for each value of the graph."""
        self._graph, self._free = graph, free
        self._held = {
            operand for node in graph.nodes if node.op.name in BARRIERS for operand in node.operands
        }
        self._viewed: dict[Value, Value] = {}
        self.behind: dict[Value, tuple[Value, ...]] = {value: (value,) for value in graph.inputs}
        self.kept: set[Value] = set()
        self.literals: set[Value] = set()
        self.readers = self._readers()
        for position, node in enumerate(graph.nodes):
            self._decide(position, node)

    def viewed(self, value: Value) -> Value:
        """Return the value of which `value` is a view; itself if it is none."""
        return self._viewed.get(value, value)

    def is_read_in_place(self, value: Value) -> bool:
        """Return whether all nodes that read an input compute with it where it is."""
        nodes = self._graph.nodes
        return all(
            position < len(nodes) and nodes[position].op.name in _READ_IN_PLACE
            for position in self.readers[value]
        )

    def _readers(self) -> dict[Value, set[int]]:
        end = len(self._graph.nodes)
        readers = defaultdict[Value, set[int]](set)
        for output in self._graph.outputs:
            if isinstance(output, Value):
                readers[output].add(end)
        for position in range(end - 1, -1, -1):
            node = self._graph.nodes[position]
            reading = {position}
            if node.op.name in FUSED or node.op.name in VIEWS:
                reading = set().union(*(readers[result] for result in node.results))
            for operand in node.operands:
                if isinstance(operand, Value):
                    readers[operand] |= reading
        return readers

    def _decide(self, position: int, node: Node) -> None:
        name, operands = node.op.name, node.operands
        if name in BARRIERS or name in VIEWS:
            for operand, result in zip(operands, node.results, strict=False):
                self._view(operand, result, in_memory=name in BARRIERS)
        elif name in FUSED:
            behind = self._all_behind(operands)
            is_literal = name != IOTA and all(map(self._is_literal, operands))
            for result in node.results:
                self.behind[result] = behind
                if is_literal:
                    self.literals.add(result)
                elif result in self._held or self._frees(result, behind, position):
                    self.kept.add(result)
                    self.behind[result] = (result,)
        else:
            self.behind.update((result, (result,)) for result in node.results)

    def _view(self, operand: Operand, result: Value, *, in_memory: bool) -> None:
        if not isinstance(operand, Value) or (in_memory and not self.behind[operand]):
            self.behind[result] = (result,)
            return
        viewed = self.viewed(operand)
        self._viewed[result] = viewed
        self.behind[result] = (viewed,) if in_memory else self.behind[operand]
        if viewed in self.literals:
            self.literals.add(result)

    def _all_behind(self, operands: Collection[Operand]) -> tuple[Value, ...]:
        values = (operand for operand in operands if isinstance(operand, Value))
        return tuple(dict.fromkeys(found for value in values for found in self.behind[value]))

    def _is_literal(self, operand: Operand) -> bool:
        return not isinstance(operand, Value) or operand in self.literals

    def _frees(self, value: Value, behind: Collection[Value], position: int) -> bool:
        """Return whether to keep a fused value frees more bytes than it takes."""
        own, readers = value.type.bytes, self.readers[value]
        if len(readers) < 2:
            return False
        large = sum(
            LARGE_PART * each.type.bytes >= own for each in behind if each not in self._free
        )
        since = position if large < 2 else min(readers)
        freed = sum(
            each.type.bytes
            for each in behind
            if each not in self._free and all(i <= since for i in self.readers[each] - readers)
        )
        return freed > own
