"""Operations on rows, written so that rows are apart from what is done along other dimensions.

`rows_of_replicas.py` follows the dimension of the rows from operation to operation. Four ways to
write a program would end this, although they compute row by row. They are rewritten:

* *A batch of one row.* JAX looks up an element of each row by indices that have the batch as a
  dimension. If the batch has one row, the indices leave it out, and the window covers it.

  Before:  %y = jax.gather(%x, %i) : f32[1,n,1]         (%x : f32[1,n,v], %i : i32[n,1,1])
  After:   %j = reshape(%i) {shape=(1, n, 1, 1)}        %y = jax.gather(%x, %j) : f32[1,n,1]

* *Rows counted up*, as in `x[jnp.arange(n), labels]`. Each row is looked up once, in order.

  Before:  %j = jax.concatenate(0 to n-1, %i)           %y = jax.gather(%x, %j) : f32[n]
  After:   %y = jax.gather(%x, %i) : f32[n]             (%x : f32[n,v], %i : i32[n,1])

* *A sum over rows and others at once* becomes a sum over the others, and one over the rows.

* *What all replicas add to their terms of a sum*, such as the gradient of a weight decay, is added
  after the reduction; behind a sum as many times as there are replicas.

  Before:  %a = jax.add(%g, %m)                         %s = reduce_scatter(%a)
  After:   %r = reduce_scatter(%g)  %o = own_slice(%m)  %s = jax.add(%r, %o)

In both lookups the rows become a dimension that operand and indices share, in JAX's terms a
batching dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: JAX's dimension numbers

from graphdist.ir.graph import Graph, Node, Operand, Operands, Value, is_zero
from graphdist.ir.jax_parameters import integers, parameter
from graphdist.ir.op_parameters import AlongAxis, OverReplicas, Reshaping, Scaling
from graphdist.ir.opaque_placeholders import Placeholder
from graphdist.ir.operation_table import ADDITIONS
from graphdist.ir.ops import ALL_REDUCE, OWN_SLICE, REDUCE_SCATTER, RESHAPE, SCALE, is_over_all
from graphdist.ir.rewrite import Answer, Rewriter, rewrite
from graphdist.ir.types import MIRRORED
from graphdist.passes.layouts.indexed_shards import GATHER, SCATTERS

_SUM, _CONCATENATE = "jax.reduce_sum", "jax.concatenate"
_DTYPES = ("f32", "f64", "bf16")
"""The dtypes in which a term may be added after a reduction. The range of f16 is small."""


def separate_rows(graph: Graph, origin: str) -> Graph:
    """Return the graph, and its nested graphs, with rows apart."""
    names = {GATHER, *SCATTERS, _SUM, ALL_REDUCE.name, REDUCE_SCATTER.name}
    return rewrite(graph, _rule, origin, names)


def _rule(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    if node.op.name == _SUM:
        return _one_sum_after_the_other(node, operands, rewriter)
    if node.op in (ALL_REDUCE, REDUCE_SCATTER):
        is_sum = is_over_all(node) and node.params["reducer"] in ("sum", "mean")
        return _add_after(node, operands[0], rewriter) if is_sum else None
    numbers: Any = parameter(node, "dimension_numbers")
    if isinstance(numbers, Placeholder):
        return None
    lookup = _Lookup(node, numbers)
    return lookup.of_one_row(operands, rewriter) or lookup.of_counted_rows(operands, rewriter)


def _one_sum_after_the_other(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    """Sum over the first dimension last."""
    others, type = [axis for axis in integers(node, "axes") if axis > 0], node.operands[0].type
    if not 0 < len(others) < len(integers(node, "axes")):
        return None
    shape = tuple(size for i, size in enumerate(type.shape) if i not in others)
    sums = rewriter.again(node, operands, [type._replace(shape=shape)], axes=tuple(others))
    return rewriter.again(node, sums, axes=(0,))


def _add_after(reduction: Node, operand: Operand, rewriter: Rewriter) -> Answer:
    """Reduce one of two terms of a sum, and add the other, which all replicas have, to the result.

    Return None if the operand is no such sum.
    """
    made = rewriter.definition(operand, *ADDITIONS) if rewriter.uses(operand) == 1 else None
    if made is None or operand.type.dtype not in _DTYPES:
        return None
    if any(each.type.shape != operand.type.shape for each in made.operands):
        return None
    alike = [each.type.layout is MIRRORED for each in made.operands]
    if alike.count(True) != 1:
        return None
    own = alike.index(False)
    term = made.operands[own]
    results = _add_after(reduction, term, rewriter) or rewriter.again(reduction, (term,))
    (other,) = _as_reduced(made.operands[1 - own], reduction, rewriter)
    sides = (*results, other) if own == 0 else (other, *results)
    return rewriter.again(made, sides, [results[0].type])


def _as_reduced(operand: Operand, reduction: Node, rewriter: Rewriter) -> Sequence[Operand]:
    """Return what a value that all replicas add to their terms adds to the reduction's result."""
    mesh = OverReplicas.of(reduction).mesh
    if reduction.params["reducer"] == "sum":
        (operand,) = rewriter.add(SCALE, (operand,), Scaling(mesh.num_replicas), at=reduction)
    if reduction.op is ALL_REDUCE:
        return (operand,)
    params = AlongAxis(REDUCE_SCATTER.of(reduction).axis, group_size=mesh.group_size)
    return rewriter.add(OWN_SLICE, (operand,), params, at=reduction)


