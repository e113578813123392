"""Variables that are stored in slices: options that contradict, values that cannot be cut."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import graphdist as gd
from tests.errors.refusal import Refused


def slices_over_replicas_that_do_not_divide(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_parameters=3)


def slices_over_a_word(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_parameters="auto")  # type: ignore[arg-type]


def slices_with_updates_in_full(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_parameters=True, shard_update=False)


def large_variable_that_can_be_cut_nowhere(refused: Refused) -> None:
    shape = jax.ShapeDtypeStruct((2049, 2051), jnp.float32)
    strategy = gd.FullyShardedStrategy(["cpu:0", "cpu:1"])
    with strategy.scope(), refused(ValueError):
        gd.Variable(shape, name="embedding")


def large_variable_that_groups_can_cut(refused: Refused) -> None:
    shape = jax.ShapeDtypeStruct((2050, 2051), jnp.float32)
    strategy = gd.FullyShardedStrategy([f"cpu:{i}" for i in range(4)])
    with strategy.scope(), refused(ValueError):
        gd.Variable(shape, name="embedding")


def initial_values_by_a_function_that_keeps_its_key(refused: Refused) -> None:
    keys = [jax.random.key(0)]

    def next_key() -> jax.Array:
        keys[0], key = jax.random.split(keys[0])
        return key

    strategy = gd.FullyShardedStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        gd.Variable(lambda: jax.random.normal(next_key(), (256, 64)), name="first")
        with refused(ValueError):
            gd.Variable(lambda: jax.random.normal(next_key(), (256, 64)), name="second")
