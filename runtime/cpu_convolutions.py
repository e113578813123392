"""Convolutions on CPUs, in the form that XLA and the library that it calls compute fastest.

*Order.* The library takes a convolution if batch and rows of the image come first and features
last, and the features of a kernel come last: NHWC and HWIO. XLA brings the convolutions of the main
program into this order, but not those in the body of a loop. JAX writes the gradient for a kernel
in another order, so a step with convolutions took three times as long in a loop over steps. Here
convolutions are brought into that order wherever they are, which changes no bit.

*Patches.* Of images with few features, such as the colours of a photograph, the library computes
only convolutions with more than 16 features in the result, and of three features it is slow up to
32. XLA's own take two to five times as long as a product of two matrices: the *patches*, which are
the numbers under the window of the kernel at each place (K. Chellapilla, S. Puri, P. Simard, High
performance convolutional neural networks for document processing, 2006), and the kernel. Patches
have as many numbers as the image has, times the window, so large ones, which leave the processor's
cache, are not written.

*Groups* of features XLA computes one number after the other. Here groups of few features are sums
of slices (`cpu_depthwise.py`), and few groups of more are convolutions by themselves.

*One place.* A window that covers the whole image, such as JAX writes for the gradient of a kernel
of 1x1, is a product of two matrices, which takes half the time.

*Volumes* are images whose features are several planes (`cpu_volumes.py`).

*Gradients of transposed convolutions.* For the gradient of its kernel, JAX writes a convolution of
an image with zeros between its numbers, and XLA computes one number after the other. It is also a
convolution of the result's gradient, with the image as the kernel, read backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, TypeAlias  # Any: primitives of JAX have no public type, parameters any

import jax
import jax.numpy as jnp
from jax import lax

from graphdist.ir.graph import Node
from graphdist.ir.jax_parameters import parameter
from graphdist.runtime.cpu_depthwise import depthwise, gradient_of_depthwise, places_along
from graphdist.runtime.cpu_volumes import over_planes
from graphdist.runtime.windows_as_slices import Windows

CONVOLUTION = "jax.conv_general_dilated"

_MOST_FEATURES = 7
"""The most features of an image whose convolution is a product of patches."""
_MOST_NUMBERS_OF_A_PATCH = 75
"""As many as a window of 5x5 has on three features."""
_NUMBERS_OF_PATCHES = range(2**14, 2**21 + 1)
"""Fewer take less than 10 microseconds in any form; more, 8 MiB in float32, leave the cache."""
_FEWEST_MULTIPLICATIONS = 2**17
"""Fewer take XLA less than 300 microseconds one after the other."""
_MOST_SLICES = 80
"""As many as a window of 3x3 has on 8 features. Each is compiled, so they are not many more."""
_MOST_PLANES = 16
"""The most slices of a volume. Each is compiled, and may be a convolution by itself."""
_MOST_GROUPS, _MOST_GROUPS_OF_GRADIENTS = 8, 64
"""The most groups that become convolutions by themselves. XLA takes twice as long for the result
of a convolution with groups, a hundred times as long for the gradient of its kernel."""

_Params: TypeAlias = Mapping[str, Any]
_Form: TypeAlias = Callable[[jax.Array, jax.Array, _Params], jax.Array]


def convolution(node: Node, image: jax.Array, kernel: jax.Array, *, has_library: bool) -> jax.Array:
    """Apply a convolution in the library's order, or in another form that takes less time.

    `has_library` says whether XLA gives convolutions to the library.
    """
    numbers = parameter(node, "dimension_numbers")
    rank = len(numbers.lhs_spec)
    # The places of batch and features, or of features out and in, and then of the image's rows.
    of_image = (0, rank - 1, *range(1, rank - 1))
    of_kernel = (rank - 1, rank - 2, *range(rank - 2))
    ordered = type(numbers)(of_image, of_kernel, of_image)
    result = _apply(
        node.op.primitive,
        has_library,
        lax.transpose(image, _permutation(numbers.lhs_spec, of_image)),
        lax.transpose(kernel, _permutation(numbers.rhs_spec, of_kernel)),
        {**node.params, "dimension_numbers": ordered},
    )
    return lax.transpose(result, _permutation(of_image, numbers.out_spec))


def _permutation(spec: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the permutation after which the dimensions of `spec` are at the places `wanted`.

    >>> _permutation((0, 1, 2, 3), (0, 3, 1, 2))
    [0, 2, 3, 1]
    """
    return [place for _, place in sorted(zip(wanted, spec, strict=True))]