class _Lookup:
    """A gather or a scatter, and what its dimension numbers mean."""

    def __init__(self, node: Node, numbers: Any) -> None:
        self._node, self._numbers = node, numbers
        self._is_gather = node.op.name == GATHER
        self._windows = tuple(self._of("offset_dims", "update_window_dims"))
        self._removed = tuple(self._of("collapsed_slice_dims", "inserted_window_dims"))
        self._indexed = tuple(self._of("start_index_map", "scatter_dims_to_operand_dims"))
        beside = self._of("start_indices_batching_dims", "scatter_indices_batching_dims")
        self._beside = dict(zip(numbers.operand_batching_dims, beside, strict=True))

    def _of(self, of_gather: str, of_scatter: str) -> Any:
        return getattr(self._numbers, of_gather if self._is_gather else of_scatter)

    def of_one_row(self, operands: Operands, rewriter: Rewriter) -> Answer:
        """Add the lookup with a dimension of size 1 that windows cover as a dimension of indices.

        Return None if there is none.
        """
        shape = self._node.operands[0].type.shape
        others = {*self._removed, *self._indexed, *self._beside}
        row = next((i for i, size in enumerate(shape) if size == 1 and i not in others), None)
        if row is None:
            return None
        kept = [i for i in range(len(shape)) if i not in {*self._removed, *self._beside}]
        place = self._windows[kept.index(row)]
        # So many dimensions of the result before that of the window are dimensions of the indices.
        at = sum(i not in self._windows for i in range(place))
        array, indices, *updates = operands
        sizes = indices.type.shape
        reshaping = Reshaping((*sizes[:at], 1, *sizes[at:]))
        (indices,) = rewriter.add(RESHAPE, (indices,), reshaping, at=self._node.source)
        beside = {i: to + (to >= at) for i, to in self._beside.items()} | {row: at}
        windows = tuple(i for i in self._windows if i != place)
        numbers = self._numbers_with(beside, windows, self._removed, self._indexed)
        return rewriter.again(self._node, (array, indices, *updates), dimension_numbers=numbers)

    def of_counted_rows(self, operands: Operands, rewriter: Rewriter) -> Answer:
        """Add the lookup without a component of its indices that counts up; None if there is none.

        As many rows are looked up as there are.
        """
        array, indices, *updates = operands
        made = rewriter.definition(indices, _CONCATENATE)
        rank = len(indices.type.shape)
        if made is None or len(made.operands) != len(self._indexed):
            return None
        if integers(made, "dimension") != (rank - 1,):
            return None
        for component, operand in enumerate(made.operands):
            row, along = self._indexed[component], _counted_dimension(operand, rewriter)
            is_all = along is not None and indices.type.shape[along] == array.type.shape[row]
            if not is_all or row not in self._removed or len(made.operands) == 1:
                continue
            rest = [each for i, each in enumerate(made.operands) if i != component]
            if len(rest) > 1:
                type = indices.type.resized(rank - 1, len(rest))
                rest = list(rewriter.again(made, rest, [type]))
            assert along is not None
            numbers = self._numbers_with(
                {**self._beside, row: along},
                self._windows,
                tuple(i for i in self._removed if i != row),
                tuple(i for i in self._indexed if i != row),
            )
            return rewriter.again(self._node, (array, *rest, *updates), dimension_numbers=numbers)
        return None

    def _numbers_with(
        self,
        beside: dict[int, int],
        windows: tuple[int, ...],
        removed: tuple[int, ...],
        indexed: tuple[int, ...],
    ) -> Any:
        """Return the dimension numbers; `beside` maps dimensions of the operand to the indices'."""
        names = (
            "offset_dims collapsed_slice_dims start_index_map start_indices_batching_dims"
            if self._is_gather
            else "update_window_dims inserted_window_dims scatter_dims_to_operand_dims "
            "scatter_indices_batching_dims"
        )
        of_indices = tuple(beside[i] for i in sorted(beside))
        found = (windows, removed, indexed, of_indices)
        return self._numbers._replace(
            operand_batching_dims=tuple(sorted(beside)),
            **dict(zip(names.split(), found, strict=True)),
        )


def _counted_dimension(operand: Operand, rewriter: Rewriter) -> int | None:
    """Return the dimension along which an operand counts up from 0; None if it does not."""
    made = rewriter.definition(operand)
    if made is None:
        return None
    if made.op.name == "jax.iota":
        return integers(made, "dimension")[0]
    if made.op.name == "jax.broadcast_in_dim" and type(made.operands[0]) is Value:
        along = _counted_dimension(made.operands[0], rewriter)
        return None if along is None else integers(made, "broadcast_dimensions")[along]
    if made.op.name == "jax.select_n" and len(made.operands) == 3:
        # JAX counts negative indices from the end; there are none.
        tested = rewriter.definition(made.operands[0], "jax.lt")
        counted = made.operands[1]
        is_tested = tested is not None and tested.operands[0] is counted
        if tested is not None and is_tested and is_zero(tested.operands[1]):
            return _counted_dimension(counted, rewriter)
    return None
