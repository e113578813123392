"""Calls that belong in another context."""

from __future__ import annotations

import copy
from typing import Any

import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.errors.programs import pair, per_replica
from tests.errors.refusal import Refused


def run_in_replica_context(refused: Refused) -> None:
    strategy = pair()

    def replica_fn() -> Any:
        return strategy.run(lambda: 1.0)

    with refused(RuntimeError):
        strategy.run(replica_fn)
    assert not gd.has_strategy()
    assert strategy.run(lambda: jnp.float32(1)).values[1] == 1


def run_in_replica_context_of_a_function(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def step(nested: bool) -> Any:
        def replica_fn() -> Any:
            return strategy.run(lambda: 1.0) if nested else jnp.float32(1)

        return strategy.run(replica_fn)

    with refused(RuntimeError):
        step(True)
    assert step(False).values[1] == 1


def scope_in_replica_context(refused: Refused) -> None:
    strategy = pair()

    def replica_fn() -> Any:
        with strategy.scope():
            return gd.Variable(0.0)

    with refused(RuntimeError):
        strategy.run(replica_fn)


def scope_of_another_strategy(refused: Refused) -> None:
    with pair().scope(), refused(RuntimeError), gd.OneDeviceStrategy("cpu:0").scope():
        pass
    assert not gd.has_strategy()


def run_under_another_scope(refused: Refused) -> None:
    strategy = gd.OneDeviceStrategy("cpu:0")
    with pair().scope(), refused(RuntimeError):
        strategy.run(lambda: 1.0)
    assert strategy.run(lambda: 1.0) == 1.0


def reduce_in_replica_context(refused: Refused) -> None:
    strategy = pair()

    def replica_fn(x: Any) -> Any:
        return strategy.reduce("SUM", x, axis=None)

    with refused(RuntimeError):
        strategy.run(replica_fn, args=(per_replica(strategy, np.float32(1)),))


def gather_in_replica_context(refused: Refused) -> None:
    strategy = pair()

    def replica_fn(x: Any) -> Any:
        return strategy.gather(x, axis=0)

    with refused(RuntimeError):
        strategy.run(replica_fn, args=(per_replica(strategy, np.ones(2)),))


def dataset_in_replica_context(refused: Refused) -> None:
    strategy = pair()

    def replica_fn() -> Any:
        return strategy.experimental_distribute_dataset([np.ones(4)])

    with refused(RuntimeError):
        strategy.run(replica_fn)


def values_from_function_in_replica_context(refused: Refused) -> None:
    strategy = pair()

    def replica_fn() -> Any:
        return strategy.experimental_distribute_values_from_function(lambda context: 1)

    with refused(RuntimeError):
        strategy.run(replica_fn)


def values_from_function_inside_a_function(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def step() -> Any:
        value = strategy.experimental_distribute_values_from_function(lambda context: np.ones(2))
        return strategy.reduce("SUM", value, axis=None)

    with refused(RuntimeError):
        step()


def replica_context_after_run(refused: Refused) -> None:
    strategy = pair()
    kept = []

    def replica_fn() -> None:
        kept.append(gd.get_replica_context())

    strategy.run(replica_fn)
    with refused(RuntimeError):
        kept[0].all_reduce("SUM", jnp.float32(1))


def replica_context_of_an_earlier_run(refused: Refused) -> None:
    strategy = pair()
    kept: list[gd.ReplicaContext] = []

    def replica_fn() -> Any:
        if not kept:
            kept.append(gd.get_replica_context())
        return kept[0].all_reduce("SUM", jnp.float32(1))

    @gd.function
    def step() -> Any:
        return strategy.run(replica_fn), strategy.run(replica_fn)

    with refused(RuntimeError):
        step()


def replica_id_after_run(refused: Refused) -> None:
    strategy = pair()
    kept = []

    def replica_fn() -> None:
        kept.append(gd.get_replica_context())

    strategy.run(replica_fn)
    with refused(RuntimeError):
        kept[0].replica_id_in_sync_group + 1


def merge_call_in_merge_call(refused: Refused) -> None:
    strategy = pair()

    def replica_fn() -> Any:
        context = gd.get_replica_context()
        return context.merge_call(lambda strategy: context.merge_call(lambda strategy: 1))

    with refused(RuntimeError):
        strategy.run(replica_fn)


def strategy_copied(refused: Refused) -> None:
    strategy = pair()
    with refused(RuntimeError):
        copy.copy(strategy)


def two_strategies_in_one_function(refused: Refused) -> None:
    strategy, other = pair(), gd.MirroredStrategy(["cpu:2", "cpu:3"])

    @gd.function
    def step(x: Any) -> Any:
        first = strategy.run(lambda x: x + 1, args=(x,))
        second = other.run(lambda x: x + 1, args=(x,))
        return first, second

    with refused(RuntimeError):
        step(jnp.float32(1))


def variable_under_another_scope(refused: Refused) -> None:
    with pair().scope():
        w = gd.Variable(1.0, name="w")
    with gd.OneDeviceStrategy("cpu:0").scope(), refused(RuntimeError):
        w.assign(2.0)
    assert float(w) == 1.0


def variable_of_another_strategy(refused: Refused) -> None:
    strategy, other = pair(), gd.MirroredStrategy(["cpu:2", "cpu:3"])
    with other.scope():
        w = gd.Variable(1.0, name="w")

    @gd.function
    def step() -> Any:
        return strategy.run(lambda: w * 2)

    with refused(RuntimeError):
        step()


def replica_context_in_cross_replica_context(refused: Refused) -> None:
    strategy = pair()
    with refused(AttributeError), strategy.scope():
        gd.get_replica_context().all_reduce("SUM", jnp.ones(2))
    with strategy.scope():
        maybe: Any = gd.get_replica_context()
        assert maybe is None


def replica_context_in_a_function_outside_run(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def step(x: Any) -> Any:
        gradients = strategy.run(lambda x: x * 2, args=(x,))
        return gd.get_replica_context().all_gather(gradients, axis=0)

    with strategy.scope(), refused(RuntimeError):
        step(per_replica(strategy, np.ones(2, np.float32)))


def replica_context_in_merge_call(refused: Refused) -> None:
    strategy = pair()

    def merge(strategy: gd.Strategy, x: Any) -> Any:
        return gd.get_replica_context().merge_call(lambda strategy: x)

    def replica_fn() -> Any:
        return gd.get_replica_context().merge_call(merge, args=(jnp.ones(2),))

    with refused(RuntimeError):
        strategy.run(replica_fn)


def strategy_entered_itself(refused: Refused) -> None:
    strategy: Any = pair()
    with refused(RuntimeError), strategy:
        pass
