"""The body of the loop of `compute_in_chunks`: its nodes, computed for one chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Node, Operand, Value
from graphdist.ir.op_parameters import TakingPart
from graphdist.ir.operation_table import factors_of, on_shards
from graphdist.ir.ops import TAKE_PART
from graphdist.ir.source import Source
from graphdist.ir.types import MIRRORED, Type


class ChunkBody:
    """The nodes of a body; `factors` are those along which each is computed in `count` chunks."""

    def __init__(
        self, nodes: Sequence[Node], factors: Mapping[Node, int], count: int, at: Source
    ) -> None:
        """Add the nodes; take from outside what they need."""
        self.inside = Builder("compute_in_chunks")
        self.number = Value(Type("i32", (), MIRRORED), "chunk")
        self.taken: dict[Operand, Value] = {}
        """The values from outside, and the inputs of the body for them."""
        self.environment: dict[Operand, Operand] = {}
        """The operands that replace the values of the graph."""
        self._parts: dict[tuple[Operand, int], Value] = {}
        self._count, self._at = count, at
        for node in nodes:
            found, factor = factors_of(node), factors[node]
            assert found is not None
            operands = [
                self._operand(operand, found.dimension(dims, factor))
                for operand, dims in zip(node.operands, found.operands, strict=True)
            ]
            results = on_shards(node, operands, factor, count, self.inside)
            self.environment.update(zip(node.results, results, strict=True))

    def _operand(self, operand: Operand, dimension: int | None) -> Operand:
        """Return what replaces an operand: a value of the body, an input, or a chunk of one."""
        if type(operand) is not Value or operand in self.environment:
            return self.environment.get(operand, operand)
        taken = self.taken.setdefault(operand, Value(operand.type, operand.hint))
        if dimension is None:
            return taken
        if (operand, dimension) not in self._parts:
            (part,) = self.inside.add(
                TAKE_PART, (taken, self.number), TakingPart(dimension, self._count), at=self._at
            )
            self._parts[operand, dimension] = part
        return self._parts[operand, dimension]
