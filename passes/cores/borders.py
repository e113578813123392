"""Convolutions whose positions are sharded over cores: each core gets its neighbours' borders.

Along a spatial dimension of L elements with stride s, L/s windows begin s elements apart. The
windows of a core reach `before` elements into the shard of the core in front, as many as the
convolution pads there, and `after` elements into that of the core behind. With these borders, and
zeros at both ends, the convolution of a shard needs no padding. TensorFlow's spatial partitioning
exchanges borders ("halos") in the same way.

The gradient of the weights sums over positions, of the image and of the result's gradient alike.
Each core has the term of its own positions.
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
    and `result` None where they are not sharded. A negative `after` leaves elements out.
    """

    space: int
    before: int
    after: int
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
        sizes = [
            value.type.shape[dimension]
            for value, dimension in zip(
                (*node.operands, *node.results), (image, weights, result), strict=True
            )
        ]
        stride = integers(node, "window_strides")[space]
        inside = integers(node, "rhs_dilation")[space]
        before, behind = parameter(node, "padding")[space]
        elements, window, windows = sizes
        shard = elements // num_cores
        is_dense = integers(node, "lhs_dilation")[space] == 1 and elements % num_cores == 0
        if not is_dense or not 0 <= before <= shard:
            continue
        after = (window - 1) * inside + 1 - stride - before
        if elements == windows * stride and windows % num_cores == 0 and after <= shard:
            yield Borders(space, before, after, image, None, result)
        elif stride == inside == 1 and elements == window and 0 <= behind <= shard:
            yield Borders(space, before, behind, image, weights, None)


def with_borders(
    node: Node, operands: Sequence[Operand], borders: Borders, num_cores: int, builder: Builder
) -> tuple[Value, ...]:
    """Add the convolution of a core's shards, and return its results."""
    image, weights = operands
    before, after = borders.before, max(borders.after, 0)
    if before or after:
        params = ExchangingBorders(borders.image, before, after, num_cores=num_cores)
        (image,) = builder.add(ops.EXCHANGE_BORDERS, (image,), params, at=node.source)
    padding = list(parameter(node, "padding"))
    padding[borders.space] = (0, min(borders.after, 0))
    types = [value.type for value in node.results]
    if borders.result is not None:
        size = types[0].shape[borders.result] // num_cores
        types = [type.resized(borders.result, size) for type in types]
    return builder.again(node, (image, weights), types, padding=tuple(padding))
