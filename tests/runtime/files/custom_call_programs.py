"""Programs of JAX with every custom call that a saved step may have, for each platform."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any  # Any: descriptions of custom calls

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import linalg

from tests.mutations.modules import described_calls

QR = linalg.SvdAlgorithm.QR
"""The algorithm that has a custom call of its own on GPUs."""
PLATFORMS = ("cpu", "cuda", "tpu")
DTYPES = ("float32", "float64", "complex64", "complex128")
_MISSING = {
    "cpu": (),
    "cuda": ("schur", "hessenberg", "eig"),
    "tpu": ("schur", "hessenberg", "eig", "tridiagonal", "svd_by_qr"),
}
"""The functions that JAX does not have, or does not export, for a platform."""


def _functions(
    square: jax.Array, tall: jax.Array, wide: jax.Array
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield functions of matrices of n, m by n and n by m elements, n <= m."""
    n = square.shape[-1]
    reflectors = tall[..., 0, :]
    yield "cholesky", lambda: linalg.cholesky(square)
    yield "eigh", lambda: [linalg.eigh(square, lower=lower) for lower in (True, False)]
    yield "lu", lambda: [linalg.lu(each) for each in (square, tall, wide)]
    sides = [(x, full) for x in (tall, wide) for full in (False, True)]
    yield "qr", lambda: [linalg.qr(x, full_matrices=full) for x, full in sides]
    yield "svd", lambda: [linalg.svd(x, full_matrices=full) for x, full in sides]
    yield (
        "svd_by_qr",
        lambda: [linalg.svd(x, full_matrices=full, algorithm=QR) for x, full in sides],
    )
    yield "svd", lambda: [linalg.svd(x, compute_uv=False) for x in (tall, wide)]
    yield "svd", lambda: linalg.svd(tall, full_matrices=False, compute_uv=False)
    yield "svd_by_qr", lambda: [linalg.svd(x, compute_uv=False, algorithm=QR) for x in (tall, wide)]
    yield "householder", lambda: linalg.householder_product(tall, reflectors)
    yield (
        "eig",
        lambda: [
            linalg.eig(square, compute_left_eigenvectors=left, compute_right_eigenvectors=not left)
            for left in (True, False)
        ],
    )
    yield "schur", lambda: [linalg.schur(square, compute_schur_vectors=v) for v in (True, False)]
    if n:
        yield "hessenberg", lambda: linalg.hessenberg(square)
        yield "tridiagonal", lambda: [linalg.tridiagonal(square, lower=x) for x in (True, False)]
        band = square[..., 0]
        yield "gtsv", lambda: linalg.tridiagonal_solve(band, band, band, square)
    ways: list[dict[str, Any]] = [
        {},
        {"transpose_a": True},
        {"conjugate_a": True, "transpose_a": True},
        {"unit_diagonal": True},
    ]
    yield (
        "trsm",
        lambda: [
            linalg.triangular_solve(
                square, wide if left else tall, left_side=left, lower=not left, **way
            )
            for left in (True, False)
            for way in ways
        ],
    )


def linear_algebra_calls(
    platform: str, dtype: str, batch: tuple[int, ...], m: int, n: int
) -> list[dict[str, Any]]:
    """Return the custom calls of all functions of matrices of a type, as the reader says them."""
    missing = (*_MISSING[platform], *(("svd_by_qr",) if platform == "cpu" else ()))

    def program(*matrices: jax.Array) -> list[Any]:
        made = _functions(*matrices)
        return [function() for name, function in made if name not in missing]

    with jax.enable_x64(True):
        shapes = ((n, n), (m, n), (n, m))
        avals = [jax.ShapeDtypeStruct((*batch, *shape), dtype) for shape in shapes]
        return described_calls(program, *avals, platform=platform)


def other_calls() -> list[dict[str, Any]]:
    """Return the custom calls that are none of linear algebra."""
    floats = jax.ShapeDtypeStruct((3, 16), jnp.float32)
    halves = jax.ShapeDtypeStruct((16,), jnp.bfloat16)

    def top_k(x: jax.Array, y: jax.Array) -> list[Any]:
        return [
            lax.approx_max_k(x, 2),
            lax.approx_min_k(x, 2, reduction_dimension=0),
            lax.approx_max_k(y, 3, recall_target=0.5, reduction_input_size_override=32),
            lax.approx_max_k(x, 2, aggregate_to_topk=False),
        ]

    def moved(x: jax.Array) -> list[Any]:
        there = jax.device_put(x, jax.memory.Space.Host)
        return [jax.device_put(there, jax.memory.Space.Device), lax.empty((4,), jnp.float32)]

    calls = [
        call
        for platform in PLATFORMS
        for call in described_calls(top_k, floats, halves, platform=platform)
    ]
    calls += described_calls(moved, floats, platform="tpu")
    return calls