def _apply(
    primitive: Any, has_library: bool, image: jax.Array, kernel: jax.Array, params: _Params
) -> jax.Array:
    """Apply a convolution of an image [batch, *rows, features] and a kernel [*window, in, out]."""
    again = partial(_apply, primitive, has_library)
    form = _form(image, kernel, params, has_library=has_library, again=again)
    if form is None:
        result: jax.Array = primitive.bind(image, kernel, **params)
        return result
    return form(image, kernel, params)


def _form(
    image: jax.Array, kernel: jax.Array, params: _Params, *, has_library: bool, again: _Form
) -> _Form | None:
    """Return the form of a convolution that takes less time than XLA's; None if none does.

    `again` applies the convolutions of which some forms consist.
    """
    groups, groups_of_batch = params["feature_group_count"], params["batch_group_count"]
    window, (features, features_out) = kernel.shape[:-2], kernel.shape[-2:]
    places = places_along(image, kernel, params)
    is_float = image.dtype in (jnp.float32, jnp.bfloat16, jnp.float16)
    of_a_patch = prod(window) * features
    patches = image.shape[0] * prod(places) * of_a_patch // groups_of_batch
    if not is_float or image.dtype != kernel.dtype or not patches:
        return None
    is_small = patches * features_out < _FEWEST_MULTIPLICATIONS
    if groups == groups_of_batch == 1:
        fewest_of_library = 33 if features == 3 else 17
        is_a_product = (
            features <= _MOST_FEATURES
            and of_a_patch <= _MOST_NUMBERS_OF_A_PATCH
            and patches in _NUMBERS_OF_PATCHES
            and {*params["lhs_dilation"], *params["rhs_dilation"]} <= {1}
            and not (has_library and features_out >= fewest_of_library)
        )
        if is_a_product:
            return _product_of_patches
        if prod(places) == 1 and not is_small and _is_inside(image, kernel, params):
            return _product_at_one_place
        planes = min(window[0], places[0])
        if len(window) > 2 and planes <= _MOST_PLANES and not is_small:
            return partial(over_planes, again, places[0])
        is_gradient = (
            {*params["window_strides"], *params["rhs_dilation"]} == {1}
            and not {*params["lhs_dilation"]} <= {1}
            and prod(window) > prod(places)
        )
        return partial(_exchanged, again) if is_gradient and not is_small else None
    if is_small:
        return None
    if groups > 1:
        if of_a_patch <= _MOST_SLICES:
            return depthwise
        return partial(_groups, again) if groups <= _MOST_GROUPS else None
    sums = image.shape[0] // groups_of_batch * prod(places)
    if sums <= _MOST_SLICES:
        return gradient_of_depthwise
    return partial(_groups, again) if groups_of_batch <= _MOST_GROUPS_OF_GRADIENTS else None


def _product_of_patches(image: jax.Array, kernel: jax.Array, params: _Params) -> jax.Array:
    """Apply a convolution as a product of float32: that of 16 bits is one, too."""
    window, features_out = kernel.shape[:-2], kernel.shape[-1]
    patches = _patches(image.astype(jnp.float32), window, params)
    *places, of_a_patch = patches.shape
    product = lax.dot_general(
        lax.reshape(patches, (prod(places), of_a_patch)),
        lax.reshape(kernel.astype(jnp.float32), (of_a_patch, features_out)),
        (((1,), (0,)), ((), ())),
        precision=params["precision"],
    )
    result = lax.reshape(product, (*places, features_out))
    return result.astype(params["preferred_element_type"] or image.dtype)


