"""Distributed values as what they stand for, and values that only exist on the devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import graphdist as gd


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def test_a_mirrored_value_is_its_array(strategy: gd.Strategy) -> None:
    mirrored = gd.Mirrored(jnp.array([1.0, 2.0]), strategy.num_replicas_in_sync)
    assert (mirrored + 1).tolist() == [2, 3]
    assert float(mirrored[1]) == 2
    assert len(mirrored.values) == 2
    assert isinstance(mirrored, gd.DistributedValues)
    doubled = strategy.run(lambda x: x * 2, args=(mirrored,))
    assert [value.tolist() for value in doubled.values] == [[2, 4], [2, 4]]
    assert strategy.reduce("MEAN", mirrored, axis=None).tolist() == [1, 2]
    assert strategy.gather(mirrored, axis=0).tolist() == [1, 2]
    assert len(strategy.experimental_local_results(mirrored)) == 2


def test_a_per_replica_value_is_not_an_array(strategy: gd.Strategy) -> None:
    values = strategy.run(lambda: jnp.ones(2))
    assert repr(values) == "<PerReplica f32[2] on cpu:0, cpu:1: [1. 1.] | [1. 1.]>"
    of_one = "a PerReplica is used as one array"
    for use in (np.asarray, jnp.asarray, jnp.sin, lambda value: np.add(value, 1)):
        with pytest.raises(ValueError, match=of_one):
            use(values)
    for subscript in (0, ...):
        with pytest.raises(TypeError, match="an element of a PerReplica"):
            values[subscript]


@pytest.mark.parametrize("devices", [["cpu:0"], ["cpu:0", "cpu:1"]])
def test_what_the_host_answers_differs_between_replicas(devices: list[str]) -> None:
    strategy = gd.MirroredStrategy(devices)

    def replica_fn() -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        answer = io_callback(lambda: np.float32(3), shape)
        return gd.get_replica_context().all_reduce("SUM", answer)

    function = gd.function(lambda: strategy.run(replica_fn))
    with strategy.scope():
        collectives = function.trace().lower().collectives
        result = function()
    assert len(collectives) == len(devices) - 1
    assert float(strategy.experimental_local_results(result)[0]) == 3 * len(devices)


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("shards", [False, True])
def test_a_single_replica_assigns_what_the_host_answers(
    shape: tuple[int, ...], shards: bool
) -> None:
    strategy = gd.MirroredStrategy(["cpu:0"], shard_parameters=shards)
    with strategy.scope():
        v = gd.Variable(np.zeros(shape, np.float32))

    def replica_fn() -> None:
        answer = io_callback(
            lambda: np.full(shape, 3, np.float32), jax.ShapeDtypeStruct(shape, jnp.float32)
        )
        v.assign(answer)

    gd.function(lambda: strategy.run(replica_fn))()
    assert v[...].tolist() == np.full(shape, 3).tolist()


def test_numbers_xla_draws_itself_differ_between_replicas(strategy: gd.Strategy) -> None:
    def replica_fn() -> Any:
        drawn = jax.lax.rng_uniform(jnp.float32(0), jnp.float32(1), (2,))
        return gd.get_replica_context().all_reduce("MEAN", drawn)

    assert len(gd.function(lambda: strategy.run(replica_fn)).trace().lower().collectives) == 1


def test_a_value_needed_while_tracing_is_explained(strategy: gd.Strategy) -> None:
    def replica_fn(x: jax.Array) -> int:
        return 1 if x > 0 else 2

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        strategy.run(replica_fn, args=(jnp.ones(()),))
    text = str(caught.value)
    assert "arrays have no values yet\n" in text
    assert "return 1 if x > 0 else 2\n  hint: choose with jnp.where(condition, a, b)" in text
