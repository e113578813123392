"""Pools on CPUs: windows as slices of an image, a dimension at a time.

XLA visits one window after the other, and its numbers one by one; the gradient of a largest value
takes ten to twenty times as long as what is here. The first numbers of all windows are a slice of
the image with the windows' strides, the second ones another slice, so windows are reduced by
operations on whole slices. The dimensions of a window are reduced one after the other, since a
window of 3x3 has 9 numbers, and its two dimensions 6.

Gradients go the same way back: each slice gets its part of the gradient, and an image is put
together from the slices. The gradient of a sum goes into all of them; JAX writes it as sums of an
array with zeros between its numbers. That of a largest value goes into the slice that has it, of
equal ones into the first, as XLA has it; the slices are compared again to find it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import inf, nan

import jax
import jax.numpy as jnp
from jax import lax

from graphdist.ir.arrays import Array
from graphdist.ir.graph import Graph, Literal, Node, Operand
from graphdist.ir.jax_parameters import parameter
from graphdist.runtime.bind_primitive import Bind, bind_jax_node
from graphdist.runtime.windows_as_slices import Windows

_LARGEST_WINDOW = 8
"""The most numbers in a dimension of a window that become slices."""
_FEWEST_NUMBERS = 2**14
"""Images of fewer numbers stay as they are: they take microseconds, and slices are compiled."""


def pool(node: Node, image: jax.Array) -> jax.Array | None:
    """Apply a reduction of windows; None if it is to stay as it is."""
    windows = _windows(node)
    dilations = {*parameter(node, "base_dilation"), *parameter(node, "window_dilation")}
    if not windows or dilations != {1}:
        return None
    combine, padding = _COMBINE[node.op.name]
    # XLA, too, adds 16-bit numbers in float32, but rounds each sum.
    values = image.astype(jnp.float32) if combine is lax.add else image
    for along in reversed(windows):
        values = reduce(combine, along.slices(values, padding))
    return values.astype(image.dtype)


def gradient_of_pool(node: Node, gradient: jax.Array, image: jax.Array) -> jax.Array | None:
    """Apply the gradient of a pool of largest or smallest values; None if it is to stay."""
    windows = _windows(node)
    if not windows:
        return None
    is_largest = parameter(node, "select_prim") is lax.ge_p
    better, best = (lax.gt, lax.max) if is_largest else (lax.lt, lax.min)
    images = [image]
    for along in reversed(windows[1:]):
        images.append(reduce(best, along.slices(images[-1], -inf if is_largest else inf)))
    result = gradient.astype(jnp.float32)
    for along in windows:
        pooled = images.pop()
        # Padding is no number, and any number is better than none, so that none is chosen.
        chosen = _places_of_best(along.slices(pooled, nan), better)
        zeros = jnp.zeros_like(result)
        parts = [
            lax.select(lax.eq(chosen, jnp.full_like(chosen, place)), result, zeros)
            for place in range(along.size)
        ]
        result = along.image(parts, pooled.shape[along.dimension])
    return result.astype(gradient.dtype)


def gradients_of_sums(graph: Graph) -> dict[Node, Bind]:
    """Return how to apply the nodes of a graph that are gradients of sums of windows."""
    pads: dict[Operand, Node] = {
        node.results[0]: node for node in graph.nodes if node.op.name == "jax.pad"
    }
    found: dict[Node, Bind] = {}
    for node in graph.nodes:
        pad = pads.get(node.operands[0]) if node.op.name == _SUM else None
        windows = [] if pad is None else _windows_of_gradient(node, pad)
        if windows:
            # XLA adds up windows of two numbers as fast.
            is_small = all(along.size <= 2 for along in windows)
            found[node] = bind_jax_node if is_small else partial(_gradient_of_sums, windows)
    return found


def _gradient_of_sums(
    windows: Sequence[Windows], node: Node, operands: Sequence[jax.Array | Array]
) -> list[jax.Array]:
    padded = jnp.asarray(operands[0])
    numbers = padded
    for along in windows:
        # XLA knows that these are the numbers around which the zeros were put.
        low, high = along.size - 1 - along.before, along.size - 1 - along.behind
        end = padded.shape[along.dimension] - high
        numbers = lax.slice_in_dim(numbers, low, end, along.stride, along.dimension)
    result = numbers.astype(jnp.float32)
    for along in windows:
        size = padded.shape[along.dimension] - along.size + 1
        result = along.image([result] * along.size, size)
    return [result.astype(padded.dtype)]


def _windows(node: Node) -> list[Windows]:
    """Return the windows along each dimension that has any; [] if they are not to be slices."""
    windows = [
        Windows(dimension, size, stride, *edges)
        for dimension, (size, stride, edges) in enumerate(
            zip(
                parameter(node, "window_dimensions"),
                parameter(node, "window_strides"),
                parameter(node, "padding"),
                strict=True,
            )
        )
        if (size, stride, *edges) != (1, 1, 0, 0)
    ]
    return windows if _are_slices(node, windows) else []


def _windows_of_gradient(node: Node, pad: Node) -> list[Windows]:
    """Return the windows of whose sums a sum of a padded array is the gradient; [] if none."""
    sizes = parameter(node, "window_dimensions")
    others = "window_strides", "base_dilation", "window_dilation"
    numbers = {number for name in others for number in parameter(node, name)}
    fill, edges = pad.operands[1], parameter(pad, "padding_config")
    windows = [
        Windows(dimension, size, interior + 1, size - 1 - low, size - 1 - high)
        for dimension, (size, (low, high, interior)) in enumerate(zip(sizes, edges, strict=True))
        if (size, low, high, interior) != (1, 0, 0, 0)
    ]
    is_gradient = (
        numbers == {1}
        and not any(map(any, parameter(node, "padding")))
        and isinstance(fill, Literal)
        and not fill.value
        and all(low >= 0 and high >= 0 for low, high, _ in edges)
        and any(along.stride > 1 for along in windows)
    )
    return windows if is_gradient and _are_slices(node, windows) else []


def _are_slices(node: Node, windows: Sequence[Windows]) -> bool:
    """Return whether slices take less time than windows of this node's image."""
    image = node.operands[-1].type
    is_float, is_large = image.dtype in ("f32", "bf16", "f16"), image.size >= _FEWEST_NUMBERS
    is_empty = not node.results[0].type.size
    largest = max((along.size for along in windows), default=0)
    return is_float and is_large and not is_empty and 0 < largest <= _LARGEST_WINDOW


def _places_of_best(
    slices: Sequence[jax.Array], better: Callable[[jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """Return in which slice the best number of each window is: the first of equal ones."""
    best, *others = slices
    places = jnp.zeros(best.shape, jnp.int8)
    for place, numbers in enumerate(others, start=1):
        takes = lax.bitwise_or(better(numbers, best), lax.ne(best, best))
        places = lax.select(takes, jnp.full_like(places, place), places)
        best = lax.select(takes, numbers, best)
    return places


_SUM = "jax.reduce_window_sum"
_COMBINE: dict[str, tuple[Callable[[jax.Array, jax.Array], jax.Array], float]] = {
    "jax.reduce_window_max": (lax.max, -inf),
    "jax.reduce_window_min": (lax.min, inf),
    _SUM: (lax.add, 0.0),
}
POOLS = tuple(_COMBINE)
GRADIENT_OF_POOL = "jax.select_and_scatter_add"