def _patches(image: jax.Array, window: Sequence[int], params: _Params) -> jax.Array:
    """Return what the window of a convolution covers at each place, in the last dimension."""
    rows = [
        Windows(dimension, size, stride, *edges)
        for dimension, (size, stride, edges) in enumerate(
            zip(window, params["window_strides"], params["padding"], strict=True), start=1
        )
    ]
    for along in reversed(rows):  # so the last dimension has a kernel's order
        image = lax.concatenate(along.slices(image, 0), image.ndim - 1)
    return image


def _is_inside(image: jax.Array, kernel: jax.Array, params: _Params) -> bool:
    """Return whether a window at the first place covers no padding."""
    ends = [
        (covered - 1) * spread - low
        for covered, spread, (low, _) in zip(
            kernel.shape[:-2], params["rhs_dilation"], params["padding"], strict=True
        )
    ]
    is_dilated = not {*params["lhs_dilation"]} <= {1}
    starts_inside = all(low <= 0 for low, _ in params["padding"])
    ends_inside = all(end < size for end, size in zip(ends, image.shape[1:-1], strict=True))
    return starts_inside and ends_inside and not is_dilated


def _product_at_one_place(image: jax.Array, kernel: jax.Array, params: _Params) -> jax.Array:
    """Apply a convolution as a product of what its window covers and the kernel, in float32."""
    for dimension, (size, spread, (low, _)) in enumerate(
        zip(kernel.shape[:-2], params["rhs_dilation"], params["padding"], strict=True), start=1
    ):
        end = (size - 1) * spread - low + 1
        image = lax.slice_in_dim(image, -low, end, spread, dimension)
    contracted = (*range(1, image.ndim),), (*range(kernel.ndim - 1),)
    result = lax.dot_general(
        image.astype(jnp.float32),
        kernel.astype(jnp.float32),
        (contracted, ((), ())),
        precision=params["precision"],
    )
    shape = image.shape[0], *[1] * (image.ndim - 2), kernel.shape[-1]
    return lax.reshape(result, shape).astype(params["preferred_element_type"] or image.dtype)


def _groups(again: _Form, image: jax.Array, kernel: jax.Array, params: _Params) -> jax.Array:
    """Apply a convolution for each group, of the image's features or of its batch."""
    number = params["feature_group_count"]
    images = jnp.split(image, number, axis=-1)
    if number == 1:
        number = params["batch_group_count"]
        images = jnp.split(image, number, axis=0)
    alone = {**params, "feature_group_count": 1, "batch_group_count": 1}
    kernels = jnp.split(kernel, number, axis=-1)
    parts = [again(*operands, alone) for operands in zip(images, kernels, strict=True)]
    return lax.concatenate(parts, parts[0].ndim - 1)


def _exchanged(again: _Form, image: jax.Array, kernel: jax.Array, params: _Params) -> jax.Array:
    """Apply a convolution of an image with zeros between its numbers as one with dilated windows.

    Result i is the sum over h of image[h] * kernel[dilation * h + low - i]. So read backwards it is
    the convolution of the kernel and the image, which is dilated.
    """
    rank, dilations = image.ndim, params["lhs_dilation"]
    rows, batch, last = range(1, rank - 1), 0, rank - 1
    places = places_along(image, kernel, params)
    before = [size - 1 - low for size, (low, _) in zip(places, params["padding"], strict=True)]
    padding = [
        (low, size + dilation * (number - 1) - covered - low)
        for low, size, dilation, number, covered in zip(
            before, places, dilations, image.shape[1:-1], kernel.shape[:-2], strict=True
        )
    ]
    precision = params["precision"]
    exchanged = {
        **params,
        "padding": tuple(padding),
        "lhs_dilation": params["rhs_dilation"],
        "rhs_dilation": dilations,
        "precision": precision[::-1] if isinstance(precision, tuple) else precision,
    }
    result = again(
        lax.transpose(kernel, (last, *range(rank - 2), rank - 2)),
        lax.transpose(image, (*rows, last, batch)),
        exchanged,
    )
    return lax.transpose(lax.rev(result, tuple(rows)), (last, *rows, batch))
