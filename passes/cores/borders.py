"""Convolutions whose positions are sharded over cores: each core gets its neighbours' borders.

Along a spatial dimension windows begin s positions apart, and the elements of the image are d
positions apart: s is the stride of a convolution, and d that of the convolution of which this one
is the gradient. So m windows and n elements are sharded alike if m * s = n * d. The windows of a
core begin p positions in front of its shard, where p is the padding, and reach `before` elements
into the shard of the core in front and `after` elements into that of the core behind. With these
borders, and zeros at both ends, the convolution of a shard needs the padding that is left between
two elements. TensorFlow's spatial partitioning exchanges borders ("halos") in the same way.

The gradient of the weights sums over positions, of the image and of the result's gradient alike,
whose elements are r positions of the image apart, r the convolution's stride. Each core has the
term of its own positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphdist.ir import ops
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Node, Operand, Value
from graphdist.ir.jax_parameters import integers, parameter
from graphdist.ir.op_parameters import ExchangingBorders
from graphdist.ir.opaque_placeholders import Placeholder

CONVOLUTION = "jax.conv_general_dilated"


@dataclass(frozen=True, slots=True)
class Borders:
    """The elements that a core needs of its neighbours along spatial dimension `space`.

    `image`, `weights` and `result` are this dimension of the operands and of the result, `weights`
    and `result` None where they are not sharded. `padding` is what is left of the convolution's; it
    is negative where the last elements of the shard are in no window.
    """

    space: int
    before: int
    after: int
    padding: tuple[int, int]
    image: int
    weights: int | None
    result: int | None


def possible_borders(node: Node, num_cores: int) -> Iterator[Borders]:
    """Yield the dimensions of space along which a convolution may be computed on shards."""
    if node.op.name != CONVOLUTION or isinstance(parameter(node, "dimension_numbers"), Placeholder):
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
            yield Borders(space, *exchanged, image, None, result)
        elif exchanged := _exchanged(elements, window, windows, front, num_cores):
            yield Borders(space, *exchanged, image, weights, None)


@dataclass(frozen=True, slots=True)
class _Spaced:
    """So many elements or windows, `apart` positions apart."""

    size: int
    apart: int


_APART = ("lhs_dilation", "rhs_dilation", "window_strides")
"""The parameters with the positions between elements of the image, weights and result."""


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
    """Add the convolution of a core's shards, and return its results."""
    image, weights = operands
    if borders.before or borders.after:
        params = ExchangingBorders(
            borders.image, borders.before, borders.after, num_cores=num_cores
        )
        (image,) = builder.add(ops.EXCHANGE_BORDERS, (image,), params, at=node.source)
    padding = list(parameter(node, "padding"))
    padding[borders.space] = borders.padding
    types = [value.type for value in node.results]
    if borders.result is not None:
        size = types[0].shape[borders.result] // num_cores
        types = [type.resized(borders.result, size) for type in types]
    return builder.again(node, (image, weights), types, padding=tuple(padding))
