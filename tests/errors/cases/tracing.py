"""Programs that cannot be traced to a graph that means the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

import graphdist as gd
from tests.errors.programs import pair, per_replica
from tests.errors.refusal import Refused


def _weights() -> gd.Variable:
    return gd.Variable(jnp.zeros(2), name="w")


def assignment_under_vmap(refused: Refused) -> None:
    w = _weights()

    @gd.function
    def step(batch: jax.Array) -> Any:
        return jax.vmap(lambda row: w.assign(row))(batch)

    with refused(RuntimeError):
        step(jnp.ones((3, 2)))
    assert gd.function(lambda x: w.assign(x))(jnp.ones(2)).tolist() == [1, 1]


def variable_in_a_branch_under_vmap(refused: Refused) -> None:
    w = gd.Variable(2.0, name="w")

    @gd.function
    def step(batch: jax.Array) -> jax.Array:
        def scaled(x: jax.Array) -> jax.Array:
            return jax.lax.cond(x > 0, lambda: x * w, lambda: x)

        return jax.vmap(scaled)(batch)

    with refused(RuntimeError):
        step(jnp.ones(3))


def addition_under_vmap(refused: Refused) -> None:
    w = _weights()

    @gd.function
    def step(batch: jax.Array) -> None:
        jax.vmap(lambda row: w.assign_add(row))(batch)

    with refused(RuntimeError):
        step(jnp.ones((3, 2)))
    assert w.read_value().tolist() == [0, 0]


def assignment_in_checkpoint(refused: Refused) -> None:
    w = _weights()

    @gd.function
    def step(x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array) -> jax.Array:
            w.assign(x)
            return jnp.sin(x).sum()

        return jax.grad(layer)(x)

    with refused(RuntimeError):
        step(jnp.ones(2))
    assert w.read_value().tolist() == [0, 0]


def checkpoint_replayed_after_assignment(refused: Refused) -> None:
    w = _weights()

    @gd.function
    def step(x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array) -> jax.Array:
            return jnp.sin(x * w).sum()

        def loss(x: jax.Array) -> jax.Array:
            y = layer(x)
            w.assign(x)
            return y * 2

        return jax.grad(loss)(x)

    with refused(RuntimeError):
        step(jnp.ones(2))


def value_of_an_earlier_trace(refused: Refused) -> None:
    kept = []

    @gd.function
    def step(x: jax.Array) -> jax.Array:
        kept.append(x * 2)
        return kept[0] + x

    step(jnp.ones(2))
    with refused(RuntimeError):
        step(jnp.ones(2, jnp.int32))
    kept.clear()
    assert step(jnp.ones(2, jnp.int32)).tolist() == [3, 3]


def value_of_an_earlier_trace_returned(refused: Refused) -> None:
    kept = []

    @gd.function
    def step(x: jax.Array) -> jax.Array:
        kept.append(x * 2)
        return kept[0]

    step(jnp.ones(2))
    with refused(RuntimeError):
        step(jnp.ones(3))


def ref_indexed(refused: Refused) -> None:
    @gd.function
    def step(x: jax.Array) -> jax.Array:
        ref = jax.new_ref(x)
        ref[0] = 2.0
        return ref[...]

    with refused(RuntimeError):
        step(jnp.ones(2))


def collective_in_opaque_operation(refused: Refused) -> None:
    strategy = pair()

    def replica_fn(b: jax.Array) -> jax.Array:
        def matvec(x: jax.Array) -> jax.Array:
            return gd.get_replica_context().all_reduce("MEAN", 2 * x)

        return jax.lax.custom_linear_solve(matvec, b, solve=lambda matvec, b: b / 2, symmetric=True)

    with refused(RuntimeError):
        strategy.run(replica_fn, args=(per_replica(strategy, np.ones(2, np.float32)),))


def variable_in_opaque_operation(refused: Refused) -> None:
    w = _weights()

    @gd.function
    def step(b: jax.Array) -> jax.Array:
        return jax.lax.custom_linear_solve(
            lambda x: x * w, b, solve=lambda matvec, b: b / 2, symmetric=True
        )

    with refused(RuntimeError):
        step(jnp.ones(2))


def variable_in_a_kernel(refused: Refused) -> None:
    w = _weights()

    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] * w[...]

    @gd.function
    def step(x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, x, interpret=True)(x)

    with refused(RuntimeError):
        step(jnp.ones(2))


def mesh_inside_a_replica_function(refused: Refused) -> None:
    strategy = pair()
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((1,), ("rows",), axis_types=auto)

    def replica_fn() -> Any:
        double: Any = jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=jax.P(), out_specs=jax.P())
        return double(jnp.ones(2))

    with refused(RuntimeError):
        strategy.run(replica_fn)


def value_of_a_trace_given_to_a_function(refused: Refused) -> None:
    kept = []

    @gd.function
    def step(x: jax.Array) -> jax.Array:
        kept.append(x * 2)
        return x

    step(jnp.ones(2))
    with refused(TypeError):
        step(kept[0])


def value_of_a_trace_assigned(refused: Refused) -> None:
    w, kept = _weights(), []

    @gd.function
    def step(x: jax.Array) -> jax.Array:
        kept.append(x * 2)
        return x

    step(jnp.ones(2))
    with refused(RuntimeError):
        w.assign(kept[0])
    assert w.read_value().tolist() == [0, 0]
