"""Convolutions on CPUs, with their dimensions in the order of the library that computes them.

XLA's compiler for CPUs gives a convolution to a library if batch and rows of the image come first
and features last, and the features of a kernel come last: NHWC and HWIO. It brings the convolutions
of the main program into this order, but not those in the body of a loop. JAX writes the gradient
for a kernel in another order, so a step with convolutions took three times as long in a loop over
steps. Here convolutions are brought into that order wherever they are, which changes no bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: primitives of JAX have no public type

import jax
from jax import lax

from graphdist.ir.arrays import Array
from graphdist.ir.graph import Node
from graphdist.ir.jax_parameters import parameter
from graphdist.runtime.bind_primitive import bind_jax_node

CONVOLUTION = "jax.conv_general_dilated"


def bind_convolution(node: Node, operands: Sequence[jax.Array | Array]) -> list[jax.Array]:
    """Apply a convolution, on CPUs with its dimensions in the library's order."""
    numbers = parameter(node, "dimension_numbers")
    rank = len(numbers.lhs_spec)
    # Batch and features first, as in the specs; their places in the library's order.
    image = (0, rank - 1, *range(1, rank - 1))
    kernel = (rank - 1, rank - 2, *range(rank - 2))
    ordered = type(numbers)(image, kernel, image)
    if numbers == ordered:
        return bind_jax_node(node, operands)
    primitive: Any = node.op.primitive

    def on_cpu(x: jax.Array, weights: jax.Array) -> jax.Array:
        result = primitive.bind(
            lax.transpose(x, _permutation(numbers.lhs_spec, image)),
            lax.transpose(weights, _permutation(numbers.rhs_spec, kernel)),
            **{**node.params, "dimension_numbers": ordered},
        )
        return lax.transpose(result, _permutation(image, numbers.out_spec))

    def as_written(x: jax.Array, weights: jax.Array) -> jax.Array:
        return bind_jax_node(node, (x, weights))[0]

    return [lax.platform_dependent(*operands, cpu=on_cpu, default=as_written)]


def _permutation(spec: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the permutation after which the dimensions of `spec` are at the places `wanted`.

    >>> _permutation((0, 1, 2, 3), (0, 3, 1, 2))
    [0, 2, 3, 1]
    """
    return [place for _, place in sorted(zip(wanted, spec, strict=True))]
