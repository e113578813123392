"""Convolutions of each feature by itself on CPUs, or of groups of few, as sums of slices.

XLA computes them one number after the other, which takes 15 to 80 times as long. The numbers of
all windows that one number of the kernel is multiplied by are a slice of the image; the gradient of
that number is the sum of the products of this slice and the result's gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any  # Any: parameters of JAX

import jax
import jax.numpy as jnp
from jax import lax

_Params = Mapping[str, Any]


def places_along(image: jax.Array, kernel: jax.Array, params: _Params) -> list[int]:
    """Return in how many places along each of an image's rows a window is put."""
    return [
        max((low + dilation * (size - 1) + 1 + high - spread * (covered - 1) - 1) // stride + 1, 0)
        for size, covered, (low, high), dilation, spread, stride in zip(
            image.shape[1:-1],
            kernel.shape[:-2],
            params["padding"],
            params["lhs_dilation"],
            params["rhs_dilation"],
            params["window_strides"],
            strict=True,
        )
    ]


def depthwise(image: jax.Array, kernel: jax.Array, params: _Params) -> jax.Array:
    """Apply a convolution with groups of few features of an image [batch, *rows, features]."""
    places = places_along(image, kernel, params)
    numbers = kernel.astype(jnp.float32)
    result: jax.Array | None = None
    for feature, padded in enumerate(_features_of_groups(image, kernel, params)):
        for place in product(*map(range, kernel.shape[:-2])):
            starts = [i * spread for i, spread in zip(place, params["rhs_dilation"], strict=True)]
            covered = _slice(padded, starts, places, params["window_strides"])
            part = covered * numbers[(*place, feature)]
            result = part if result is None else result + part
    assert result is not None
    return result.astype(params["preferred_element_type"] or image.dtype)


def gradient_of_depthwise(image: jax.Array, kernel: jax.Array, params: _Params) -> jax.Array:
    """Apply the gradient of a kernel of such a convolution, as JAX writes it.

    The image is [features, *rows, batch], and the kernel, which is the result's gradient,
    [*rows, batch, features out]. The features of a group are one behind the other.
    """
    rows = range(1, image.ndim - 1)
    places = places_along(image, kernel, params)
    ordered = lax.transpose(image, (image.ndim - 1, *rows, 0))
    gradient = jnp.moveaxis(kernel, -2, 0).astype(jnp.float32)
    products = []
    for padded in _features_of_groups(ordered, kernel, params):
        for place in product(*map(range, places)):
            starts = [i * stride for i, stride in zip(place, params["window_strides"], strict=True)]
            numbers = _slice(padded, starts, kernel.shape[:-2], params["rhs_dilation"])
            products.append(numbers * gradient)

    def add(before: Sequence[jax.Array], after: Sequence[jax.Array]) -> list[jax.Array]:
        return [x + y for x, y in zip(before, after, strict=True)]

    # One reduction of all products: one for each takes several times as long to compile.
    zeros = [jnp.zeros((), jnp.float32)] * len(products)
    sums = lax.reduce(products, zeros, add, range(image.ndim - 1))
    features = image.shape[0] // params["batch_group_count"]
    result = lax.reshape(jnp.stack(sums), (features, *places, kernel.shape[-1]))
    return result.astype(params["preferred_element_type"] or image.dtype)


def _features_of_groups(
    image: jax.Array, kernel: jax.Array, params: _Params
) -> Iterator[jax.Array]:
    """Yield the first features of all groups, the second ones, and so on, in float32, with padding.

    Each is there as often as its group has features in the result.
    """
    edges = [
        (low, high, dilation - 1)
        for (low, high), dilation in zip(params["padding"], params["lhs_dilation"], strict=True)
    ]
    groups = max(params["feature_group_count"], params["batch_group_count"])
    *others, features = image.shape
    separate = lax.reshape(image, (*others, groups, features // groups))
    number = kernel.shape[-1] // groups
    for feature in range(features // groups):
        chosen = separate[..., feature].astype(jnp.float32)
        repeated = jnp.repeat(chosen, number, axis=-1) if number > 1 else chosen
        yield lax.pad(repeated, jnp.zeros((), jnp.float32), [(0, 0, 0), *edges, (0, 0, 0)])


def _slice(
    image: jax.Array, starts: Sequence[int], numbers: Sequence[int], strides: Sequence[int]
) -> jax.Array:
    """Return as many numbers of each of an image's rows, from these on, with these strides."""
    ends = [
        start + (number - 1) * stride + 1
        for start, number, stride in zip(starts, numbers, strides, strict=True)
    ]
    first, last = image.shape[0], image.shape[-1]
    return lax.slice(image, (0, *starts, 0), (first, *ends, last), (1, *strides, 1))
