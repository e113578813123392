"""Numbers that JAX is set to refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.errors.programs import pair
from tests.errors.refusal import Refused


def nan_in_a_step(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope():
        w = gd.Variable(jnp.ones(2), name="w")
    own = strategy.experimental_distribute_values_from_function(
        lambda context: np.array([4, 1 - 2 * context.replica_id_in_sync_group], "f")
    )

    def replica_fn(x: jax.Array) -> None:
        w.assign(gd.get_replica_context().all_reduce("MEAN", jnp.sqrt(x)))

    step = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))
    with jax.debug_nans(True), refused(FloatingPointError):
        step(own)
    assert w.read_value().tolist() == [1, 1]


def nan_in_a_variable(refused: Refused) -> None:
    w = gd.Variable(jnp.float32([1, jnp.nan]), name="w")
    step = gd.function(lambda: w.assign(w * 2))
    with jax.debug_nans(True), refused(FloatingPointError):
        step()
