"""The parameters of JAX's operations that our code reads, with their types.

JAX has them in a plain mapping, without types: a pass that needs another one adds its reader here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias  # Any: JAX's parameters, and arrays

from graphdist.ir.graph import Node

Dimensions: TypeAlias = tuple[int, ...]
"""Numbers of dimensions, or one number for each dimension."""


def _read(node: Node, name: str) -> Any:
    return node.params[name]


def axes(node: Node) -> Dimensions:
    """Return the dimensions that a reduction within a value takes away."""
    return _read(node, "axes")


def permutation(node: Node) -> Dimensions:
    """Return the dimensions of the operand of a transpose, in the order of the result."""
    return _read(node, "permutation")


def broadcast_dimensions(node: Node) -> Dimensions:
    """Return which dimension of the result of a `broadcast_in_dim` each of the operand becomes."""
    return _read(node, "broadcast_dimensions")


def concatenated_along(node: Node) -> int:
    """Return the dimension along which a `concatenate` joins."""
    return _read(node, "dimension")


def is_plain(node: Node) -> bool:
    """Return whether a conversion, reshape or broadcast keeps the order and chooses no devices."""
    params = node.params
    return params.get("sharding") is None and params.get("dimensions") is None


def has_other_dtype(node: Node) -> bool:
    """Return whether a product is computed in a dtype of its own."""
    return bool(node.params.get("out_dtype"))


class SliceRanges(NamedTuple):
    """The ranges of a `slice`, dimension by dimension."""

    starts: Dimensions
    ends: Dimensions
    strides: Dimensions | None
    """None: 1 along each dimension."""


def slice_ranges(node: Node) -> SliceRanges:
    """Return what a `slice` takes."""
    names = ("start_indices", "limit_indices", "strides")
    return SliceRanges(*(_read(node, name) for name in names))


class Split(NamedTuple):
    """The parts of a `split`."""

    sizes: Dimensions
    axis: int


def parts_of_split(node: Node) -> Split:
    """Return how a `split` cuts."""
    return Split(_read(node, "sizes"), _read(node, "axis"))


def slice_sizes(node: Node) -> Dimensions:
    """Return the shape of what a `gather` or a `dynamic_slice` takes at each index."""
    return _read(node, "slice_sizes")


class GatherDimensions(Protocol):
    """Which dimensions of the operands of a `gather` are which of its result."""

    offset_dims: Dimensions
    collapsed_slice_dims: Dimensions
    start_index_map: Dimensions
    operand_batching_dims: Dimensions


def gather_dimensions(node: Node) -> GatherDimensions:
    """Return the dimensions of a `gather`."""
    return _read(node, "dimension_numbers")


class ScatterDimensions(Protocol):
    """Which dimensions of the updates of a scatter are which of its operand."""

    update_window_dims: Dimensions
    inserted_window_dims: Dimensions
    scatter_dims_to_operand_dims: Dimensions
    operand_batching_dims: Dimensions


def scatter_dimensions(node: Node) -> ScatterDimensions:
    """Return the dimensions of a scatter."""
    return _read(node, "dimension_numbers")


def mode(node: Node) -> str:
    """Return the name of what a `gather` or scatter does at indices out of range."""
    return _read(node, "mode").name


def mode_named(node: Node, name: str) -> object:
    """Return the parameter `mode` of this name, for a node like the one given."""
    return type(_read(node, "mode"))[name]


def fill_value(node: Node) -> float | bool | None:
    """Return the number at indices out of range that a `gather` states, if it does."""
    value = _read(node, "fill_value")
    return value.item() if hasattr(value, "item") else value


def contracted(node: Node) -> Dimensions:
    """Return the dimensions of the left operand that a `dot_general` adds up along."""
    ((left, _), _) = _read(node, "dimension_numbers")
    return left


class ConvolutionDimensions(Protocol):
    """The dimensions of batch and features, then the others, of both operands and the result."""

    lhs_spec: Dimensions
    rhs_spec: Dimensions
    out_spec: Dimensions


class Convolution(NamedTuple):
    """How a convolution moves its window."""

    dimensions: ConvolutionDimensions
    strides: Dimensions
    padding: tuple[tuple[int, int], ...]
    dilation: Dimensions
    """Of the left operand."""
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
    """Return what a `random_bits` makes."""
    return BitsOfValue(_read(node, "shape"), _read(node, "bit_width"))


def callback(node: Node) -> Callable[..., Any] | None:
    """Return the user's function that an operation calls on the host, if it calls one."""
    found = node.params.get("callback")
    return found if callable(found) else None
