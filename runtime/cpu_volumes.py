"""Convolutions of volumes on CPUs, as convolutions of images.

The library that XLA calls computes convolutions of images alone; XLA's own of volumes take two to
thirty times as long. Here a volume is an image for each place of the window along the first of
its dimensions, its depth: the *planes* that the window covers there are features of the image, and
the places are rows of the batch.

The planes that are the first in their windows are a slice of the volume, the second ones another.
So are the planes of the first window, and of the second. The fewer slices are taken: those of the
window for a convolution, those of the places for the gradient of its kernel, whose window is as
deep as the volume. All slices together have as many numbers as the volume has, times their number.
If these are too many, there is a convolution for each slice, and the results are added up, or
joined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias  # Any: parameters of JAX's primitives

import jax
import jax.numpy as jnp
from jax import lax

_MOST_BYTES = 2**23
"""The most bytes of all slices together. More leave the cache, and take a block of their own."""

_Params: TypeAlias = Mapping[str, Any]
_Convolution: TypeAlias = Callable[[jax.Array, jax.Array, _Params], jax.Array]


def over_planes(
    again: _Convolution, places: int, volume: jax.Array, kernel: jax.Array, params: _Params
) -> jax.Array:
    """Apply a convolution of a volume [batch, depth, *rows, in], by `again` of images.

    The kernel is [depth of the window, *window, in, out], and has this many places along the depth.
    """
    wanted = params["preferred_element_type"] or volume.dtype
    # What is added up is not rounded to 16 bits before.
    volume, kernel = volume.astype(jnp.float32), kernel.astype(jnp.float32)
    planes, depth = _planes(volume, kernel.shape[0], places, params), kernel.shape[0]
    numbers = params["dimension_numbers"]
    of_image, of_kernel = (_without_depth(spec) for spec in numbers[:2])
    flat = {
        **params,
        **{name: params[name][1:] for name in _ALONG_DIMENSIONS},
        "dimension_numbers": type(numbers)(of_image, of_kernel, of_image),
        "preferred_element_type": None,
    }

    def convolved(images: jax.Array, kernels: jax.Array) -> jax.Array:
        """Return [batch, places, *rows, out] of [batch, places, *rows, planes, in]."""
        rows, window = images.shape[2:-2], kernels.shape[1:-2]
        result = again(
            images.reshape(-1, *rows, images.shape[-2] * images.shape[-1]),
            jnp.moveaxis(kernels, 0, -3).reshape(*window, -1, kernels.shape[-1]),
            flat,
        )
        return result.reshape(*images.shape[:2], *result.shape[1:])

    of_window = depth <= places
    if volume.nbytes * len(planes) <= _MOST_BYTES:
        return convolved(jnp.concatenate(planes, -2 if of_window else 1), kernel).astype(wanted)
    if not of_window:
        return jnp.concatenate([convolved(plane, kernel) for plane in planes], 1).astype(wanted)
    result, *others = (
        convolved(plane, kernel[number : number + 1]) for number, plane in enumerate(planes)
    )
    for other in others:
        result = result + other
    return result.astype(wanted)


_ALONG_DIMENSIONS = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")


def _without_depth(spec: tuple[int, ...]) -> tuple[int, ...]:
    """Return the places of batch, features and rows without the first row."""
    first = spec[2]
    return tuple(place - (place > first) for place in spec if place != first)


def _planes(volume: jax.Array, depth: int, places: int, params: _Params) -> list[jax.Array]:
    """Return slices of a volume: of each plane of the window, or of each place if they are fewer.

    A slice has the shape [batch, places, *rows, planes, in]; places or planes are one.
    """
    stride, (low, _), apart, spread = (params[name][0] for name in _ALONG_DIMENSIONS)

    def every(step: int, start: int, number: int) -> jax.Array:
        """Return planes of the padded volume, in a copy that has no others."""
        covered = (number - 1) * step + 1
        edges = [(0, 0, 0)] * volume.ndim
        behind = start + covered - low - ((volume.shape[1] - 1) * apart + 1)
        edges[1] = (low - start, behind, apart - 1)
        padded = lax.pad(volume, jnp.zeros((), volume.dtype), edges)
        return lax.slice_in_dim(padded, 0, covered, step, 1)

    if depth <= places:
        return [
            jnp.expand_dims(every(stride, number * spread, places), -2) for number in range(depth)
        ]
    return [
        jnp.expand_dims(jnp.moveaxis(every(spread, number * stride, depth), 1, -2), 1)
        for number in range(places)
    ]
