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
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any  # Any: primitives of JAX have no public type

import jax
import jax.numpy as jnp
from jax import lax

from graphdist.ir.graph import Node
from graphdist.ir.jax_parameters import parameter
from graphdist.ir.types import numpy_dtype

CONVOLUTION = "jax.conv_general_dilated"

_MOST_FEATURES = 7
"""The most features of an image whose convolution is a product of patches."""
_MOST_NUMBERS_OF_A_PATCH = 75
"""As many as a window of 5x5 has on three features."""
_NUMBERS_OF_PATCHES = range(2**14, 2**21 + 1)
"""Fewer take less than 10 microseconds in any form; more, 8 MiB in float32, leave the cache."""


def convolution(node: Node, image: jax.Array, kernel: jax.Array, *, has_library: bool) -> jax.Array:
    """Apply a convolution in the library's order, or as a product of patches.

    `has_library` says whether XLA gives convolutions to the library.
    """
    numbers = parameter(node, "dimension_numbers")
    rank = len(numbers.lhs_spec)
    # The places of batch and features, or of features out and in, and then of the image's rows.
    of_image = (0, rank - 1, *range(1, rank - 1))
    of_kernel = (rank - 1, rank - 2, *range(rank - 2))
    ordered = type(numbers)(of_image, of_kernel, of_image)
    image = lax.transpose(image, _permutation(numbers.lhs_spec, of_image))
    kernel = lax.transpose(kernel, _permutation(numbers.rhs_spec, of_kernel))
    if _is_a_product(node, image, kernel, has_library):
        result = _product_of_patches(node, image, kernel)
    else:
        primitive: Any = node.op.primitive
        result = primitive.bind(image, kernel, **{**node.params, "dimension_numbers": ordered})
    return lax.transpose(result, _permutation(of_image, numbers.out_spec))


def _permutation(spec: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the permutation after which the dimensions of `spec` are at the places `wanted`.

    >>> _permutation((0, 1, 2, 3), (0, 3, 1, 2))
    [0, 2, 3, 1]
    """
    return [place for _, place in sorted(zip(wanted, spec, strict=True))]


def _is_a_product(node: Node, image: jax.Array, kernel: jax.Array, has_library: bool) -> bool:
    """Return whether a product of patches takes less time than the convolution."""
    *window, features, features_out = kernel.shape
    is_float = image.dtype in (jnp.float32, jnp.bfloat16, jnp.float16)
    if not is_float or features > _MOST_FEATURES or not _is_plain(node):
        return False
    fewest_of_library = 33 if features == 3 else 17
    if has_library and features_out >= fewest_of_library:
        return False
    of_a_patch = prod(window) * features
    patches = node.results[0].type.size // features_out * of_a_patch
    return of_a_patch <= _MOST_NUMBERS_OF_A_PATCH and patches in _NUMBERS_OF_PATCHES


def _is_plain(node: Node) -> bool:
    """Return whether each feature of the result is of all features under an undilated window."""
    groups = node.params["feature_group_count"], node.params["batch_group_count"]
    return {*groups, *parameter(node, "lhs_dilation"), *parameter(node, "rhs_dilation")} == {1}


def _product_of_patches(node: Node, image: jax.Array, kernel: jax.Array) -> jax.Array:
    """Apply a convolution as a product of float32: that of 16 bits is one, too."""
    window, features_out = kernel.shape[:-2], kernel.shape[-1]
    patches = _patches(image.astype(jnp.float32), window, node)
    *places, of_a_patch = patches.shape
    product = lax.dot_general(
        lax.reshape(patches, (prod(places), of_a_patch)),
        lax.reshape(kernel.astype(jnp.float32), (of_a_patch, features_out)),
        (((1,), (0,)), ((), ())),
        precision=parameter(node, "precision"),
    )
    result = lax.reshape(product, (*places, features_out))
    return result.astype(numpy_dtype(node.results[0].type.dtype))


def _patches(image: jax.Array, window: Sequence[int], node: Node) -> jax.Array:
    """Return what the window of a convolution covers at each place, in the last dimension."""
    edges = [(low, high, 0) for low, high in parameter(node, "padding")]
    patches = lax.pad(image, jnp.zeros((), image.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
    strides = parameter(node, "window_strides")
    for dimension in range(len(window), 0, -1):  # so the last dimension has a kernel's order
        size, stride = window[dimension - 1], strides[dimension - 1]
        last = patches.shape[dimension] - size
        columns = [
            lax.slice_in_dim(patches, start, last + start + 1, stride, dimension)
            for start in range(size)
        ]
        patches = lax.concatenate(columns, patches.ndim - 1)
    return patches
