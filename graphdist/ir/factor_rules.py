"""The factors of operations that work dimension by dimension: elements, moves, reductions.

A rule takes a node and returns the factors of its operands and results (`graphdist.ir.factors`).
Factors are numbered as the dimensions of the first operand or of the result; a dimension that needs
all has none. Rules trust the parameters of a node, as type rules do.

A reshape has a factor for each group of dimensions that it merges or splits. The first dimension of
the group on each side has it: with equal counts of elements before them, equal shards along these
hold the same elements in the same order. Dimensions of size 1 are in no group, since nothing says
which of them became which. In a shard any dimension may be of size 1: what the types state of the
node's own shards counts first, and where they leave several ways open there is no factor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, count
from math import prod
from operator import mul
from typing import TypeAlias, cast

from graphdist.ir.factors import Dimensions, Factors, Shape, shard_shape
from graphdist.ir.graph import Node, Operand, Params
from graphdist.ir.types import Type

Rule: TypeAlias = Callable[[Node], Factors]
ParamsOfShards: TypeAlias = Callable[[Node, int, int], Params]
"""The parameters with which a node is applied to shards: of which factor, and how many."""


def integers(node: Node, name: str) -> tuple[int, ...]:
    """Return a parameter that is a number, or several, as several."""
    value = node.params[name]
    items = cast("Sequence[int]", value if isinstance(value, tuple | list) else (value,))
    return tuple(map(int, items))


def unrelated(values: Sequence[Operand]) -> tuple[Dimensions, ...]:
    """Return the dimensions of values, none with a factor."""
    return tuple((None,) * len(value.type.shape) for value in values)


def numbered_dimensions(shape: Shape, without: Collection[int] = ()) -> Dimensions:
    """Return a factor for each dimension of a shape, its own number, but for some.

    >>> numbered_dimensions((3, 4, 5), without=[1])
    (0, None, 2)
    """
    return tuple(None if i in without else i for i in range(len(shape)))


def no_factors(node: Node) -> Factors:
    """Need all of every dimension."""
    return Factors(unrelated(node.operands), unrelated(node.results))


def elementwise(node: Node) -> Factors:
    """Pass each dimension through; every shard takes all of a scalar, and of a single row."""
    shape = node.results[0].type.shape
    operands = tuple(
        tuple(i if size == shape[i] else None for i, size in enumerate(operand.type.shape))
        if len(operand.type.shape) == len(shape)
        else (None,) * len(operand.type.shape)
        for operand in node.operands
    )
    return Factors(operands, (numbered_dimensions(shape),) * len(node.results))


def bitcast(node: Node) -> Factors:
    """Pass all dimensions through but the last one, which another width adds or takes away."""
    operand, result = node.operands[0].type.shape, node.results[0].type.shape
    shared = min(operand, result, key=len)
    own = (None,) * abs(len(operand) - len(result))
    dims = numbered_dimensions(shared)
    longer = (*dims, *own)
    return Factors(
        (dims if operand is shared else longer,), (dims if result is shared else longer,)
    )


def identity(node: Node) -> Factors:
    """Pass all through: each pair of an operand and its result has factors of its own."""
    numbers = count()
    dims = tuple(tuple(next(numbers) for _ in value.type.shape) for value in node.operands)
    return Factors(dims, dims)


def all_but(name: str) -> Rule:
    """Return the rule of operations along dimensions, which the parameter names."""

    def rule(node: Node) -> Factors:
        rank = len(node.operands[0].type.shape)
        along = [i % rank for i in integers(node, name)] if rank else []
        dims = numbered_dimensions(node.operands[0].type.shape, along)
        return Factors((dims,) * len(node.operands), (dims,) * len(node.results))

    return rule


def of_one_size(node: Node) -> Factors:
    """Pass the dimensions through that the first operand and the result have alike.

    So it is for a slice, which takes all of these: it cannot begin after the first element.
    """
    operand, result = node.operands[0].type.shape, node.results[0].type.shape
    changed = [i for i, size in enumerate(operand) if size != result[i]]
    dims = numbered_dimensions(operand, changed)
    return Factors((dims, *unrelated(node.operands[1:])), (dims,))


def dynamic_update_slice(node: Node) -> Factors:
    """Pass the dimensions through that the update covers."""
    operand, update, *starts = node.operands
    partial = [i for i, size in enumerate(operand.type.shape) if size != update.type.shape[i]]
    dims = numbered_dimensions(operand.type.shape, partial)
    return Factors((dims, dims, *unrelated(starts)), (dims,))


def pad(node: Node) -> Factors:
    """Pass the dimensions through that get no padding."""
    padding = cast("Sequence[Sequence[int]]", node.params["padding_config"])
    padded = [i for i, sizes in enumerate(padding) if any(sizes)]
    dims = numbered_dimensions(node.operands[0].type.shape, padded)
    return Factors((dims, *unrelated(node.operands[1:])), (dims,))


def broadcast_in_dim(node: Node) -> Factors:
    """Pass the dimensions of the operand through; those that the result has beside are new."""
    operand, *rest = node.operands
    shape = node.results[0].type.shape
    dims = tuple(
        to if size == shape[to] else None
        for size, to in zip(operand.type.shape, integers(node, "broadcast_dimensions"), strict=True)
    )
    return Factors((dims, *unrelated(rest)), (numbered_dimensions(shape),))


def iota(node: Node) -> Factors:
    """Make each dimension new but the one that counts."""
    along = integers(node, "dimension")
    return Factors((), (numbered_dimensions(node.results[0].type.shape, along),))


def transpose(node: Node) -> Factors:
    """Pass each dimension through to its new place."""
    order = integers(node, "permutation")
    return Factors((numbered_dimensions(node.operands[0].type.shape),), (order,))


def without(name: str) -> Rule:
    """Return the rule of operations whose results lack the dimensions that a parameter names."""

    def rule(node: Node) -> Factors:
        operand = node.operands[0]
        removed = integers(node, name)
        dims = numbered_dimensions(operand.type.shape, removed)
        result = tuple(i for i in dims if i is not None)
        return Factors((dims, *unrelated(node.operands[1:])), (result,) * len(node.results))

    return rule


def stack(node: Node) -> Factors:
    """Pass the dimensions of the operands through, around the one they are stacked along."""
    (axis,) = integers(node, "axis")
    dims = numbered_dimensions(node.operands[0].type.shape)
    return Factors((dims,) * len(node.operands), ((*dims[:axis], None, *dims[axis:]),))


def take_step(node: Node) -> Factors:
    """Pass the dimensions through behind the first, which a loop walks along."""
    stacked, number = node.operands
    dims = numbered_dimensions(stacked.type.shape, [0])
    return Factors((dims, *unrelated([number])), (dims[1:],))


def join_parts(node: Node) -> Factors:
    """Pass the dimensions of the parts through but the one they are joined along."""
    (axis,) = integers(node, "axis")
    dims = numbered_dimensions(node.operands[0].type.shape, [0, axis + 1])
    return Factors((dims,), (dims[1:],))


def reduction(reducer: str | None, name: str = "axes", of: str = "") -> Rule:
    """Return the rule of operations that reduce the dimensions which a parameter names.

    Terms of shards are reduced by `reducer`. Without one, and if `of` is not the dtype, a dimension
    that is reduced needs all.
    """

    def rule(node: Node) -> Factors:
        operand = node.operands[0].type
        reduced = integers(node, name)
        has_terms = reducer is not None and of in ("", operand.dtype)
        dims = numbered_dimensions(operand.shape, () if has_terms else reduced)
        result = tuple(i for i in range(len(operand.shape)) if i not in reduced)
        operands = tuple(
            dims if value.type.shape == operand.shape else (None,) * len(value.type.shape)
            for value in node.operands  # behind arrays stand the scalars that they begin with
        )
        summed = dict.fromkeys(reduced, reducer) if reducer is not None and has_terms else {}
        return Factors(operands, (result,) * len(node.results), summed)

    return rule


def reshape(node: Node) -> Factors:
    """Pass the first dimension of each group through that is merged or split."""
    operand, result = node.operands[0].type, node.results[0].type
    if node.params.get("dimensions") is not None:  # transposed first
        return no_factors(node)
    pairs = _reshaped(operand, result)
    dims = tuple(i if i in pairs else None for i in range(len(operand.shape)))
    back = {to: i for i, to in pairs.items()}
    return Factors((dims,), (tuple(map(back.get, range(len(result.shape)))),))


def _reshaped(operand: Type, result: Type) -> dict[int, int]:
    """Return the dimension of the result for each dimension of the operand that passes through."""
    if 0 in operand.shape:
        return {}
    starts = {
        before: i for i, before in enumerate(_sizes_before(result.shape)) if result.shape[i] > 1
    }
    pairs = {
        i: starts[before]
        for i, before in enumerate(_sizes_before(operand.shape))
        if operand.shape[i] > 1 and before in starts
    }
    sharded, stated = _sharded_along(operand), _sharded_along(result)
    if sharded is not None:
        to = dimension_after_reshape(operand.shape, sharded, result.shape, stated)
        pairs = {i: other for i, other in pairs.items() if i != sharded and other != to}
        pairs |= {} if to is None else {sharded: to}
    return pairs


def _sharded_along(type: Type) -> int | None:
    return None if type.layout is None else type.layout.dimension


def dimension_after_reshape(
    shape: Shape, dimension: int, result: Shape, stated: int | None = None
) -> int | None:
    """Return the dimension of a result along which it is sharded, as its operand is along another.

    Both shapes are those of shards. There may be several such dimensions, of which all but one are
    of size 1: then the one that is stated, or None.

    >>> dimension_after_reshape((4, 6), 0, (24,)), dimension_after_reshape((4,), 0, (1, 4))
    (0, None)
    """
    if 0 in shape:
        return None
    before = prod(shape[:dimension])
    found = [i for i, size in enumerate(_sizes_before(result)) if size == before]
    if stated in found:
        return stated
    return found[0] if len(found) == 1 else None


def _sizes_before(shape: Shape) -> list[int]:
    """Return for each dimension the number of elements that those in front of it have.

    >>> _sizes_before((3, 4, 5))
    [1, 3, 12]
    """
    return list(accumulate(shape[:-1], mul, initial=1))[: len(shape)]


def sizes_of_shards(name: str, rule: Rule) -> ParamsOfShards:
    """Return what gives the parameters for shards, where one of them is the shape of the result."""

    def params(node: Node, factor: int, count: int) -> Params:
        (dims,) = rule(node).results
        return {**node.params, name: shard_shape(dims, integers(node, name), factor, count)}

    return params
