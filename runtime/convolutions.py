"""Convolutions on CPUs, with their dimensions in the order of the library that computes them.

XLA's compiler for CPUs gives a convolution to a library if batch and rows of the image come first
and features last, and the features of a kernel come last: NHWC and HWIO. It brings the convolutions
of the main program into this order, but not those in the body of a loop. JAX writes the gradient
for a kernel in another order, so a step with convolutions took three times as long in a loop over
steps. Here convolutions are brought into that order wherever they are, which changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any  # Any: primitives of JAX have no public type

import jax
from jax import lax

from graphdist.ir.arrays import Array
from graphdist.ir.graph import Node
from graphdist.ir.jax_parameters import parameter
from graphdist.runtime.bind_primitive import bind_jax_node

CONVOLUTION = "jax.conv_general_dilated"


def bind_convolution(node: Node, operands: Sequence[jax.Array | Array]) -> list[jax.Array]:
    """Apply a convolution; in programs for CPUs its dimensions are in the library's order."""
    numbers = parameter(node, "dimension_numbers")
    rank = len(numbers.lhs_spec)
    # The places of batch and features, or of features out and in, and then of the image's rows.
    image = (0, rank - 1, *range(1, rank - 1))
    kernel = (rank - 1, rank - 2, *range(rank - 2))
    ordered = type(numbers)(image, kernel, image)
    if numbers == ordered or not _is_for_cpus.get():
        return bind_jax_node(node, operands)
    x, weights = operands
    primitive: Any = node.op.primitive
    result = primitive.bind(
        lax.transpose(x, _permutation(numbers.lhs_spec, image)),
        lax.transpose(weights, _permutation(numbers.rhs_spec, kernel)),
        **{**node.params, "dimension_numbers": ordered},
    )
    return [lax.transpose(result, _permutation(image, numbers.out_spec))]


@contextmanager
def convolutions_for(platform: str) -> Iterator[None]:
    """Apply the convolutions of a program for a platform, such as "cpu", in a `with` block."""
    before = _is_for_cpus.set(platform == "cpu")
    try:
        yield
    finally:
        _is_for_cpus.reset(before)


_is_for_cpus: ContextVar[bool] = ContextVar("_is_for_cpus", default=False)


def _permutation(spec: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the permutation after which the dimensions of `spec` are at the places `wanted`.

    >>> _permutation((0, 1, 2, 3), (0, 3, 1, 2))
    [0, 2, 3, 1]
    """
    return [place for _, place in sorted(zip(wanted, spec, strict=True))]
