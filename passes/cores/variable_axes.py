"""The axes of a program's variables: dimensions that belong together, such as a model's heads.

Two dimensions belong together if an operation pairs them, as the factors of the table of operations
say: the columns of a first matrix with the rows of the second one, both with the dimension of the
activation between them. So a decoder has an axis of hidden units, one of heads, one of its
vocabulary, one of its width. If the cores of a replica shard all dimensions of one axis, no
operation between them needs values of another core, except for sums along the axis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from graphdist.ir import ops
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.kernel_shards import kernel_factors
from graphdist.ir.kernels import KERNEL
from graphdist.ir.loops import Scan, While
from graphdist.ir.op_parameters import OfVariable
from graphdist.ir.operation_table import factors_of
from graphdist.ir.types import MIRRORED

_Dimension: TypeAlias = tuple[object, int]
"""A dimension of a value, or of the variable with a name."""
_ITERATIONS: _Dimension = (None, 0)
"""Stands for the iterations of loops: no axis, since each device runs all of them."""
_MOST_AXES = 5
_FEWEST_BYTES = 1e-3
"""The smallest share of the largest axis' bytes that an axis in a set has."""
_ALIKE = (ops.TO_REPLICAS, ops.REDUCE, ops.ALL_REDUCE, ops.BARRIER)


@dataclass(frozen=True)
class VariableAxis:
    """Dimensions of variables, by the variables' names, that are sharded together or not at all."""

    dimensions: dict[str, int]
    num_bytes: int
    """The bytes of these variables."""

    def __str__(self) -> str:
        (name, dimension), *others = self.dimensions.items()
        return f"{name}[{dimension}]" + (f" ({1 + len(others)} variables)" if others else "")


def variable_axes(
    graph: Graph, num_cores: int, names: Collection[str] | None = None
) -> list[VariableAxis]:
    """Return the axes of a graph's variables that `num_cores` divide, the largest first.

    With `names`, the variables of these names alone. A variable with two dimensions on one axis has
    the last of them.
    """
    axes = _Axes()
    axes.of_graph(graph)
    found: dict[_Dimension, dict[str, int]] = {}
    sizes = {variable.name: variable.type.bytes for variable in graph.variables}
    for variable in graph.variables:
        is_asked = names is None or variable.name in names
        if not is_asked or variable.type.layout is not MIRRORED:
            continue
        for dimension, size in enumerate(variable.type.shape):
            first = axes.first((variable.name, dimension))
            if size and size % num_cores == 0 and first != axes.first(_ITERATIONS):
                found.setdefault(first, {})[variable.name] = dimension
    all_axes = [
        VariableAxis(dimensions, sum(sizes[name] for name in dimensions))
        for dimensions in found.values()
    ]
    return sorted(all_axes, key=lambda axis: -axis.num_bytes)


def axis_sets(axes: Sequence[VariableAxis]) -> Iterator[Sequence[VariableAxis]]:
    """Yield the sets of axes that have no variable in common, the empty one first.

    The largest axes alone are taken, so that there are at most `2 ** _MOST_AXES` sets.
    """
    large = [axis for axis in axes if axis.num_bytes >= _FEWEST_BYTES * axes[0].num_bytes]
    for count in range(min(len(large), _MOST_AXES) + 1):
        for chosen in combinations(large[:_MOST_AXES], count):
            names = [name for axis in chosen for name in axis.dimensions]
            if len(names) == len(set(names)):
                yield chosen


class _Axes:
    """Sets of dimensions that belong together, as a forest (Galler and Fischer, 1964)."""

    def __init__(self) -> None:
        self._parents: dict[_Dimension, _Dimension] = {}

    def first(self, dimension: _Dimension) -> _Dimension:
        """Return the dimension that stands for all that belong together with one."""
        while (parent := self._parents.get(dimension, dimension)) != dimension:
            self._parents[dimension] = self._parents.get(parent, parent)
            dimension = parent
        return dimension

    def of_graph(self, graph: Graph) -> None:
        """Join the dimensions that the nodes of a graph pair."""
        for node in graph.nodes:
            for nested in node.graphs:
                self.of_graph(nested)
            for one, other in _paired(node):
                self._parents[self.first(one)] = self.first(other)


def _paired(node: Node) -> Iterator[tuple[_Dimension, _Dimension]]:
    if node.op is ops.SCAN or node.op is ops.WHILE:
        yield from _of_loop(Scan(node) if node.op is ops.SCAN else While(node))
    elif node.op is ops.COND:
        for branch in node.graphs:
            yield from _alike(zip(branch.inputs, node.operands[1:], strict=True))
            yield from _alike(zip(branch.outputs, node.results, strict=True))
    elif isinstance(node.params, OfVariable):
        variable = node.params.variable
        for value in (*node.operands, *node.results):
            if value.type.shape == variable.type.shape:
                for dimension in range(len(value.type.shape)):
                    yield (value, dimension), (variable.name, dimension)
    elif node.op in _ALIKE or node.op.is_identity:
        yield from _alike(zip(node.operands, node.results, strict=True))
    else:
        yield from _by_factors(node)


def _of_loop(loop: Scan | While) -> Iterator[tuple[_Dimension, _Dimension]]:
    yield from _alike(loop.constants)
    for carry in loop.carries:
        for inside in (carry.value, carry.following, carry.last):
            yield from _alike([(carry.first, inside)])
    stacks = [*loop.scanned, *((result, output) for output, result in loop.stacked)]
    yield from _alike(stacks, further=1)
    yield from (((stack, 0), _ITERATIONS) for stack, _ in stacks if type(stack) is Value)


def _alike(
    pairs: Iterable[tuple[Operand, Operand]], further: int = 0
) -> Iterator[tuple[_Dimension, _Dimension]]:
    """Yield the paired dimensions; those of the first value are so much further behind."""
    for one, other in pairs:
        if type(one) is Value and type(other) is Value:
            for dimension in range(len(other.type.shape)):
                yield (one, dimension + further), (other, dimension)


def _by_factors(node: Node) -> Iterator[tuple[_Dimension, _Dimension]]:
    factors = kernel_factors(node) if node.op.name == KERNEL else factors_of(node)
    if factors is None:
        return
    first: dict[int, _Dimension] = {}
    all_dims = zip(
        (*factors.operands, *factors.results), (*node.operands, *node.results), strict=True
    )
    for dims, value in all_dims:
        for dimension, factor in enumerate(dims):
            if factor is not None and type(value) is Value:
                yield (value, dimension), first.setdefault(factor, (value, dimension))
