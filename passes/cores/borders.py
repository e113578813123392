"""Convolutions and pools whose positions are sharded over cores: cores exchange their borders.

Along a spatial dimension windows begin s positions apart, and the elements of the image are d
positions apart: s is the stride, and d that of the convolution or pool of which this one is the
gradient. So m windows and n elements are sharded alike if m * s = n * d. The windows of a core
begin p positions in front of its shard, where p is the padding, and reach `before` elements into
the shard of the core in front and `after` elements into that of the core behind. With these
borders the node needs the padding that is left between two elements. At both ends of the image the
borders are zeros, or for a maximum or minimum what changes nothing in it. TensorFlow's spatial
partitioning exchanges borders ("halos") in the same way.

The gradient of a convolution's weights sums over positions, of the image and of the result's
gradient alike, whose elements are r positions of the image apart, r the convolution's stride. Each
core has the term of its own positions.

The gradient of a maximum gives each window's to the element that was found. A core finds it for its
own windows, also in the borders, whose part goes back to the neighbours (`add_borders`). The
gradient of a sum is a sum over windows that begin at every position; JAX writes zeros between and
around the elements first, which are the padding here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias  # Any: changed parameters of an operation

from graphdist.ir import ops
from graphdist.ir.analyses import producer_of, use_counts, users
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operand, Value, is_zero
from graphdist.ir.jax_parameters import integers, parameter
from graphdist.ir.op_parameters import ExchangingBorders
from graphdist.ir.opaque_placeholders import Placeholder
from graphdist.ir.operation_table import factors_of
from graphdist.ir.types import Layout

_CONVOLUTION = "jax.conv_general_dilated"
_SUM = "jax.reduce_window_sum"
_REDUCERS = {_SUM: "sum", "jax.reduce_window_max": "max", "jax.reduce_window_min": "min"}
_GRADIENT = "jax.select_and_scatter_add"
"""The gradient of a maximum or minimum, of which it has the comparison."""
_COMPARED = {"ge": "max", "le": "min"}
_APART = ("lhs_dilation", "rhs_dilation", "window_strides")
"""The parameters of a convolution with the distances in its image, weights and result."""


@dataclass(frozen=True, slots=True)
class Borders:
    """The elements that a core needs of its neighbours along a dimension of space.

    `padding` is what is left of the node's along its spatial dimension `space`; it is negative
    where the last elements of the shard are in no window. `operands` and `result` have the
    dimension that is sharded of each operand and of the result; None for those in full, and for a
    result that is a term.
    """

    space: int
    before: int
    after: int
    padding: tuple[int, int]
    operands: tuple[int | None, ...]
    result: int | None


def possible_borders(node: Node, num_cores: int) -> Iterator[Borders]:
    """Yield the dimensions of space along which a node may be computed on shards."""
    if node.op.name == _CONVOLUTION:
        yield from _of_convolution(node, num_cores)
    elif _reducer(node) is not None:
        yield from _of_pool(node, num_cores)


def _reducer(pool: Node) -> str | None:
    """Return how a pool, or one of which this is the gradient, reduces; None for other nodes."""
    if pool.op.name == _GRADIENT:
        return _COMPARED.get(getattr(parameter(pool, "select_prim"), "name", ""))
    return _REDUCERS.get(pool.op.name)


def _of_convolution(node: Node, num_cores: int) -> Iterator[Borders]:
    if isinstance(parameter(node, "dimension_numbers"), Placeholder):
        return
    numbers = parameter(node, "dimension_numbers")
    each = zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    for space, (image, weights, result) in enumerate(each):
        elements, window, windows = (
            _Spaced(value.type.shape[dimension], integers(node, name)[space])
            for value, dimension, name in zip(
                (*node.operands, *node.results), (image, weights, result), _APART, strict=True
            )
        )
        front = parameter(node, "padding")[space][0]
        if exchanged := _exchanged(elements, windows, window, front, num_cores):
            yield Borders(space, *exchanged, (image, None), result)
        elif exchanged := _exchanged(elements, window, windows, front, num_cores):
            yield Borders(space, *exchanged, (image, weights), None)


def _of_pool(node: Node, num_cores: int) -> Iterator[Borders]:
    of_windows = node.operands[0] if node.op.name == _GRADIENT else node.results[0]
    factors = factors_of(node)
    for space, (low, _) in enumerate(parameter(node, "padding")):
        if factors is not None and factors.results[0][space] is not None:
            continue  # the windows of a core reach no other shard
        elements, window, windows = (
            _Spaced(sizes[space], integers(node, name)[space] if name in node.params else 1)
            for sizes, name in (
                (node.operands[-1].type.shape, "base_dilation"),
                (integers(node, "window_dimensions"), "window_dilation"),
                (of_windows.type.shape, "window_strides"),
            )
        )
        exchanged = _exchanged(elements, windows, window, low, num_cores)
        if exchanged is not None and exchanged[2][1] > -windows.apart:
            before, after, (front, behind) = exchanged
            padding = (front, max(behind, 0))  # what is behind the last window is in none
            yield Borders(space, before, after, padding, (space,) * len(node.operands), space)


@dataclass(frozen=True, slots=True)
class _Spaced:
    """So many elements or windows, `apart` positions apart."""

    size: int
    apart: int


def _exchanged(
    elements: _Spaced, along: _Spaced, across: _Spaced, front: int, num_cores: int
) -> tuple[int, int, tuple[int, int]] | None:
    """Return `before`, `after` and `padding` where the image and `along` are sharded alike.

    `across` are the windows' elements, or the windows for the weights' gradient: each one of
    `along` is combined with all of them. Return None if the shards do not have the same positions,
    or if a core would need more than the shards of its neighbours.
    """
    shard, rest = divmod(elements.size, num_cores)
    is_even = elements.size * elements.apart == along.size * along.apart
    if rest or along.size % num_cores or not is_even:
        return None
    last = (across.size - 1) * across.apart - along.apart - front
    before, after = front // elements.apart, max(last // elements.apart + 1, 0)
    if not 0 <= before <= shard or after > shard:
        return None
    return before, after, (front - before * elements.apart, last - (after - 1) * elements.apart)


def with_borders(
    node: Node, operands: Sequence[Operand], borders: Borders, num_cores: int, builder: Builder
) -> tuple[Value, ...]:
    """Add the node for a core's shards, and return its results."""
    is_gradient, reducer = node.op.name == _GRADIENT, _reducer(node) or "sum"
    new, image = list(operands), 1 if is_gradient else 0
    dimension = borders.operands[image]
    assert dimension is not None, f"{node} has no image in shards"
    exchanging = ExchangingBorders(
        dimension, borders.before, borders.after, reducer, num_cores=num_cores
    )
    is_exchanged = borders.before > 0 or borders.after > 0
    if is_exchanged:
        (new[image],) = builder.add(ops.EXCHANGE_BORDERS, (new[image],), exchanging, at=node.source)
    padding = list(parameter(node, "padding"))
    padding[borders.space] = borders.padding
    types = [value.type for value in node.results]
    if is_gradient:
        types = [new[image].type]
    elif borders.result is not None:
        size = types[0].shape[borders.result] // num_cores
        types = [type.resized(borders.result, size) for type in types]
    results = builder.again(node, new, types, padding=tuple(padding))
    if is_gradient and is_exchanged:
        adding = replace(exchanging, reducer="sum")
        return builder.add(ops.ADD_BORDERS, results, adding, at=node)
    return results


