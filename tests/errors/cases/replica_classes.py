"""Replicas that do not look the same, and come to different things."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

import graphdist as gd
from tests.errors.programs import context, is_first, pair, unequal
from tests.errors.refusal import Refused


def collective_of_one_replica(refused: Refused) -> None:
    def replica_fn(x: jax.Array) -> jax.Array:
        return context().all_reduce("SUM", x) if is_first() else x

    with refused(RuntimeError):
        pair().run(replica_fn, args=(jnp.ones(3),))


def different_reducers(refused: Refused) -> None:
    with refused(RuntimeError):
        pair().run(lambda: context().all_reduce("SUM" if is_first() else "MEAN", jnp.ones(3)))


def all_reduce_of_different_shapes(refused: Refused) -> None:
    strategy = pair()
    with refused(RuntimeError):
        strategy.run(lambda x: context().all_reduce("SUM", x), args=(unequal(strategy),))


def all_gather_of_other_dimensions(refused: Refused) -> None:
    strategy = pair()
    with refused(RuntimeError):
        strategy.run(lambda x: context().all_gather(x[None], 0), args=(unequal(strategy),))


def results_of_different_structures(refused: Refused) -> None:
    with refused(ValueError):
        pair().run(lambda: [1] if is_first() else {"a": 1})


def reduce_of_different_shapes(refused: Refused) -> None:
    strategy = pair()
    with refused(ValueError):
        strategy.reduce("SUM", unequal(strategy), axis=None)
    assert strategy.reduce("SUM", unequal(strategy), axis=0) == 3


def gather_of_other_dimensions(refused: Refused) -> None:
    strategy = pair()
    columns = strategy.run(lambda x: x[None], args=(unequal(strategy),))
    with refused(ValueError):
        strategy.gather(columns, axis=0)
    assert strategy.gather(columns, axis=1).shape == (1, 3)


def loops_of_different_lengths(refused: Refused) -> None:
    def replica_fn() -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return context().all_reduce("SUM", carry), None

        return lax.scan(body, jnp.float32(1), length=2 if is_first() else 3)[0]

    with refused(RuntimeError):
        pair().run(replica_fn)


def assignment_of_one_replica(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope():
        w = gd.Variable(1.0, aggregation=gd.VariableAggregation.MEAN)
    with refused(RuntimeError):
        strategy.run(lambda: w.assign(2.0) if is_first() else None)
    assert float(w.read_value()) == 1


def merge_call_of_one_replica(refused: Refused) -> None:
    with refused(RuntimeError):
        pair().run(lambda: context().merge_call(lambda strategy: 1) if is_first() else 2)


def merge_call_of_different_structures(refused: Refused) -> None:
    with refused(ValueError):
        pair().run(
            lambda: context().merge_call(
                lambda strategy, value: 1, args=([1],) if is_first() else ((1,),)
            )
        )


def merge_call_of_different_dtypes(refused: Refused) -> None:
    with refused(ValueError):
        pair().run(
            lambda: context().merge_call(
                lambda strategy, value: 1,
                args=(jnp.int32(1) if is_first() else jnp.float32(1),),
            )
        )


def truth_of_a_comparison_on_each_replica(refused: Refused) -> None:
    strategy = pair()
    x = strategy.run(lambda: gd.get_replica_context().replica_id_in_sync_group)
    with refused(ValueError):
        if x < 1:
            raise AssertionError


def arithmetic_without_a_strategy(refused: Refused) -> None:
    with refused(RuntimeError):
        gd.PerReplica([1.0, 2.0]) * 2


def arithmetic_of_shapes_that_do_not_go_together(refused: Refused) -> None:
    x = pair().run(lambda: jnp.ones(2))
    with refused(TypeError):
        x + jnp.ones(3)


def arithmetic_across_strategies(refused: Refused) -> None:
    x = pair().run(lambda: jnp.ones(2))
    y = gd.MirroredStrategy(["cpu:2", "cpu:3"]).run(lambda: jnp.ones(2))
    with refused(ValueError):
        x + y
