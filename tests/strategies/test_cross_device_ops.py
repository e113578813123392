"""Hints for reductions: those that change nothing, and functions of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

HINTS: dict[str, Callable[[], gd.CrossDeviceOps]] = {
    "one_device": lambda: gd.ReductionToOneDevice(),
    "to_device": lambda: gd.ReductionToOneDevice(reduce_to_device="cpu:1"),
    "hierarchical": lambda: gd.HierarchicalCopyAllReduce(num_packs=2),
    "nccl": lambda: gd.NcclAllReduce(num_packs=0),
}


def largest(values: list[jax.Array]) -> jax.Array:
    return jnp.max(jnp.stack(values), axis=0)


def numbers(strategy: gd.Strategy) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.array([1, 5], np.float32) + context.replica_id_in_sync_group
    )


def all_reduced(strategy: gd.Strategy, op: str, tree: Any = lambda x: x) -> Any:
    result = strategy.run(
        lambda x: gd.get_replica_context().all_reduce(op, tree(x)), args=(numbers(strategy),)
    )
    first, second = strategy.experimental_local_results(result)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), first, second))
    return jax.tree.map(lambda x: x.tolist(), first)


@pytest.mark.parametrize("hint", HINTS)
def test_hints_change_no_result(hint: str) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops=HINTS[hint]())
    x = numbers(strategy)
    assert all_reduced(strategy, "SUM", lambda x: [x, x * 2]) == [[3, 11], [6, 22]]
    assert strategy.reduce("MEAN", x, axis=None).tolist() == [1.5, 5.5]
    assert strategy.extended.reduce_to("SUM", x, x).values[1].tolist() == [3, 11]
    assert strategy.gather(x, axis=0).tolist() == [1, 5, 2, 6]


@pytest.mark.parametrize("hint", HINTS)
def test_on_their_own(hint: str) -> None:
    strategy, ops = gd.MirroredStrategy(["cpu:0", "cpu:1"]), HINTS[hint]()
    x = numbers(strategy)
    assert ops.reduce("MEAN", x, "cpu:1").tolist() == [1.5, 5.5]
    total, mirrored = ops.batch_reduce("SUM", [(x, "cpu:0"), (x, x)])
    assert total.tolist() == [3, 11]
    assert mirrored.values[0].tolist() == [3, 11]
    assert ops.broadcast(jnp.float32(4), x).values[1] == 4
    with strategy.scope():
        assert ops.broadcast(jnp.float32(4), "cpu:1").devices() == {jax.local_devices()[1]}


def test_a_function_of_ones_own_accumulates() -> None:
    ops = gd.ReductionToOneDevice(accumulation_fn=largest)
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops=ops)
    assert all_reduced(strategy, "SUM", lambda x: [x, x * 2]) == [[2, 6], [4, 12]]
    assert all_reduced(strategy, "MEAN") == [1, 3]
    x = numbers(strategy)
    assert ops.reduce("SUM", x, "cpu:0").tolist() == [2, 6]
    assert ops.reduce("SUM", x, x).values[1].tolist() == [2, 6]
    # As in tf.distribute, these add up.
    assert strategy.reduce("SUM", x, axis=None).tolist() == [3, 11]
    assert strategy.extended.reduce_to("SUM", x, x).values[0].tolist() == [3, 11]


def test_gradients_flow_through_a_function_of_ones_own() -> None:
    ops = gd.ReductionToOneDevice(
        accumulation_fn=lambda values: jnp.sum(jnp.square(jnp.stack(values)), axis=0)
    )
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops=ops)

    def replica_fn(x: Any) -> Any:
        return jax.grad(lambda x: gd.get_replica_context().all_reduce("SUM", x).sum())(x)

    gradients = strategy.run(replica_fn, args=(numbers(strategy),))
    # Each replica has the sum, so that each of two gives 2 x to it.
    assert [g.tolist() for g in gradients.values] == [[4, 20], [8, 24]]


class Weighted(gd.CrossDeviceOps):
    """Twice what the first replica has, plus the second's."""

    def reduce_implementation(
        self, reduce_op: gd.ReduceOp, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        strategy = gd.get_strategy()
        first, second = strategy.experimental_local_results(per_replica_value)
        return strategy.extended.broadcast_to(2 * first + second, destinations)


def test_a_class_of_ones_own_reduces() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops=Weighted())
    assert all_reduced(strategy, "SUM") == [4, 16]


def test_replicas_of_other_shapes_too() -> None:
    ops = gd.ReductionToOneDevice(accumulation_fn=largest)
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops=ops)
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: np.ones((3 - context.replica_id_in_sync_group, 2), np.float32)
    )
    result = strategy.run(
        lambda x: gd.get_replica_context().all_reduce("SUM", x.sum()), args=(rows,)
    )
    assert [float(value) for value in result.values] == [6, 6]
