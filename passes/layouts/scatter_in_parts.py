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

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphdist.ir.analyses import operations, producers, use_counts
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.op_parameters import Holding, Joining, Scanning, TakingPart
from graphdist.ir.operation_table import ELEMENTWISE
from graphdist.ir.ops import CONSTANT, JOIN_PARTS, REDUCE_SCATTER, SCAN, TAKE_PART
from graphdist.ir.rewrite import map_nested, substitute
from graphdist.ir.types import MIRRORED, Type

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
    def wide(self) -> Operand:
        """Return the value that is scattered."""
        return self.node.operands[0]

    @property
    def axis(self) -> int:
        """Return the dimension that is scattered."""
        return REDUCE_SCATTER.of(self.node).axis


@dataclass(frozen=True, slots=True)
class _Cut:
    """The dimension along which a value is divided into parts, and the number of parts."""

    axis: int
    count: int


@dataclass(frozen=True, slots=True)
class ScatterInParts:
    """The pass; a widened value of at most `most_bytes` is scattered at once."""

    most_bytes: int

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with large widened values scattered in parts."""
        if REDUCE_SCATTER.name not in operations(graph):
            return graph
        graph = map_nested(graph, self)
        in_parts = {
            scatter.node: (scatter, cut)
            for scatter in _widened(graph)
            if self._is_large(scatter) and (cut := self._cut(scatter)) is not None
        }
        if not in_parts:
            return graph
        moved = {node for scatter, _ in in_parts.values() for node in scatter.chain}
        builder = Builder(NAME)
        environment: dict[Operand, Operand] = {}
        for node in graph.nodes:
            if node in in_parts:
                scatter, cut = in_parts[node]
                (narrow,) = substitute(environment, (scatter.narrow,))
                joined = _in_parts(scatter, cut, narrow, graph, builder)
                environment[node.results[0]] = joined
            elif node not in moved:
                results = builder.keep(node, substitute(environment, node.operands), node.graphs)
                environment.update(zip(node.results, results, strict=True))
        outputs = substitute(environment, graph.outputs)
        return graph.replace(nodes=tuple(builder.nodes), outputs=outputs)

    def declined(self, graph: Graph) -> list[str]:
        """Return the large widened values that are scattered at once, and why."""
        reasons = [
            f"{scatter.wide.type.bytes:,} bytes reduced at {scatter.node.source}: "
            f"{_without_axis(scatter)} divides into parts of {self.most_bytes:,} bytes"
            for scatter in _widened(graph)
            if self._is_large(scatter) and self._cut(scatter) is None
        ]
        for node in graph.nodes:
            for nested in node.graphs:
                reasons += self.declined(nested)
        return reasons

    def _is_large(self, scatter: _Scatter) -> bool:
        return scatter.wide.type.bytes > self.most_bytes

    def _cut(self, scatter: _Scatter) -> _Cut | None:
        """Return how to divide the value into few parts, at the edges of tiles if possible.

        Return None if no dimension can be divided.
        """
        type, scattered = scatter.wide.type, scatter.axis
        fewest = -(-type.bytes // self.most_bytes)
        cuts = [
            _Cut(axis, count)
            for axis, length in enumerate(type.shape)
            if axis != scattered
            for count in range(fewest, min(length, fewest * _SMALLEST_SHARE) + 1)
            if length % count == 0
        ]
        return min(
            cuts, key=lambda cut: (_splits_tiles(type, cut), cut.count, cut.axis), default=None
        )


def _widened(graph: Graph) -> Iterator[_Scatter]:
    """Yield the reduce_scatters of values that are widened from a narrower dtype."""
    for node in graph.nodes:
        if node.op is not REDUCE_SCATTER:
            continue
        chain: list[Node] = []
        operand = narrowest = node.operands[0]
        length = 0
        while (made := _made_alone(operand, graph)) is not None:
            chain.insert(0, made)
            (operand,) = _values(made)
            if operand.type.bytes < narrowest.type.bytes:
                narrowest, length = operand, len(chain)
        if length and not _is_product(narrowest, graph):
            yield _Scatter(node, narrowest, tuple(chain[-length:]))


def _made_alone(operand: Operand, graph: Graph) -> Node | None:
    """Return the node that makes a value, if it is elementwise in one other value.

    Return None if the value is used more than once.
    """
    if type(operand) is not Value or use_counts(graph)[operand] != 1:
        return None
    made = producers(graph).get(operand)
    if made is None or made.op.name not in ELEMENTWISE or len(_values(made)) != 1:
        return None
    numbers = [each for each in made.operands if type(each) is not Value]
    is_alike = _values(made)[0].type.shape == operand.type.shape
    return made if is_alike and not any(number.type.shape for number in numbers) else None


def _is_product(operand: Operand, graph: Graph) -> bool:
    """Return whether a value is a matrix product, or the transpose of one."""
    made = producers(graph).get(operand) if type(operand) is Value else None
    if made is not None and made.op.name == "jax.transpose":
        return _is_product(made.operands[0], graph)
    return made is not None and made.op.name == "jax.dot_general"


def _values(node: Node) -> list[Value]:
    return [operand for operand in node.operands if type(operand) is Value]


def _splits_tiles(type: Type, cut: _Cut) -> bool:
    tile = (*(1,) * (len(type.shape) - 2), *_TILE)[-len(type.shape) :]
    return type.shape[cut.axis] // cut.count % tile[cut.axis] != 0


def _without_axis(scatter: _Scatter) -> str:
    shape, axis = scatter.wide.type.shape, scatter.axis
    return f"of {list(shape)} no dimension but the scattered one, {axis},"


def _in_parts(
    scatter: _Scatter, cut: _Cut, narrow: Operand, graph: Graph, builder: Builder
) -> Value:
    """Add the loop over parts, and the node that joins the parts."""
    at, hint = scatter.node.source, scatter.node.results[0].hint
    (numbers,) = builder.add(CONSTANT, (), Holding(np.arange(cut.count, dtype=np.int32)), at=at)
    params = Scanning(length=cut.count, reverse=False, unroll=1, num_consts=1, num_carry=0)
    body = _body(scatter, cut, narrow, graph)
    stack = builder.add(SCAN, (narrow, numbers), params, (body,), at=at)
    return builder.add(JOIN_PARTS, stack, Joining(cut.axis), at=at, hint=hint)[0]


def _body(scatter: _Scatter, cut: _Cut, narrow: Operand, graph: Graph) -> Graph:
    """Return the body that widens and scatters one part."""
    builder = Builder(NAME)
    taken = Value(narrow.type, narrow.hint if isinstance(narrow, Value) else "")
    number = Value(Type("i32", (), MIRRORED), "part")
    params = TakingPart(cut.axis, cut.count)
    (part,) = builder.add(TAKE_PART, (taken, number), params, at=scatter.node.source)
    for node in scatter.chain:
        operands = [part if type(each) is Value else each for each in node.operands]
        types = [node.results[0].type.shaped(part.type.shape)]
        (part,) = builder.add(
            node.op,
            operands,
            node.params,
            at=node.source,
            types=None if node.op.rule else types,
        )
    node = scatter.node
    (part,) = builder.add(node.op, (part,), node.params, at=node.source)
    return Graph(
        name="body",
        stage=graph.stage,
        num_replicas=graph.num_replicas,
        inputs=(taken, number),
        nodes=tuple(builder.nodes),
        outputs=(part,),
    )
