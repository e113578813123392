"""Compute the parts of a value that joins several variables: a part of the pass `cut_updates.py`.

`ravel_pytree` concatenates parameters to one vector, and the full value of a sharded variable is
the concatenation of its shards. A step computes the new vector, splits it, and assigns the parts.
Since no server has all variables, the pass computes each part by itself: it applies an elementwise
operation on the vector to each of its parts.

Before:  %f = jax.concatenate(%w, %v)   %n = jax.sub(%f, %g)   %a, %b = jax.split(%n)
After:   %g1, %g2 = jax.split(%g)   %a = jax.sub(%w, %g1)   %b = jax.sub(%v, %g2)

The nodes are visited in order, and the parts of each value that has the shape of a joined value are
recorded. The parts of a concatenation are its operands. An elementwise operation is applied to each
part of its operands. If rows are added to a table of zeros, as in the gradient of a lookup, the
rows are added to each part, with their indices in that part; rows out of range are dropped. The
parts of all other values are slices, made where a part is needed. Joined values without uses are
removed.

Left alone: loops and branches over joined values, and joined values of one shape that are split at
different indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import cast

from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.jax_parameters import mode, parameter
from graphdist.ir.operation_table import ELEMENTWISE
from graphdist.ir.rewrite import Copier
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.servers.by_element import is_rearranged

NAME = "cut_updates"
_CUTS = ("jax.slice", "jax.split")


@dataclass(frozen=True, slots=True)
class _Partition:
    """How a value is split: along a dimension, into parts of these lengths."""

    dimension: int
    lengths: tuple[int, ...]

    @property
    def ends(self) -> list[int]:
        return [0, *accumulate(self.lengths)]

    def shape(self, full: Sequence[int], part: int) -> tuple[int, ...]:
        return _resized(full, self.dimension, self.lengths[part])


def with_parts(graph: Graph) -> Graph:
    """Return the graph with joined variables split into parts; the same graph if there are none."""
    partitions = _partitions(graph)
    cuts = [node for node in graph.nodes if node.op.name in _CUTS]
    if not any(node.operands[0].type.shape in partitions for node in cuts):
        return graph
    return _Parts(graph, partitions).run()


def _partitions(graph: Graph) -> Mapping[tuple[int, ...], _Partition]:
    """Return the partitions of values that are joined from variables, by the values' shapes."""
    own = set(graph.inputs[: len(graph.variables)])
    found: dict[tuple[int, ...], _Partition] = {}
    for node in graph.nodes:
        if is_rearranged(node) and node.operands[0] in own:
            own.update(node.results)
        is_joined = node.op.name == "jax.concatenate" and not own.isdisjoint(node.operands)
        if is_joined and 0 not in _partition(node).lengths:
            found.setdefault(node.results[0].type.shape, _partition(node))
    return found


def _partition(node: Node) -> _Partition:
    dimension = parameter(node, "dimension")
    lengths = tuple(operand.type.shape[dimension] for operand in node.operands)
    return _Partition(dimension, lengths)