LayoutOf: TypeAlias = Callable[[Operand], Layout]


def is_padding_of_windows(node: Node, graph: Graph, layout_of: LayoutOf) -> bool:
    """Return whether a node adds zeros to a sharded dimension, which only sums of windows read."""
    if node.op.name != "jax.pad" or not is_zero(node.operands[1]):
        return False
    config, along = parameter(node, "padding_config"), layout_of(node.operands[0]).dimension
    (padded,) = node.results
    using = users(graph).get(padded, ())
    return (
        along is not None
        and any(config[along])
        and all(min(low, high) >= 0 for low, high, _ in config)
        and use_counts(graph).get(padded, 0) == len(using) > 0
        and all(map(_is_plain_sum, using))
    )


def _is_plain_sum(node: Node) -> bool:
    """Return whether a node sums over windows without padding of its own."""
    return (
        node.op.name == _SUM
        and not any(map(any, parameter(node, "padding")))
        and set(integers(node, "base_dilation")) == {1}
    )


def with_its_padding(node: Node, graph: Graph, layout_of: LayoutOf) -> Node:
    """Return a sum over windows with the padding of its operand; other nodes as they are."""
    pad = producer_of(node.operands[0], graph) if node.op.name == _SUM else None
    if pad is None or not is_padding_of_windows(pad, graph, layout_of):
        return node
    config = parameter(pad, "padding_config")
    changed: dict[str, Any] = {
        "padding": tuple((int(low), int(high)) for low, high, _ in config),
        "base_dilation": tuple(int(between) + 1 for _, _, between in config),
    }
    return replace(node, operands=pad.operands[:1], params={**node.params, **changed})
