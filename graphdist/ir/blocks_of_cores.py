"""Dimensions that hold several things one behind the other, of which each is sharded for itself.

Fused weights give query, key and value by one product, which is split behind it. If the product
were sharded as a whole, one core would have queries and another one values. So the dimension is
sharded in blocks: each core has its shard of each block.

An operation that treats all elements of a dimension alike is computed on shards in blocks as on
others. Splits, slices, joins, pads and reshapes do not, and are computed on such shards where they
keep to the borders of the blocks. Which blocks a value should have says the pass that splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import prod
from typing import Any, TypeAlias  # Any: a changed parameter of an operation

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Node, Operand, Value
from graphdist.ir.jax_parameters import integers, parameter
from graphdist.ir.mesh import CORE
from graphdist.ir.operation_table import ELEMENTWISE
from graphdist.ir.types import MIRRORED, Layout, sharded

Blocks: TypeAlias = tuple[int, ...]
BlocksOfValues: TypeAlias = Mapping[tuple[Operand, int], Blocks]
"""The blocks along dimensions of values."""
LayoutsOfNode: TypeAlias = tuple[tuple[Layout, ...], tuple[Layout, ...]]
"""The layouts over cores of the operands and of the results of a node."""

_ALIKE = ELEMENTWISE | {
    "jax.broadcast_in_dim",
    "jax.concatenate",
    "jax.dot_general",
    "jax.pad",
    "jax.reduce_max",
    "jax.reduce_min",
    "jax.reduce_sum",
    "jax.reshape",
    "jax.slice",
    "jax.split",
    "jax.squeeze",
    "jax.stack",
    "jax.transpose",
    "jax.unstack",
}
"""The operations that treat all elements alike along a dimension that has a factor."""


def is_alike(node: Node) -> bool:
    """Return whether a node treats all elements alike along each dimension that has a factor."""
    return node.op.name in _ALIKE


def over_cores(dimension: int, blocks: Blocks = ()) -> Layout:
    """Return the layout of a value that cores hold in shards along a dimension, or its blocks.

    >>> over_cores(0, (8,)).blocks, over_cores(0, (4, 4)).blocks
    ((), (4, 4))
    """
    return sharded(dimension, CORE, blocks if len(blocks) > 1 else ())


def scaled(blocks: Blocks, size: int) -> Blocks | None:
    """Return the blocks of a dimension of another size that a reshape makes; None if there is none.

    >>> scaled((4, 2), 12), scaled((3, 1), 2)
    ((8, 4), None)
    """
    total = sum(blocks)
    if any(block * size % total for block in blocks):
        return None
    return tuple(block * size // total for block in blocks)


def blocks_between(blocks: Blocks, start: int, limit: int) -> Blocks | None:
    """Return the blocks from `start` to `limit`; None if these are no borders of blocks.

    >>> blocks_between((4, 2, 2), 4, 8), blocks_between((4, 2, 2), 2, 8)
    ((2, 2), None)
    """
    borders = [0, *accumulate(blocks)]
    if start not in borders or limit not in borders:
        return None
    return blocks[borders.index(start) : borders.index(limit)]


@dataclass(frozen=True, slots=True)
class FusedDimension:
    """Dimension `whole`, which a reshape takes apart into `parts`, and `each` part behind it."""

    whole: int
    parts: int
    each: int
    blocks: Blocks


def fused_dimensions(shape: Sequence[int], apart: Sequence[int]) -> Iterator[FusedDimension]:
    """Yield the dimensions of `shape` that a reshape to `apart` takes apart.

    >>> list(fused_dimensions((8, 12), (8, 3, 2, 2)))
    [FusedDimension(whole=1, parts=1, each=2, blocks=(4, 4, 4))]
    >>> list(fused_dimensions((8, 12), (8, 3, 1, 4)))
    [FusedDimension(whole=1, parts=1, each=3, blocks=(4, 4, 4))]
    """
    starts = {prod(apart[:index]): index for index in range(len(apart)) if apart[index] > 1}
    for whole, size in enumerate(shape):
        parts = starts.get(prod(shape[:whole]))
        if size == 0 or parts is None:
            continue
        count, behind = apart[parts], range(parts + 1, len(apart))
        each = next((dimension for dimension in behind if apart[dimension] > 1), None)
        if each is not None and count < size and size % (count * apart[each]) == 0:
            yield FusedDimension(whole, parts, each, (size // count,) * count)


def choices_by_blocks(
    node: Node, layouts: Sequence[Layout], wanted: BlocksOfValues, num_cores: int
) -> Iterator[LayoutsOfNode]:
    """Yield the layouts in which a node may be computed on shards of blocks.

    `layouts` has those of the operands, `wanted` the blocks that values are wanted in.
    """
    rule = _RULES.get(node.op.name)
    held = next((layout for layout in layouts if layout.dimension is not None), None)
    if rule is None or held is None or held.dimension is None:
        return
    first, dimension = node.operands[0], held.dimension
    tried = {held.blocks or (first.type.shape[dimension],), wanted.get((first, dimension), ())}
    for blocks in sorted(tried - {()}):
        for found in rule(node, layouts, dimension, blocks, wanted):
            pairs = zip((*node.operands, *node.results), chain(*found), strict=True)
            if all(_has_shards(value, layout, num_cores) for value, layout in pairs):
                yield found


def _has_shards(value: Operand, layout: Layout, num_cores: int) -> bool:
    """Return whether the cores divide all blocks of a value."""
    if layout.dimension is None:
        return True
    sizes = layout.blocks or (value.type.shape[layout.dimension],)
    is_free = value.type.sharded_along != layout.dimension
    return is_free and all(size and size % num_cores == 0 for size in sizes)


def _split(
    node: Node, layouts: Sequence[Layout], dimension: int, blocks: Blocks, wanted: BlocksOfValues
) -> Iterator[LayoutsOfNode]:
    ends = [0, *accumulate(integers(node, "sizes"))]
    parts = [blocks_between(blocks, *ends[i : i + 2]) for i in range(len(node.results))]
    if parameter(node, "axis") == dimension and None not in parts:
        results = tuple(over_cores(dimension, part) for part in parts if part is not None)
        yield (over_cores(dimension, blocks),), results


def _slice(
    node: Node, layouts: Sequence[Layout], dimension: int, blocks: Blocks, wanted: BlocksOfValues
) -> Iterator[LayoutsOfNode]:
    start, limit = (integers(node, f"{end}_indices")[dimension] for end in ("start", "limit"))
    strides = parameter(node, "strides")
    part = blocks_between(blocks, start, limit)
    if part and (strides is None or strides[dimension] == 1):
        yield (over_cores(dimension, blocks),), (over_cores(dimension, part),)


def _join(
    node: Node, layouts: Sequence[Layout], dimension: int, blocks: Blocks, wanted: BlocksOfValues
) -> Iterator[LayoutsOfNode]:
    if parameter(node, "dimension") == dimension:
        sizes = [operand.type.shape[dimension] for operand in node.operands]
        each = [
            (layout.dimension == dimension and layout.blocks) or (size,)
            for layout, size in zip(layouts, sizes, strict=True)
        ]
        operands = tuple(over_cores(dimension, own) for own in each)
        yield operands, (over_cores(dimension, tuple(chain(*each))),)


def _pad(
    node: Node, layouts: Sequence[Layout], dimension: int, blocks: Blocks, wanted: BlocksOfValues
) -> Iterator[LayoutsOfNode]:
    """Zeros around a block, as the derivative of a slice has, are blocks, too."""
    low, high, inside = parameter(node, "padding_config")[dimension]
    if inside or min(low, high) < 0 or not low + high:
        return
    size = node.operands[0].type.shape[dimension]
    own = tuple(block for block in (low, *blocks, high) if block)
    known = {each for each in wanted.values() if sum(each) == low + size + high}
    for found in sorted({own, *known}):
        part = blocks_between(found, low, low + size)
        if part is not None:
            yield (over_cores(dimension, part), MIRRORED), (over_cores(dimension, found),)


def _reshape(
    node: Node, layouts: Sequence[Layout], dimension: int, blocks: Blocks, wanted: BlocksOfValues
) -> Iterator[LayoutsOfNode]:
    shape, result = node.operands[0].type.shape, node.results[0].type.shape
    if parameter(node, "dimensions") is not None:  # the operand is transposed first
        return
    for fused in fused_dimensions(shape, result):
        if fused.whole == dimension and blocks == fused.blocks:
            yield (over_cores(dimension, blocks),), (over_cores(fused.each),)
    for fused in fused_dimensions(result, shape):
        if fused.each == dimension and len(blocks) == 1:
            yield (over_cores(dimension),), (over_cores(fused.whole, fused.blocks),)


_Rule: TypeAlias = Callable[
    [Node, Sequence[Layout], int, Blocks, BlocksOfValues], Iterable[LayoutsOfNode]
]
_RULES: Mapping[str, _Rule] = {
    "jax.concatenate": _join,
    "jax.pad": _pad,
    "jax.reshape": _reshape,
    "jax.slice": _slice,
    "jax.split": _split,
}


def on_blocks(
    node: Node,
    operands: Sequence[Operand],
    results: Sequence[Layout],
    num_cores: int,
    builder: Builder,
) -> tuple[Value, ...]:
    """Add a node on a core's shards of blocks, and return its results."""
    types = [
        value.type.resized(layout.dimension, value.type.shape[layout.dimension] // num_cores)
        for value, layout in zip(node.results, results, strict=True)
        if layout.dimension is not None
    ]
    dimension = results[0].dimension
    assert dimension is not None, f"{node} has no blocks"
    changed: dict[str, Any] = {}
    if node.op.name == "jax.reshape":
        changed["new_sizes"] = types[0].shape
    elif node.op.name == "jax.split":
        changed["sizes"] = tuple(type.shape[dimension] for type in types)
    elif node.op.name == "jax.slice":
        for name in ("start_indices", "limit_indices"):
            changed[name] = _divided(integers(node, name), dimension, num_cores)
    elif node.op.name == "jax.pad":
        config = list(parameter(node, "padding_config"))
        config[dimension] = tuple(size // num_cores for size in config[dimension])
        changed["padding_config"] = tuple(config)
    return builder.again(node, operands, types, **changed)


def _divided(numbers: Sequence[int], dimension: int, count: int) -> tuple[int, ...]:
    return tuple(n // count if i == dimension else n for i, n in enumerate(numbers))
