"""Updates of matrices, each with a direction that is computed from the whole matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any  # Any: arrays

import jax
import jax.numpy as jnp

import graphdist as gd
from graphdist.ir.graph import Graph

Shape = tuple[int, ...]
Direction = Callable[[Any, Any], Any]
"""Takes a momentum and a gradient [rows, columns]; returns a direction of the same shape."""


def of_one_product(x: Any, gradient: Any) -> Any:
    return x @ x.T @ x


def unrolled(x: Any, gradient: Any) -> Any:
    x = x / (jnp.linalg.norm(x) + 1)
    for _ in range(2):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


def in_a_loop(x: Any, gradient: Any) -> Any:
    turned = x.T if x.shape[0] > x.shape[1] else x
    start = turned / (jnp.linalg.norm(turned) + 1)
    step = lambda i, y: 1.5 * y - 0.5 * y @ y.T @ y  # noqa: E731
    found = jax.lax.fori_loop(0, 2, step, start)
    return found.T if x.shape[0] > x.shape[1] else found


def until_it_is_small(x: Any, gradient: Any) -> Any:
    halved = lambda y: 0.25 * (y @ y.T @ y) / (1 + jnp.sum(y * y))  # noqa: E731
    return jax.lax.while_loop(lambda y: jnp.max(jnp.abs(y)) > 0.3, halved, x)


def in_a_branch(x: Any, gradient: Any) -> Any:
    return jax.lax.cond(jnp.sum(x) > 0, lambda x: x @ x.T @ x, lambda x: -x @ x.T @ x, x)


def of_both(x: Any, gradient: Any) -> Any:
    return x @ gradient.T @ gradient + x


def of_shared_columns(x: Any, gradient: Any) -> Any:
    columns = jnp.arange(x.shape[1] * 2, dtype=jnp.float32).reshape(x.shape[1], 2) / x.size
    return x @ columns @ columns.T


DIRECTIONS: dict[str, Direction] = {
    "of one product": of_one_product,
    "unrolled": unrolled,
    "in a loop": in_a_loop,
    "until it is small": until_it_is_small,
    "in a branch": in_a_branch,
    "of both": of_both,
    "of shared columns": of_shared_columns,
}
AFTERWARDS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "nothing": lambda found: found,
    "scaled": lambda found: [(i + 1) * each for i, each in enumerate(found)],
    "of norm one": lambda found: [
        each / (1 + sum(jnp.sum(other * other) for other in found)) for each in found
    ],
}
SHAPES: Sequence[Shape] = ((4, 4), (4, 8), (8, 4), (2, 4, 4), (4, 4, 8), (3, 4, 4), (4, 2, 4))


def traced(
    shapes: Sequence[Shape], direction: str, afterwards: str, returns: bool, strategy: gd.Strategy
) -> Graph:
    """Return the graph of a step that updates matrices, or stacks of them, by gradients."""
    with strategy.scope():
        declared = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        weights: list[Any] = gd.variables(declared)
        momenta: list[Any] = gd.variables(declared)

    def replica_fn(gradients: list[Any]) -> Any:
        gradients = gd.get_replica_context().all_reduce("MEAN", gradients)
        moved = [0.9 * m[...] + g for m, g in zip(momenta, gradients, strict=True)]
        gd.assign(momenta, moved)
        of_matrix = DIRECTIONS[direction]
        found = [
            (jax.vmap(of_matrix) if m.ndim == 3 else of_matrix)(m, g)
            for m, g in zip(moved, gradients, strict=True)
        ]
        found = AFTERWARDS[afterwards](found)
        gd.assign(weights, [w[...] - 0.1 * each for w, each in zip(weights, found, strict=True)])
        return found[0] if returns else None

    step = gd.function(lambda gradients: strategy.run(replica_fn, args=(gradients,)))
    with strategy.scope():
        return step.trace([gd.PerReplicaSpec(shape, jnp.float32) for shape in shapes]).graph
