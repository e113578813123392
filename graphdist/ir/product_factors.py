"""The factors of products, convolutions, windows, accesses by index, and linear algebra.

Rules are as in `graphdist.ir.factor_rules`. These dimensions have no factor, and so are unsharded:

* features in groups, unless each group is one feature, since the sizes of dimensions do not show
  whether the number of shards divides the number of groups;
* dimensions along which windows overlap, leave elements out or are padded, since a shard would need
  elements of the next shard;
* the indexed dimensions of a gather or scatter, and dimensions that are longer than their window;
* the rows of indices of a `scatter-add`. The result for each shard of rows contains the full
  operand, so the sum of these results would contain the operand several times. For a `scatter-max`
  or `scatter-min` this is harmless, so their rows have a factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from graphdist.ir.factor_rules import Rule, unrelated
from graphdist.ir.factors import Dimensions, Factors, shard_shape
from graphdist.ir.graph import Node, Operand, Params
from graphdist.ir.jax_parameters import integers, parameter


def dot_general(node: Node) -> Factors:
    """Pass batch and free dimensions through, and sum the contracted dimensions."""
    contracted, batch = parameter(node, "dimension_numbers")
    return _product(node, contracted, batch, (), ())


def ragged_dot_general(node: Node) -> Factors:
    """Return the factors of a ragged product. Groups and ragged dimensions have none."""
    numbers = parameter(node, "ragged_dot_dimension_numbers")
    contracted, batch = numbers.dot_dimension_numbers
    ragged, groups = tuple(numbers.lhs_ragged_dimensions), tuple(numbers.rhs_group_dimensions)
    if len(node.operands[2].type.shape) > 1:  # each batch entry has its own group sizes
        return Factors(unrelated(node.operands), unrelated(node.results))
    return _product(node, contracted, batch, ragged, groups)


def _product(
    node: Node,
    contracted: Sequence[Sequence[int]],
    batch: Sequence[Sequence[int]],
    ragged: tuple[int, ...],
    groups: tuple[int, ...],
) -> Factors:
    """Return the factors of a product.

    A factor is the index of a dimension of the left operand. For a dimension that only the right
    operand has, it is the left rank plus the dimension's index. The result has the batch
    dimensions, then the free dimensions of left and right. If a contracted dimension is ragged, a
    dimension of groups comes before all of them.
    """
    left, right = (operand.type.shape for operand in node.operands[:2])
    ranks = len(left), len(right)
    same = dict(zip((*batch[1], *contracted[1]), (*batch[0], *contracted[0]), strict=True))
    of_right = [same.get(j, ranks[0] + j) for j in range(ranks[1])]
    free = [i for i in range(ranks[0]) if i not in (*batch[0], *contracted[0])]
    result = [*batch[0], *free]
    result += [of_right[j] for j in range(ranks[1]) if j not in (*same, *groups)]
    lost = {*ragged, *(of_right[j] for j in groups)}
    if node.results[0].type.dtype == "bool":  # a product of booleans is no sum
        lost.update(contracted[0])
    summed = dict.fromkeys((i for i in contracted[0] if i not in lost), "sum")
    of_groups = [None] * (len(node.results[0].type.shape) - len(result))
    dims = [
        tuple(None if of in lost else int(of) for of in each)
        for each in (range(ranks[0]), of_right, result)
    ]
    operands = (*dims[:2], *unrelated(node.operands[2:]))
    return Factors(operands, ((*of_groups, *dims[2]),), summed)


_BATCH, _OUT, _IN, _SPACE = range(4)
"""The factors of a convolution. Spatial dimension i has the factor `_SPACE + i`."""


def convolution_factors(node: Node) -> Factors:
    """Pass batch and output features through, and sum input features."""
    numbers = parameter(node, "dimension_numbers")
    (groups,) = integers(node, "feature_group_count")
    (batch_groups,) = integers(node, "batch_group_count")
    operand, weights = (value.type.shape for value in node.operands)
    has_out = batch_groups == 1 and groups in (1, operand[numbers.lhs_spec[1]])
    batch, out = _BATCH if batch_groups == 1 else None, _OUT if has_out else None
    of_features = _IN if groups == 1 else None
    window = [weights[i] for i in numbers.rhs_spec[2:]]
    result = node.results[0].type.shape
    sizes = [
        (operand[i], result[j])
        for i, j in zip(numbers.lhs_spec[2:], numbers.out_spec[2:], strict=True)
    ]
    own = _own_windows(node, window, sizes, "lhs_dilation", "rhs_dilation")
    space = [_SPACE + i if is_own else None for i, is_own in enumerate(own)]
    return Factors(
        (
            _placed(numbers.lhs_spec, (batch, _IN if groups == 1 else out, *space)),
            _placed(numbers.rhs_spec, (out, of_features, *(None for _ in space))),
        ),
        (_placed(numbers.out_spec, (batch, out, *space)),),
        {_IN: "sum"} if groups == 1 else {},
    )


def _own_windows(
    node: Node,
    window: Sequence[int],
    sizes: Sequence[tuple[int, int]],
    dilation: str,
    window_dilation: str,
) -> Iterator[bool]:
    """Yield whether windows share no elements along each dimension, and leave none out.

    `sizes` are the numbers of elements and of windows, `dilation` and `window_dilation` the names
    of the parameters that have the dilations of the operand and of the window.
    """
    strides, padding = integers(node, "window_strides"), parameter(node, "padding")
    ones = (1,) * len(window)
    apart = integers(node, dilation) if dilation in node.params else ones
    inside = integers(node, window_dilation) if window_dilation in node.params else ones
    each = zip(window, strides, apart, inside, padding, sizes, strict=True)
    for size, stride, of_operand, of_window, pads, (elements, windows) in each:
        is_dense = of_operand == 1 and (of_window == 1 or size == 1) and not any(pads)
        yield is_dense and size == stride and elements == windows * stride


def _placed(places: Sequence[int], dims: Sequence[int | None]) -> Dimensions:
    """Return `dims` permuted: `dims[i]` becomes the factor of dimension `places[i]`."""
    by_place = dict(zip(places, dims, strict=True))
    return tuple(by_place[place] for place in range(len(by_place)))


def features_of_shards(node: Node, factors: Factors, factor: int, count: int | Fraction) -> Params:
    """Return the parameters of the convolution that computes one of `count` shards.

    If a grouped convolution is sharded along the output features, a shard has 1 / `count` of the
    groups.
    """
    (groups,) = integers(node, "feature_group_count")
    if factor != _OUT or groups == 1:
        return node.params
    return {**node.params, "feature_group_count": groups // count}


def windows(node: Node) -> Factors:
    """Pass the dimensions through along which each element is in one window, such as in a pool."""
    window = integers(node, "window_dimensions")
    shapes = [value.type.shape for value in (*node.operands, *node.results) if value.type.shape]
    sizes = [(max(along), min(along)) for along in zip(*shapes, strict=True)]
    own = _own_windows(node, window, sizes, "base_dilation", "window_dilation")
    passed = tuple(i if is_own else None for i, is_own in enumerate(own))
    operands = tuple(passed if value.type.shape else () for value in node.operands)
    return Factors(operands, (passed,) * len(node.results))


def gather_by_index(node: Node) -> Factors:
    """Pass through the batch, the rows of indices, and the dimensions that windows cover fully."""
    numbers = parameter(node, "dimension_numbers")
    batch = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    values = (*node.operands, node.results[0])
    of_operand, of_indices, of_windows = _accessed(
        values, numbers.offset_dims, numbers.collapsed_slice_dims, batch
    )
    return Factors((of_operand, of_indices), (of_windows,))


def windows_of_shards(node: Node, factors: Factors, factor: int, count: int | Fraction) -> Params:
    """Return the parameters of a gather from shards: its windows are shards of the full windows."""
    numbers = parameter(node, "dimension_numbers")
    dims = tuple(
        None if i in numbers.operand_batching_dims else of
        for i, of in enumerate(factors.operands[0])
    )
    sizes = shard_shape(dims, integers(node, "slice_sizes"), factor, count)
    return {**node.params, "slice_sizes": sizes}


def scatter_by_index(reducer: str | None = None) -> Rule:
    """Return the rule of scatters. It is like a gather's, with the updates in place of the result.

    Shards of the rows of indices and updates give terms, which `reducer` reduces. Without a
    `reducer`, the rows have no factor.
    """

    def rule(node: Node) -> Factors:
        numbers = parameter(node, "dimension_numbers")
        batch = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
        of_operand, of_indices, of_windows = _accessed(
            node.operands, numbers.update_window_dims, numbers.inserted_window_dims, batch
        )
        rows = {of for of in of_indices if of is not None and of not in of_operand}
        if reducer is None:
            of_indices, of_windows = (
                tuple(None if of in rows else of for of in dims)
                for dims in (of_indices, of_windows)
            )
        summed = {} if reducer is None else dict.fromkeys(rows, reducer)
        return Factors((of_operand, of_indices, of_windows), (of_operand,), summed)

    return rule


def _accessed(
    values: Sequence[Operand],
    in_windows: Sequence[int],
    removed: Sequence[int],
    batch: tuple[Sequence[int], Sequence[int]],
) -> tuple[Dimensions, Dimensions, Dimensions]:
    """Return the factors of an operand, of the indices into the operand, and of the windows.

    `values` are these three; the windows are the result of a gather, or the updates of a scatter.
    The dimensions `in_windows` of the windows belong to the dimensions of the operand that are
    neither `removed` nor batch dimensions. The other dimensions of the windows belong to the rows
    of the indices, since the last dimension of the indices holds the indices of one window. `batch`
    has the batch dimensions of the operand and of the indices.
    """
    shape, shape_of_indices, sizes = (value.type.shape for value in values)
    rows = [len(shape) + i for i in range(len(shape_of_indices) - 1)]
    kept = [i for i in range(len(shape)) if i not in (*removed, *batch[0])]
    of_operand = {i: rows[row] for i, row in zip(*batch, strict=True)}
    of_windows: dict[int, int] = {}
    for i, place in zip(kept, in_windows, strict=True):
        if sizes[place] == shape[i]:
            of_operand[i] = of_windows[place] = i
    others = [place for place in range(len(sizes)) if place not in in_windows]
    of_windows |= zip(others, rows, strict=True)
    return (
        tuple(map(of_operand.get, range(len(shape)))),
        (*rows, None),
        tuple(map(of_windows.get, range(len(sizes)))),
    )


def batched(matrix: int) -> Rule:
    """Return the rule that passes all but the first operand's last `matrix` dimensions through."""
    return lambda node: _batched(node, len(node.operands[0].type.shape) - matrix)


