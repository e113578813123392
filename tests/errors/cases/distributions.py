"""Several values where one is needed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import graphdist as gd
from tests.errors.programs import pair, per_replica
from tests.errors.refusal import Refused


def _weights(strategy: gd.Strategy) -> gd.Variable:
    with strategy.scope():
        return gd.Variable(jnp.zeros(2), name="w")


def per_replica_assigned(refused: Refused) -> None:
    strategy = pair()
    w = _weights(strategy)

    @gd.function
    def step(x: Any, combine: bool) -> None:
        def replica_fn(x: jax.Array) -> None:
            if combine:
                x = gd.get_replica_context().all_reduce("MEAN", x)
            w.assign(x * 2)

        strategy.run(replica_fn, args=(x,))

    x = per_replica(strategy, np.ones(2, np.float32))
    with refused(ValueError):
        step(x, False)
    assert w.read_value().tolist() == [0, 0]
    step(x, True)
    assert w.read_value().tolist() == [3, 3]


def per_replica_added(refused: Refused) -> None:
    strategy = pair()
    w = _weights(strategy)

    def replica_fn() -> None:
        w.assign_add(jnp.full(2, gd.get_replica_context().replica_id_in_sync_group, jnp.float32))

    with refused(ValueError):
        strategy.run(replica_fn)
    assert w.read_value().tolist() == [0, 0]


def per_replica_variable_assigned(refused: Refused) -> None:
    strategy = pair()
    w = _weights(strategy)
    with strategy.scope():
        seen = gd.Variable(
            jnp.zeros(2), name="seen", synchronization=gd.VariableSynchronization.ON_READ
        )

    def replica_fn() -> None:
        w.assign(seen + 1)

    with refused(ValueError):
        strategy.run(replica_fn)


def per_replica_assigned_in_loop(refused: Refused) -> None:
    strategy = pair()
    w = _weights(strategy)

    def replica_fn(x: jax.Array) -> None:
        def body(total: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            w.assign(total)
            return total + row, None

        jax.lax.scan(body, jnp.zeros(2), x)

    x = per_replica(strategy, np.ones((3, 2), np.float32))
    with refused(ValueError):
        strategy.run(replica_fn, args=(x,))


def per_replica_returned_as_one(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def step(x: Any) -> Any:
        kept = []

        def replica_fn(x: jax.Array) -> None:
            kept.append(x * 2)

        strategy.run(replica_fn, args=(x,))
        return kept[0]

    with refused(ValueError):
        step(per_replica(strategy, np.float32(1)))


def per_replica_input_returned_as_one(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def step(x: Any) -> Any:
        return jax.tree.leaves(x)

    with refused(ValueError):
        step(per_replica(strategy, np.float32(1)))


def per_replica_passed_as_one(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def step(x: Any) -> Any:
        kept = []
        strategy.run(lambda x: kept.append(x * 2), args=(x,))
        return strategy.run(lambda x: x + 1, args=(kept[0],))

    with refused(ValueError):
        step(per_replica(strategy, np.float32(1)))


def gradient_of_closed_over_value(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def step(w: jax.Array, x: Any, closes: bool) -> Any:
        def loss(w: jax.Array) -> Any:
            if closes:
                losses = strategy.run(lambda x: jnp.sum((x * w) ** 2), args=(x,))
            else:
                losses = strategy.run(lambda w, x: jnp.sum((x * w) ** 2), args=(w, x))
            return strategy.reduce("SUM", losses, axis=None)

        return jax.grad(loss)(w)

    w, x = jnp.ones(2), per_replica(strategy, np.ones(2, np.float32))
    with refused(ValueError):
        step(w, x, True)
    assert step(w, x, False).tolist() == [10, 10]


def gradient_of_closed_over_variable(refused: Refused) -> None:
    strategy = pair()
    w = _weights(strategy)

    @gd.function
    def step(x: Any) -> None:
        def loss(w: jax.Array) -> Any:
            losses = strategy.run(lambda x: jnp.sum((x * w) ** 2), args=(x,))
            return strategy.reduce("SUM", losses, axis=None)

        w.assign_sub(0.1 * jax.grad(loss)(gd.read(w)))

    with refused(ValueError):
        step(per_replica(strategy, np.ones(2, np.float32)))
    assert w.read_value().tolist() == [0, 0]


def per_replica_assigned_in_cross_replica_context(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope():
        w = gd.Variable(0.0, name="w", aggregation=gd.VariableAggregation.MEAN)

    @gd.function
    def step(x: Any) -> None:
        w.assign(jax.tree.leaves(x)[0])

    with refused(ValueError):
        step(per_replica(strategy, np.float32(1)))
    strategy.run(w.assign, args=(per_replica(strategy, np.float32(1)),))
    assert float(w) == 1.5


def host_callback_returned_as_one(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def step() -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        kept = []
        strategy.run(lambda: kept.append(io_callback(lambda: np.float32(1), shape)))
        return kept[0] + 1

    with refused(ValueError):
        step()


def collective_in_per_replica_cond(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def step(x: Any, agree: bool) -> Any:
        def replica_fn(x: jax.Array) -> jax.Array:
            context = gd.get_replica_context()
            big = context.all_reduce("SUM", x) > 1 if agree else x > 1
            return jax.lax.cond(big, lambda: context.all_reduce("SUM", x), lambda: x)

        return strategy.run(replica_fn, args=(x,))

    x = per_replica(strategy, np.float32(1))
    with refused(ValueError):
        step(x, False)
    assert step(x, True).values[0] == 3


def collective_in_per_replica_while(refused: Refused) -> None:
    strategy = pair()

    def replica_fn(x: jax.Array) -> jax.Array:
        context = gd.get_replica_context()
        return jax.lax.while_loop(lambda x: x < 9, lambda x: context.all_reduce("MEAN", x) + x, x)

    with refused(ValueError):
        strategy.run(replica_fn, args=(per_replica(strategy, np.float32(1)),))


def collective_in_condition_of_per_replica_while(refused: Refused) -> None:
    strategy = pair()

    def replica_fn(x: jax.Array) -> jax.Array:
        context = gd.get_replica_context()
        return jax.lax.while_loop(lambda x: x < context.all_reduce("SUM", x), lambda x: x * 2, x)

    with refused(ValueError):
        strategy.run(replica_fn, args=(per_replica(strategy, np.float32(1)),))


def gather_in_per_replica_cond(refused: Refused) -> None:
    strategy = pair()

    def replica_fn(x: jax.Array) -> jax.Array:
        context = gd.get_replica_context()
        first = context.replica_id_in_sync_group == 0
        return jax.lax.cond(
            first, lambda: context.all_gather(x, axis=0), lambda: jnp.zeros(4, x.dtype)
        )

    with refused(ValueError):
        strategy.run(replica_fn, args=(per_replica(strategy, np.ones(2, np.float32)),))


def assignment_in_per_replica_cond(refused: Refused) -> None:
    strategy = pair()
    w = _weights(strategy)

    @gd.function
    def step(all_replicas: bool) -> None:
        def replica_fn() -> None:
            first = gd.get_replica_context().replica_id_in_sync_group == 0
            if all_replicas:
                first = jnp.bool_(True)
            jax.lax.cond(first, lambda: w.assign(jnp.ones(2)), lambda: w.read_value())

        strategy.run(replica_fn)

    with refused(ValueError):
        step(False)
    assert w.read_value().tolist() == [0, 0]
    step(True)
    assert w.read_value().tolist() == [1, 1]


def assignment_in_per_replica_while(refused: Refused) -> None:
    strategy = pair()
    w = _weights(strategy)

    def replica_fn(x: jax.Array) -> jax.Array:
        def body(x: jax.Array) -> jax.Array:
            w.assign(jnp.ones(2))
            return x + 1

        return jax.lax.while_loop(lambda x: x < 9, body, x)

    with refused(ValueError):
        strategy.run(replica_fn, args=(per_replica(strategy, np.float32(1)),))