class _Parts:
    """The forward walk over one graph."""

    def __init__(self, graph: Graph, partitions: Mapping[tuple[int, ...], _Partition]) -> None:
        self.graph, self.partitions = graph, partitions
        self.copier = Copier(NAME)
        self.parts: dict[Operand, list[Operand]] = {}
        """The parts of values of the new graph."""
        named = {node.op.name: node for node in reversed(graph.nodes)}
        self.cut = next(named[name] for name in _CUTS if name in named)
        self.adds = next((named[n].op for n in ("jax.add", "jax.sub") if n in named), None)

    def run(self) -> Graph:
        for node in self.graph.nodes:
            operands = self.copier.now(node.operands)
            found = self._taken(node, operands)
            if found is None:
                self._record(node, operands, self.copier.copy(node))
            else:
                self.copier.put(node.results, found)
        return eliminate_dead_code(self.copier.changed(self.graph))

    def _record(self, node: Node, operands: Sequence[Operand], results: Sequence[Value]) -> None:
        """Record the parts of a node's result, if it has the shape of a joined value."""
        partition = self.partitions.get(results[0].type.shape) if len(results) == 1 else None
        if partition is None:
            return
        (result,) = results
        if node.op.name == "jax.concatenate":
            if _partition(node) == partition:
                self.parts[result] = list(operands)
        elif node.op.name in ELEMENTWISE:
            of_operands = [self._parts_of(operand, partition) for operand in operands]
            self.parts[result] = [
                self._again(node, of_part, partition.shape(result.type.shape, index))
                for index, of_part in enumerate(zip(*of_operands, strict=True))
            ]
        elif node.op.name == "jax.broadcast_in_dim" and not operands[0].type.shape:
            shapes = [partition.shape(result.type.shape, i) for i in range(len(partition.lengths))]
            self.parts[result] = [self._again(node, operands, s, {"shape": s}) for s in shapes]
        elif _adds_rows(node) and partition.dimension == 0 and self.adds is not None:
            self.parts[result] = self._rows_added(node, operands, partition)

    def _parts_of(self, value: Operand, partition: _Partition) -> Sequence[Operand]:
        """Return the parts of an operand: known parts or slices; a scalar is its own part."""
        count = len(partition.lengths)
        if not value.type.shape:
            return [value] * count
        if value not in self.parts:
            self.parts[value] = self._split(value, partition.dimension, partition.lengths)
        return self.parts[value]

    def _again(
        self,
        node: Node,
        operands: Sequence[Operand],
        shape: tuple[int, ...],
        changed: Mapping[str, object] | None = None,
    ) -> Operand:
        """Add a node that applies another node's operation to one part."""
        type = node.results[0].type.shaped(shape)
        params = {**node.params, **(changed or {})}
        return self.copier.add(node.op, operands, params, at=node.source, types=[type])[0]

    def _slice(self, value: Operand, dimension: int, start: int, end: int) -> Operand:
        shape = value.type.shape
        if (start, end) == (0, shape[dimension]):
            return value
        parts = self._split(value, dimension, [start, end - start, shape[dimension] - end])
        return parts[bool(start)]

    def _split(self, value: Operand, dimension: int, lengths: Sequence[int]) -> list[Operand]:
        """Return slices of these lengths of a value along a dimension; empty slices are left out.

        The slices are made by the operation of the node `cut`: one jax.split, or several jax.slice.
        """
        shape = value.type.shape
        at = self.cut.source
        if self.cut.op.name == "jax.split":
            sizes = tuple(length for length in lengths if length)
            types = [value.type.shaped(_resized(shape, dimension, size)) for size in sizes]
            params = {"sizes": sizes, "axis": dimension}
            return list(self.copier.add(self.cut.op, [value], params, at=at, types=types))
        found: list[Operand] = []
        for start, end in pairwise([0, *accumulate(lengths)]):
            if start == end:
                continue
            params = {
                "start_indices": _resized([0] * len(shape), dimension, start),
                "limit_indices": _resized(shape, dimension, end),
                "strides": None,
            }
            type = value.type.shaped(_resized(shape, dimension, end - start))
            found += self.copier.add(self.cut.op, [value], params, at=at, types=[type])
        return found

    def _taken(self, node: Node, operands: Sequence[Operand]) -> Sequence[Operand] | None:
        """Return the parts that a node slices, if they are known."""
        if node.op.name not in _CUTS or operands[0] not in self.parts:
            return None
        parts = self.parts[operands[0]]
        partition = self.partitions[operands[0].type.shape]
        found = [self._part(parts, partition, *range_) for range_ in _ranges(node, partition)]
        return None if not found or None in found else cast("list[Operand]", found)

    def _part(
        self, parts: Sequence[Operand], partition: _Partition, start: int, end: int
    ) -> Operand | None:
        for part, (first, last) in zip(parts, pairwise(partition.ends), strict=True):
            if first <= start and end <= last:
                return self._slice(part, partition.dimension, start - first, end - first)
        return None

    def _rows_added(
        self, node: Node, operands: Sequence[Operand], partition: _Partition
    ) -> list[Operand]:
        """Add the rows to each part; rows of other parts are out of range, and dropped."""
        full, indices, rows = operands
        assert self.adds is not None
        sign = 1 if self.adds.name == "jax.sub" else -1
        found = []
        tables = self._parts_of(full, partition)
        for table, start in zip(tables, partition.ends[:-1], strict=True):
            shift = Literal.of(sign * start, indices.type.shaped(()))
            of_part = indices
            if start:
                (of_part,) = self.copier.add(
                    self.adds, [indices, shift], at=node.source, types=[indices.type]
                )
            changed = {"mode": type(parameter(node, "mode"))["FILL_OR_DROP"]}
            found.append(self._again(node, [table, of_part, rows], table.type.shape, changed))
        return found


def _adds_rows(node: Node) -> bool:
    """Return whether a node adds entire rows, and drops rows that are out of range."""
    if not node.op.name.startswith("jax.scatter") or len(node.operands) != 3:
        return False
    table, indices, rows = node.operands
    dimensions, leading = parameter(node, "dimension_numbers"), len(indices.type.shape) - 1
    return (
        mode(node) in ("FILL_OR_DROP", "PROMISE_IN_BOUNDS")
        and indices.type.dtype[0] == "i"
        and indices.type.shape[-1:] == (1,)
        and not dimensions.operand_batching_dims
        and tuple(dimensions.inserted_window_dims) == (0,)
        and tuple(dimensions.scatter_dims_to_operand_dims) == (0,)
        and tuple(dimensions.update_window_dims) == tuple(range(leading, len(rows.type.shape)))
        and rows.type.shape[leading:] == table.type.shape[1:]
    )


def _ranges(node: Node, partition: _Partition) -> list[tuple[int, int]]:
    """Return the starts and ends of a node's slices; [] if they are along another dimension."""
    full, dimension = node.operands[0].type.shape, partition.dimension
    if node.op.name == "jax.split":
        bounds = accumulate(parameter(node, "sizes"), initial=0)
        return list(pairwise(bounds)) if parameter(node, "axis") == dimension else []
    names = ("start_indices", "limit_indices", "strides")
    starts, ends, strides = (parameter(node, name) for name in names)
    others = [i for i in range(len(full)) if i != dimension]
    is_cut_otherwise = any((starts[i], ends[i]) != (0, full[i]) for i in others)
    if is_cut_otherwise or any(step != 1 for step in strides or ()):
        return []
    return [(starts[dimension], ends[dimension])]


def _resized(shape: Sequence[int], dimension: int, length: int) -> tuple[int, ...]:
    return (*shape[:dimension], length, *shape[dimension + 1 :])
