"""The factors of elementwise operations, of moves and of reductions.

A rule takes a node and returns the factors of its operands and results (`graphdist.ir.factors`).
A factor is the index of a dimension of the first operand or of the result. A dimension that must
be unsharded has no factor. Rules trust the parameters of a node, as type rules do.

A reshape has a factor for each group of dimensions that it merges or splits. The factor belongs to
the first dimension of the group in the operand and in the result. If both are divided along these
dimensions, into equally many shards, then shards of one index hold the same elements in the same
order. Dimensions of size 1 are in no group, since any of them may correspond to any other. A
sharded dimension may also be of size 1 in a shard. Then the layouts in the node's types say which
dimensions correspond, and if several dimensions are possible there is no factor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from itertools import accumulate, count
from math import prod
from operator import mul
from typing import TypeAlias

from graphdist.ir.factors import Dimensions, Factors, Shape, shard_shape
from graphdist.ir.graph import Node, Operand, Params
from graphdist.ir.jax_parameters import integers, parameter
from graphdist.ir.types import Type

Rule: TypeAlias = Callable[[Node], Factors]
ParamsOfShards: TypeAlias = Callable[[Node, Factors, int, int | Fraction], Params]
"""A function of (node, factors, factor, count): it returns the parameters that `node` has when it
is applied to shards. `count` is the number of shards along `factor`, or `Fraction(1, n)` if `node`
is applied to one of n shards, for the parameters without shards."""


def unrelated(values: Sequence[Operand]) -> tuple[Dimensions, ...]:
    """Return, for each value, the factor None for each of its dimensions."""
    return tuple((None,) * len(value.type.shape) for value in values)


def numbered_dimensions(shape: Shape, without: Collection[int] = ()) -> Dimensions:
    """Return the index of each dimension as its factor, None for the dimensions in `without`.

    >>> numbered_dimensions((3, 4, 5), without=[1])
    (0, None, 2)
    """
    return tuple(None if i in without else i for i in range(len(shape)))


def no_factors(node: Node) -> Factors:
    """Return factors for operands and results that must all be unsharded."""
    return Factors(unrelated(node.operands), unrelated(node.results))


def elementwise(node: Node) -> Factors:
    """Pass each dimension through; scalars and dimensions that are broadcast stay unsharded."""
    shape = node.results[0].type.shape
    operands = tuple(
        tuple(i if size == shape[i] else None for i, size in enumerate(operand.type.shape))
        if len(operand.type.shape) == len(shape)
        else (None,) * len(operand.type.shape)
        for operand in node.operands
    )
    return Factors(operands, (numbered_dimensions(shape),) * len(node.results))


def bitcast(node: Node) -> Factors:
    """Pass all dimensions through, except a last dimension that the bit width adds or removes."""
    operand, result = node.operands[0].type.shape, node.results[0].type.shape
    shared = min(operand, result, key=len)
    own = (None,) * abs(len(operand) - len(result))
    dims = numbered_dimensions(shared)
    longer = (*dims, *own)
    return Factors(
        (dims if operand is shared else longer,), (dims if result is shared else longer,)
    )


def identity(node: Node) -> Factors:
    """Pass all dimensions through; each operand shares its factors with its result alone."""
    numbers = count()
    dims = tuple(tuple(next(numbers) for _ in value.type.shape) for value in node.operands)
    return Factors(dims, dims)


def all_but(name: str) -> Rule:
    """Return the rule that passes all dimensions through but those in the parameter `name`."""

    def rule(node: Node) -> Factors:
        rank = len(node.operands[0].type.shape)
        along = [i % rank for i in integers(node, name)] if rank else []
        dims = numbered_dimensions(node.operands[0].type.shape, along)
        return Factors((dims,) * len(node.operands), (dims,) * len(node.results))

    return rule


def _passing(node: Node, *without: int, alike: int = 1) -> Factors:
    """Pass the dimensions of the first `alike` operands through, but not those in `without`.

    These operands have the same factors as the result. Any other operand has no factors.
    """
    dims = numbered_dimensions(node.operands[0].type.shape, without)
    return Factors(((dims,) * alike + unrelated(node.operands[alike:])), (dims,))


def of_one_size(node: Node) -> Factors:
    """Pass the dimensions through whose size is the same in the first operand and the result.

    A slice that is as long as its operand along a dimension contains every element along it.
    """
    return _passing(node, *_different(node.operands[0], node.results[0]))


def dynamic_update_slice(node: Node) -> Factors:
    """Pass the dimensions through that the update covers completely."""
    return _passing(node, *_different(*node.operands[:2]), alike=2)


def _different(value: Operand, other: Operand) -> list[int]:
    """Return the dimensions that differ in size between two values of one rank."""
    return [i for i, size in enumerate(value.type.shape) if size != other.type.shape[i]]


def pad(node: Node) -> Factors:
    """Pass the dimensions through that are not padded."""
    padding = parameter(node, "padding_config")
    return _passing(node, *(i for i, sizes in enumerate(padding) if any(sizes)))


def broadcast_in_dim(node: Node) -> Factors:
    """Pass the dimensions of the operand through. The result's other dimensions are new factors."""
    operand, *rest = node.operands
    shape = node.results[0].type.shape
    dims = tuple(
        to if size == shape[to] else None
        for size, to in zip(operand.type.shape, integers(node, "broadcast_dimensions"), strict=True)
    )
    return Factors((dims, *unrelated(rest)), (numbered_dimensions(shape),))


