"""Typed readers of the parameters of JAX's operations.

JAX has parameters in plain mappings without types. A pass that needs a parameter without a reader
adds the reader here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias  # Any: JAX's parameters, and arrays

from graphdist.ir.graph import Node

Dimensions: TypeAlias = tuple[int, ...]
"""Indices of dimensions, or one integer for each dimension."""


def _read(node: Node, name: str) -> Any:
    return node.params[name]


def axes(node: Node) -> Dimensions:
    """Return the dimensions that a reduction within a value removes."""
    return _read(node, "axes")


def permutation(node: Node) -> Dimensions:
    """Return, for each dimension of a transpose's result, the dimension of its operand."""
    return _read(node, "permutation")


def broadcast_dimensions(node: Node) -> Dimensions:
    """Return, for each dimension of a broadcast's operand, the dimension of its result."""
    return _read(node, "broadcast_dimensions")


def concatenated_along(node: Node) -> int:
    """Return the dimension along which a `concatenate` joins its operands."""
    return _read(node, "dimension")


def is_plain(node: Node) -> bool:
    """Return whether a conversion, reshape or broadcast has no permutation and no sharding."""
    params = node.params
    return params.get("sharding") is None and params.get("dimensions") is None


def has_other_dtype(node: Node) -> bool:
    """Return whether a product states the dtype of its result."""
    return bool(node.params.get("out_dtype"))


class SliceRanges(NamedTuple):
    """The ranges of a `slice`, dimension by dimension."""

    starts: Dimensions
    ends: Dimensions
    strides: Dimensions | None
    """None means 1 along each dimension."""


def slice_ranges(node: Node) -> SliceRanges:
    """Return the ranges of a `slice`."""
    names = ("start_indices", "limit_indices", "strides")
    return SliceRanges(*(_read(node, name) for name in names))


class Split(NamedTuple):
    """The parts of a `split`."""

    sizes: Dimensions
    axis: int


def parts_of_split(node: Node) -> Split:
    """Return the parts of a `split`."""
    return Split(_read(node, "sizes"), _read(node, "axis"))


def slice_sizes(node: Node) -> Dimensions:
    """Return the shape of the slices that a `gather` or a `dynamic_slice` reads."""
    return _read(node, "slice_sizes")


class GatherDimensions(Protocol):
    """How the dimensions of a `gather`'s operands map to the dimensions of its result."""

    offset_dims: Dimensions
    collapsed_slice_dims: Dimensions
    start_index_map: Dimensions
    operand_batching_dims: Dimensions


def gather_dimensions(node: Node) -> GatherDimensions:
    """Return the dimension numbers of a `gather`."""
    return _read(node, "dimension_numbers")


class ScatterDimensions(Protocol):
    """How the dimensions of a scatter's updates map to the dimensions of its operand."""

    update_window_dims: Dimensions
    inserted_window_dims: Dimensions
    scatter_dims_to_operand_dims: Dimensions
    operand_batching_dims: Dimensions


def scatter_dimensions(node: Node) -> ScatterDimensions:
    """Return the dimension numbers of a scatter."""
    return _read(node, "dimension_numbers")


def mode(node: Node) -> str:
    """Return the name of the mode in which a `gather` or scatter treats indices out of range."""
    return _read(node, "mode").name


def mode_named(node: Node, name: str) -> object:
    """Return the mode with the name `name`, of the enum class that the mode of `node` has."""
    return type(_read(node, "mode"))[name]


def fill_value(node: Node) -> float | bool | None:
    """Return the scalar that a `gather` returns at indices out of range; None if unstated."""
    value = _read(node, "fill_value")
    return value.item() if hasattr(value, "item") else value


class ProductDimensions(NamedTuple):
    """The dimensions of the operands of a `dot_general`."""

    left_contracted: Dimensions
    right_contracted: Dimensions
    left_batch: Dimensions
    right_batch: Dimensions


def product_dimensions(node: Node) -> ProductDimensions:
    """Return the contracted and the batch dimensions of a `dot_general`."""
    contracted, batch = _read(node, "dimension_numbers")
    return ProductDimensions(*contracted, *batch)


def exchanged_product(node: Node) -> dict[str, object]:
    """Return the parameters of a `dot_general` for its operands in the opposite order."""
    dimensions, precision = product_dimensions(node), _read(node, "precision")
    return {
        **node.params,
        "dimension_numbers": (dimensions[1::-1], dimensions[:1:-1]),
        "precision": precision[::-1] if isinstance(precision, tuple) else precision,
    }


class ConvolutionDimensions(Protocol):
    """The batch, feature and spatial dimensions, in this order, of operands and result."""

    lhs_spec: Dimensions
    rhs_spec: Dimensions
    out_spec: Dimensions


class Convolution(NamedTuple):
    """How a convolution moves its window."""

    dimensions: ConvolutionDimensions
    strides: Dimensions
    padding: tuple[tuple[int, int], ...]
    dilation: Dimensions
    """The dilation of the left operand."""
    window_dilation: Dimensions


def convolution(node: Node) -> Convolution:
    """Return the parameters of a `conv_general_dilated`."""
    names = ("dimension_numbers", "window_strides", "padding", "lhs_dilation", "rhs_dilation")
    return Convolution(*(_read(node, name) for name in names))


class BitsOfValue(NamedTuple):
    """The result of a `random_bits`."""

    shape: Dimensions
    width: int
    """The bits of an element."""


def random_bits(node: Node) -> BitsOfValue:
    """Return the shape and the bits per element of the result of a `random_bits`."""
    return BitsOfValue(_read(node, "shape"), _read(node, "bit_width"))


def callback(node: Node) -> Callable[..., Any] | None:
    """Return the user's function that a node calls on the host; None if it calls none."""
    found = node.params.get("callback")
    return found if callable(found) else None
