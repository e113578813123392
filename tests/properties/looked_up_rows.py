"""Steps that look up rows of tables, in the forms in which programs say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any  # Any: arrays

import jax
import jax.numpy as jnp

import graphdist as gd
from graphdist.ir.graph import Graph

Lookup = Callable[[Any, Any], Any]
"""Takes a table [rows, columns] and indices of any shape; returns rows, or numbers for them."""


def of_each(table: Any, indices: Any) -> Any:
    return jax.vmap(lambda index: table[index])(indices.reshape(-1))


def by_slices(table: Any, indices: Any) -> Any:
    def row(index: Any) -> Any:
        return jax.lax.dynamic_slice(table, (index, 0), (1, table.shape[1]))

    return jax.vmap(row)(indices.reshape(-1))


def of_parts(table: Any, indices: Any) -> Any:
    halves = table.reshape(2, -1, table.shape[1])
    pairs = indices.reshape(-1, 2)
    return jax.vmap(lambda half, index: half[index], in_axes=(0, 1), out_axes=1)(halves, pairs)


LOOKUPS: dict[str, Lookup] = {
    "indexed": lambda table, indices: table[indices],
    "taken": lambda table, indices: jnp.take(table, indices, axis=0),
    "clipped": lambda table, indices: jnp.take(table, indices, axis=0, mode="clip"),
    "wrapped": lambda table, indices: jnp.take(table, indices, axis=0, mode="wrap"),
    "filled": lambda table, indices: table.at[indices].get(mode="fill", fill_value=0.5),
    "elements": lambda table, indices: table[indices, indices % table.shape[1]],
    "columns": lambda table, indices: table[:, indices % table.shape[1]],
    "of each": of_each,
    "by slices": by_slices,
    "of parts": of_parts,
    "narrow table": lambda table, indices: table.astype(jnp.bfloat16)[indices],
    "narrow rows": lambda table, indices: table[indices].astype(jnp.bfloat16),
    "twice": lambda table, indices: table[indices] * table[indices + 1],
    "recomputed": jax.checkpoint(lambda table, indices: jnp.tanh(table[indices])),
    "product, too": lambda table, indices: table[indices] @ table.T,
}
SHAPES: Sequence[tuple[int, int]] = ((8, 4), (16, 2), (12, 8), (6, 4), (4, 16))


def traced(
    lookup: str, shape: tuple[int, int], reducer: str, momentum: float, strategy: gd.Strategy
) -> Graph:
    """Return the graph of a step that moves a table by the rows looked up."""
    declared = [jax.ShapeDtypeStruct(shape, jnp.float32)] * 2
    with strategy.scope():
        variables: Any = gd.variables(declared)
    table, slot = variables

    def replica_fn(indices: Any, scale: Any) -> Any:
        def loss(table: Any) -> Any:
            rows = jnp.nan_to_num(LOOKUPS[lookup](table, indices)).astype(jnp.float32)
            return jnp.mean(rows * rows * scale)

        value, gradient = jax.value_and_grad(loss)(table[...])
        gradient = gd.get_replica_context().all_reduce(reducer, gradient)
        if momentum:
            gradient = momentum * slot[...] + gradient
            slot.assign(gradient)
        table.assign(table[...] - 0.1 * gradient)
        return value

    step = gd.function(lambda *given: strategy.run(replica_fn, args=given))
    given = gd.PerReplicaSpec((3, 2), jnp.int32), gd.PerReplicaSpec((), jnp.float32)
    with strategy.scope():
        return step.trace(*given).graph
