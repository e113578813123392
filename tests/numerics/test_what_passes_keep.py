"""What passes over collectives must not take for something else, seen from the user's side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: distributed values

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import graphdist as gd

Results = list[np.ndarray[Any, Any]]


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_update=True)


def rows(strategy: gd.Strategy, *values: Any) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.float32(values[context.replica_id_in_sync_group])
    )


def summed(value: Any) -> Any:
    return gd.get_replica_context().all_reduce("SUM", value)


def results_of(strategy: gd.Strategy, replica_fn: Callable[..., Any], *args: Any) -> Results:
    results = gd.function(lambda *args: strategy.run(replica_fn, args))(*args)
    return [np.asarray(value) for value in strategy.experimental_local_results(results)]


def test_a_factor_of_each_replicas_own(strategy: gd.Strategy) -> None:
    x, y = rows(strategy, [1, 2], [3, 5]), rows(strategy, [10, 20], [30, 50])
    added = results_of(strategy, lambda x, y: summed(x) * y + summed(y + 1), x, y)
    np.testing.assert_array_equal(added, [[82, 212], [162, 422]])

    def accumulated(x: Any, y: Any) -> Any:
        return lax.scan(lambda c, r: (c + summed(r) * y[0], None), jnp.float32(0), x)[0]

    np.testing.assert_array_equal(results_of(strategy, accumulated, x, y), [110, 330])


def test_a_carry_that_begins_differently(strategy: gd.Strategy) -> None:
    x, y = rows(strategy, [1, 2], [3, 5]), rows(strategy, 10, 30)

    def accumulated(x: Any, y: Any) -> Any:
        return lax.scan(lambda c, r: (c + summed(r), None), y, x)[0]

    np.testing.assert_array_equal(results_of(strategy, accumulated, x, y), [21, 41])


def test_an_index_that_is_not_the_replicas_number() -> None:
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(4)])
    x = rows(strategy, *np.eye(4))

    def sliced(x: Any) -> Any:
        replica = jnp.asarray(gd.get_replica_context().replica_id_in_sync_group)
        is_other = replica.astype(bool).astype(jnp.int32)
        further = (replica.astype(jnp.float32) * 1.5).astype(jnp.int32)
        whole = summed(x * jnp.arange(4.0))
        again = summed(x * jnp.arange(4.0) * 2) / 2
        return jnp.stack(
            [
                lax.dynamic_slice_in_dim(whole, is_other, 1),
                lax.dynamic_slice(again, (further,), (1,)),
            ]
        ).ravel()

    given = results_of(strategy, sliced, x)
    np.testing.assert_array_equal(given, [[0, 0], [1, 1], [1, 3], [1, 3]])


def test_a_flag_of_the_first_replica_is_sliced(strategy: gd.Strategy) -> None:
    with strategy.scope():
        flags = gd.Variable(
            np.array([False, False]), aggregation=gd.VariableAggregation.ONLY_FIRST_REPLICA
        )

    def replica_fn(x: Any) -> Any:
        flags.assign(x > 0)
        replica = jnp.asarray(gd.get_replica_context().replica_id_in_sync_group)
        taken = lax.dynamic_slice_in_dim(flags[...], replica, 1)
        flags.assign(x > 4)
        return taken

    given = results_of(strategy, replica_fn, rows(strategy, [1, -1], [-1, -1]))
    np.testing.assert_array_equal(given, [[True], [False]])


@pytest.mark.long
@pytest.mark.parametrize("largest", [jnp.max, jnp.min])
@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf, -np.inf, 7, -7, -0.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_extreme_of_what_is_shared_out(
    strategy: gd.Strategy, largest: Callable[..., Any], number: float, dtype: str
) -> None:
    with strategy.scope():
        w = gd.Variable(jnp.zeros(4, dtype))
    x = np.array([1, 2, 3, number] if largest is jnp.min else [-1, -2, -3, number], "f")

    def replica_fn(x: Any) -> Any:
        gradient = summed(x.astype(dtype))
        w.assign_sub(gradient)
        return largest(gradient).astype(jnp.float32)

    half = rows(strategy, x / 2, x / 2)
    for given in results_of(strategy, replica_fn, half):
        np.testing.assert_array_equal(given, largest(x))


def test_infinity_in_a_sum_of_equal_complex_numbers(strategy: gd.Strategy) -> None:
    x = np.array([complex(np.inf, 0), complex(1, 1)], np.complex64)
    for given in results_of(strategy, lambda: summed(jnp.asarray(x))):
        np.testing.assert_array_equal(given.real, [np.inf, 2])
        np.testing.assert_array_equal(given.imag, [0, 2])


def test_effects_in_a_loop_stay_and_keep_their_order(strategy: gd.Strategy) -> None:
    seen: list[str] = []

    def note(name: str, replica: Any) -> None:
        io_callback(lambda i: seen.append(f"{name}{i}"), None, replica, ordered=True)

    with strategy.scope():
        w = gd.Variable(np.zeros(4, np.float32))

    def replica_fn(x: Any) -> Any:
        w.assign_sub(summed(x))
        replica = jnp.asarray(gd.get_replica_context().replica_id_in_sync_group)
        first, second = summed(x.sum()), summed(x.prod())
        note("before", replica + 0 * (first + second).astype(jnp.int32))

        def body(carry: Any, row: Any) -> Any:
            note("in", replica)
            return carry, None

        lax.scan(body, 0, x)
        return first + second

    results_of(strategy, replica_fn, rows(strategy, [1, 2, 3, 4], [1, 1, 1, 1]))
    jax.effects_barrier()
    for replica in "01":
        of_replica = [name for name in seen if name.endswith(replica)]
        assert of_replica == [f"before{replica}", *[f"in{replica}"] * 4]


@pytest.mark.long
def test_a_long_chain_between_reduction_and_sum(strategy: gd.Strategy) -> None:
    def replica_fn(x: Any, w: Any) -> Any:
        value = summed(x)
        for i in range(1500):
            value = value * w[i]
        return value + summed(x * 2)

    given = results_of(strategy, replica_fn, rows(strategy, [1, 2], [3, 4]), np.ones(1500, "f"))
    np.testing.assert_array_equal(given, [[12, 18], [12, 18]])


def gathered_bytes(function: Any, *args: Any) -> list[int]:
    lowered = function.trace(*args).lower()
    return [each.bytes for each in lowered.collectives if each.kind == "all_gather"]


def test_values_are_gathered_in_their_narrowest_dtype(strategy: gd.Strategy) -> None:
    x = rows(strategy, [1, 2, 3], [4, 5.5, 6])

    def narrowed_after(x: Any) -> Any:
        gathered = gd.get_replica_context().all_gather(x, axis=0)
        return gathered.astype(jnp.bfloat16) * 2

    def widened_before(x: Any) -> Any:
        narrow = (x * 2).astype(jnp.bfloat16)
        return gd.get_replica_context().all_gather(narrow.astype(jnp.float32), axis=0)

    def used_both_ways(x: Any) -> Any:
        gathered = gd.get_replica_context().all_gather(x, axis=0)
        return gathered.astype(jnp.bfloat16), gathered + 1

    for replica_fn, sent in ((narrowed_after, 6), (widened_before, 6), (used_both_ways, 12)):
        function = gd.function(lambda x, fn=replica_fn: strategy.run(fn, (x,)))
        assert gathered_bytes(function, x) == [sent], replica_fn.__name__
    for replica_fn in (narrowed_after, widened_before):
        for result in results_of(strategy, replica_fn, x):
            np.testing.assert_array_equal(np.asarray(result, "f"), [2, 4, 6, 8, 11, 12])
