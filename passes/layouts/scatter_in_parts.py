"""Convert and reduce_scatter a large gradient in parts, instead of converting all of it first.

A gradient is computed in bfloat16 and reduced in float32, as the program says. The float32 value is
twice as large as the gradient and used by one collective only. For the matrices of a large
vocabulary it determines the peak memory of the step. So if the float32 value takes more than
`most_bytes`, each iteration of a loop converts and scatters one part of the bfloat16 value. As many
bytes are sent, and each element is the same, to the bit. Below, R is the number of replicas, and P
the number of parts.

Before:  %w = jax.convert_element_type(%x) {new_dtype=dtype<f32>, ..} : f32[n,m]
         %s = reduce_scatter(%w) {axis=0, ..} : f32[n/R,m]
After:   %y = scan(%x, [0, 1, .., P-1]) {
           %t = take_part(%x_in, %i) {axis=1, count=P} : bf16[n,m/P]
           %w = jax.convert_element_type(%t) ..  %p = reduce_scatter(%w) {axis=0, ..}  return %p }
         %s = join_parts(%y) {axis=1}

How it works. The operations between the narrowest value and its reduce_scatter move into the loop
if each is elementwise on one value and scalars, and its result has no other use. Parts are divided
along a dimension that is not scattered, so that each part has an equal share of every replica's
slice; and at the edges of the tiles of a TPU's memory, if that is possible.

Left alone: values of which no other dimension divides into parts of a suitable size, since small
collectives cost more per byte; and products of matrices, since XLA converts these within the
multiplication and never stores the narrow value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphdist.ir.analyses import producer_of, use_counts
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operand, Operands, Value
from graphdist.ir.op_parameters import Holding, Joining, Scanning, TakingPart
from graphdist.ir.ops import CONSTANT, JOIN_PARTS, REDUCE_SCATTER, SCAN, TAKE_PART
from graphdist.ir.rewrite import Answer, Rewriter, rewrite
from graphdist.ir.types import MIRRORED, Type
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.layouts.elementwise_chains import apply_chain, elementwise_operand

NAME = "scatter_in_parts"

_SMALLEST_SHARE = 4
"""A part has at most `most_bytes` bytes, and at least `most_bytes` divided by this number."""
_TILE = (16, 128)
"""The tile of a TPU's memory: rows and columns of the last two dimensions of 16-bit values."""


@dataclass(frozen=True, slots=True)
class _Scatter:
    """A reduce_scatter with the operations that widen its operand."""

    node: Node
    narrow: Operand
    chain: tuple[Node, ...]
    """The nodes from the first operation on the narrow value to the maker of the operand."""

    @property
    def wide(self) -> Type:
        """Return the type of the value that is scattered."""
        return self.node.operands[0].type

    @property
    def axis(self) -> int:
        """Return the dimension that is scattered."""
        return REDUCE_SCATTER.of(self.node).axis


@dataclass(frozen=True, slots=True)
class ScatterInParts:
    """The pass; a widened value of at most `most_bytes` is scattered at once."""

    most_bytes: int

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with large widened values scattered in parts."""
        made = rewrite(graph, self._rule, NAME, {REDUCE_SCATTER.name})
        return graph if made is graph else eliminate_dead_code(made)

    def declined(self, graph: Graph) -> list[str]:
        """Return the large widened values that are scattered at once, and why."""
        reasons = []
        for node in graph.nodes:
            scatter = self._large(node, graph)
            if scatter is not None and self._cut(scatter) is None:
                shape, axis = list(scatter.wide.shape), scatter.axis
                reasons.append(
                    f"{scatter.wide.bytes:,} bytes reduced at {node.source}: of {shape} no "
                    f"dimension but the scattered one, {axis}, divides into parts of "
                    f"{self.most_bytes:,} bytes"
                )
            for nested in node.graphs:
                reasons += self.declined(nested)
        return reasons

    def _rule(self, node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
        scatter = self._large(node, rewriter.graph)
        cut = None if scatter is None else self._cut(scatter)
        if scatter is None or cut is None:
            return None
        (narrow,), count = rewriter.now((scatter.narrow,)), cut.count
        held, at = Holding(np.arange(count, dtype=np.int32)), node.source
        (numbers,) = rewriter.add(CONSTANT, (), held, at=at)
        params = Scanning(length=count, reverse=False, unroll=1, num_consts=1, num_carry=0)
        body = _body(scatter, cut, narrow, rewriter.graph)
        stack = rewriter.add(SCAN, (narrow, numbers), params, (body,), at=at)
        return rewriter.add(JOIN_PARTS, stack, Joining(cut.axis), at=node)

    def _large(self, node: Node, graph: Graph) -> _Scatter | None:
        """Return the reduce_scatter of a large value that is widened; None for other nodes."""
        if node.op is not REDUCE_SCATTER or node.operands[0].type.bytes <= self.most_bytes:
            return None
        chain: list[Node] = []
        length, narrowest = 0, node.operands[0]
        operand: Operand | None = narrowest
        while type(operand) is Value and use_counts(graph)[operand] == 1:
            made = producer_of(operand, graph)
            operand = elementwise_operand(made)
            if made is None or operand is None:
                break
            chain.insert(0, made)
            if operand.type.bytes < narrowest.type.bytes:
                narrowest, length = operand, len(chain)
        if not length or _is_product(narrowest, graph):
            return None
        return _Scatter(node, narrowest, tuple(chain[-length:]))

    def _cut(self, scatter: _Scatter) -> TakingPart | None:
        """Return how to divide the value into few parts, at the edges of tiles if possible.

        Return None if no dimension can be divided.
        """
        fewest = -(-scatter.wide.bytes // self.most_bytes)
        cuts = [
            TakingPart(axis, count)
            for axis, length in enumerate(scatter.wide.shape)
            if axis != scatter.axis
            for count in range(fewest, min(length, fewest * _SMALLEST_SHARE) + 1)
            if length % count == 0
        ]
        wide = scatter.wide
        return min(
            cuts, key=lambda cut: (_splits_tiles(wide, cut), cut.count, cut.axis), default=None
        )


def _is_product(operand: Operand, graph: Graph) -> bool:
    """Return whether a value is a matrix product, or the transpose of one."""
    made = producer_of(operand, graph)
    if made is not None and made.op.name == "jax.transpose":
        return _is_product(made.operands[0], graph)
    return made is not None and made.op.name == "jax.dot_general"


def _splits_tiles(type: Type, cut: TakingPart) -> bool:
    tile = (*(1,) * (len(type.shape) - 2), *_TILE)[-len(type.shape) :]
    return type.shape[cut.axis] // cut.count % tile[cut.axis] != 0


def _body(scatter: _Scatter, cut: TakingPart, narrow: Operand, graph: Graph) -> Graph:
    """Return the body of the loop over parts, which widens and scatters one part."""
    builder = Builder(NAME)
    hint = narrow.hint if type(narrow) is Value else ""
    inputs = Value(narrow.type, hint), Value(Type("i32", (), MIRRORED), "part")
    (part,) = builder.add(TAKE_PART, inputs, cut, at=scatter.node.source)
    shard = apply_chain((*scatter.chain, scatter.node), part, builder)
    return Graph("body", graph.stage, graph.num_replicas, inputs, tuple(builder.nodes), (shard,))