def iota(node: Node) -> Factors:
    """Return a new factor for each dimension but the one along which the elements count up."""
    along = integers(node, "dimension")
    return Factors((), (numbered_dimensions(node.results[0].type.shape, along),))


def transpose(node: Node) -> Factors:
    """Pass each dimension through to its new index in the result."""
    order = integers(node, "permutation")
    return Factors((numbered_dimensions(node.operands[0].type.shape),), (order,))


def without(name: str) -> Rule:
    """Return the rule of operations that remove the dimensions in the parameter `name`."""

    def rule(node: Node) -> Factors:
        operand = node.operands[0]
        removed = integers(node, name)
        dims = numbered_dimensions(operand.type.shape, removed)
        result = tuple(i for i in dims if i is not None)
        return Factors((dims, *unrelated(node.operands[1:])), (result,) * len(node.results))

    return rule


def stack(node: Node) -> Factors:
    """Pass the operands' dimensions through. The result has one more, which has no factor."""
    (axis,) = integers(node, "axis")
    dims = numbered_dimensions(node.operands[0].type.shape)
    return Factors((dims,) * len(node.operands), ((*dims[:axis], None, *dims[axis:]),))


def take_step(node: Node) -> Factors:
    """Pass all dimensions through but the first, which holds the iterations."""
    stacked, number = node.operands
    dims = numbered_dimensions(stacked.type.shape, [0])
    return Factors((dims, *unrelated([number])), (dims[1:],))


def join_parts(node: Node) -> Factors:
    """Pass the dimensions of the parts through, but not the one along which parts are joined."""
    (axis,) = integers(node, "axis")
    dims = numbered_dimensions(node.operands[0].type.shape, [0, axis + 1])
    return Factors((dims,), (dims[1:],))


def reduction(reducer: str | None, name: str = "axes", of: str = "") -> Rule:
    """Return the rule of operations that reduce the dimensions in the parameter `name`.

    Each shard gives a term, and `reducer` reduces the terms. The reduced dimensions must be
    unsharded if there is no reducer, or if `of` names a dtype and the operand has another dtype.
    """

    def rule(node: Node) -> Factors:
        operand = node.operands[0].type
        reduced = integers(node, name)
        has_terms = reducer is not None and of in ("", operand.dtype)
        dims = numbered_dimensions(operand.shape, () if has_terms else reduced)
        result = tuple(i for i in range(len(operand.shape)) if i not in reduced)
        operands = tuple(
            dims if value.type.shape == operand.shape else (None,) * len(value.type.shape)
            for value in node.operands  # the initial scalars come after the arrays
        )
        summed = dict.fromkeys(reduced, reducer) if reducer is not None and has_terms else {}
        return Factors(operands, (result,) * len(node.results), summed)

    return rule


def reshape(node: Node) -> Factors:
    """Pass through the first dimension of each group of dimensions that is merged or split."""
    operand, result = node.operands[0].type, node.results[0].type
    if node.params.get("dimensions") is not None:  # the operand is transposed first
        return no_factors(node)
    pairs = _reshaped(operand, result)
    dims = tuple(i if i in pairs else None for i in range(len(operand.shape)))
    back = {to: i for i, to in pairs.items()}
    return Factors((dims,), (tuple(map(back.get, range(len(result.shape)))),))


def _reshaped(operand: Type, result: Type) -> dict[int, int]:
    """Map each dimension of the operand that passes through to the result's dimension."""
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
    sharded, stated = operand.sharded_along, result.sharded_along
    if sharded is not None:
        to = dimension_after_reshape(operand.shape, sharded, result.shape, stated)
        pairs = {i: other for i, other in pairs.items() if i != sharded and other != to}
        pairs |= {} if to is None else {sharded: to}
    return pairs


def dimension_after_reshape(
    shape: Shape, dimension: int, result: Shape, stated: int | None = None
) -> int | None:
    """Return the dimension along which the reshaped shards of an operand are sharded.

    Both shapes are shapes of shards. Several dimensions are possible where all but one of them are
    of size 1. In this case return `stated` if it is one of them, else None.

    >>> dimension_after_reshape((4, 6), 0, (24,)), dimension_after_reshape((4,), 0, (1, 4))
    (0, None)
    """
    found = dimensions_after_reshape(shape, dimension, result)
    if stated in found:
        return stated
    return found[0] if len(found) == 1 else None


def dimensions_after_reshape(shape: Shape, dimension: int, result: Shape) -> list[int]:
    """Return the dimensions along which the reshaped shards of an operand may be sharded.

    >>> dimensions_after_reshape((4, 6), 1, (4, 1, 6)), dimensions_after_reshape((4, 6), 1, (24,))
    ([1, 2], [])
    """
    before = prod(shape[:dimension])
    sizes = [] if 0 in shape else _sizes_before(result)
    return [i for i, size in enumerate(sizes) if size == before]


def _sizes_before(shape: Shape) -> list[int]:
    """Return for each dimension the product of the sizes of the dimensions before it.

    >>> _sizes_before((3, 4, 5))
    [1, 3, 12]
    """
    return list(accumulate(shape[:-1], mul, initial=1))[: len(shape)]


_SIZES = ("limit_indices", "new_sizes", "shape", "slice_sizes")
"""The parameters that state the shape of the result."""


def sizes_of_shards(node: Node, factors: Factors, factor: int, count: int | Fraction) -> Params:
    """Return the parameters with the shape of the shard in place of the shape of the result."""
    sizes = {
        name: shard_shape(factors.results[0], integers(node, name), factor, count)
        for name in _SIZES
        if name in node.params
    }
    return {**node.params, **sizes} if sizes else node.params