def fft(node: Node) -> Factors:
    """Pass the dimensions through that are not transformed."""
    transformed = len(integers(node, "fft_lengths"))
    return _batched(node, len(node.operands[0].type.shape) - transformed)


def _batched(node: Node, batch: int) -> Factors:
    operands, results = (
        tuple(_first(value, batch) for value in values) for values in (node.operands, node.results)
    )
    return Factors(operands, results)


def _first(value: Operand, batch: int) -> Dimensions:
    return tuple(i if i < batch else None for i in range(len(value.type.shape)))


def triangular_solve(node: Node) -> Factors:
    """Pass the batch and the right-hand sides through, since each side is solved by itself."""
    rank = len(node.operands[0].type.shape)
    sides = _vectors(rank, is_of_columns=parameter(node, "left_side"))
    return Factors((_first(node.operands[0], rank - 2), sides), (sides,))


def tridiagonal_solve(node: Node) -> Factors:
    """Pass the batch and the right-hand sides through, as `triangular_solve` does."""
    *diagonals, sides = node.operands
    rank = len(sides.type.shape)
    columns = _vectors(rank, is_of_columns=True)
    return Factors((*(_first(each, rank - 2) for each in diagonals), columns), (columns,))


def ormqr(node: Node) -> Factors:
    """Pass the batch through, and the columns or rows of the matrix that Q multiplies."""
    reflectors, scales, _ = node.operands
    rank = len(reflectors.type.shape)
    multiplied = _vectors(rank, is_of_columns=parameter(node, "left"))
    matrix = _first(reflectors, rank - 2), _first(scales, rank - 2)
    return Factors((*matrix, multiplied), (multiplied,))


def _vectors(rank: int, *, is_of_columns: bool) -> Dimensions:
    """Return the factors of matrices whose columns, or else rows, do not depend on each other."""
    along = rank - 1 if is_of_columns else rank - 2
    return tuple(i if i < rank - 2 or i == along else None for i in range(rank))
