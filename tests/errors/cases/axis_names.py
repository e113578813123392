"""Collectives of JAX by axis name that no replica function can mean."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import graphdist as gd
from tests.errors.programs import context, pair, per_replica, unequal
from tests.errors.refusal import Refused

R = "replica"


def axis_name_outside_a_run(refused: Refused) -> None:
    strategy = pair()
    step = gd.function(lambda x: lax.psum(x, R))
    with strategy.scope(), refused(RuntimeError):
        step(jnp.ones(3))
    assert strategy.run(lambda x: lax.psum(x, R), args=(2,)) == 4


def axis_name_after_a_run(refused: Refused) -> None:
    strategy = pair()

    @gd.function
    def step(x: Any) -> Any:
        total = strategy.reduce("SUM", strategy.run(lambda x: lax.psum(x, R), args=(x,)), axis=None)
        return jax.jit(lambda t: lax.pmax(t, R))(total)

    with refused(RuntimeError):
        step(per_replica(strategy, np.float32(1)))


def axis_name_in_merge_call(refused: Refused) -> None:
    strategy = pair()

    def merged(strategy: gd.Strategy, x: Any) -> Any:
        return lax.psum(strategy.reduce("SUM", x, axis=None), R)

    with refused(RuntimeError):
        strategy.run(
            lambda x: context().merge_call(merged, args=(x,)),
            args=(per_replica(strategy, np.float32(1)),),
        )


def axis_name_in_merge_call_of_unequal_replicas(refused: Refused) -> None:
    strategy = pair()

    def merged(strategy: gd.Strategy, x: Any) -> Any:
        return jax.jit(lambda t: lax.psum(t, R))(strategy.reduce("SUM", x, axis=0))

    with refused(RuntimeError):
        strategy.run(lambda x: context().merge_call(merged, args=(x,)), args=(unequal(strategy),))


def axis_name_around_a_gradient(refused: Refused) -> None:
    strategy = pair()

    def loss(w: Any, x: Any) -> Any:
        losses = strategy.run(lambda w, x: lax.psum(w * x, R), args=(w, x))
        return lax.psum(strategy.reduce("SUM", losses, axis=None), R)

    step = gd.function(jax.grad(loss))
    with refused(RuntimeError):
        step(jnp.float32(1), per_replica(strategy, np.float32(1)))


def axis_name_of_another(refused: Refused) -> None:
    strategy = pair()
    with refused(RuntimeError):
        strategy.run(lambda: lax.axis_index("batch"))
    named = gd.MirroredStrategy(["cpu:0", "cpu:1"], axis_name="batch")
    numbers = named.experimental_local_results(named.run(lambda: lax.axis_index("batch")))
    assert [int(one) for one in numbers] == [0, 1]


def axis_name_that_is_none(refused: Refused) -> None:
    name: Any = 0
    with refused(TypeError):
        gd.MirroredStrategy(["cpu:0", "cpu:1"], axis_name=name)


def axis_name_twice(refused: Refused) -> None:
    with refused(RuntimeError):
        pair().run(lambda x: lax.psum(x, (R, R)), args=(jnp.ones(2),))


def axis_name_with_groups(refused: Refused) -> None:
    with refused(RuntimeError):
        pair().run(lambda x: lax.psum(x, R, axis_index_groups=[[0], [1]]), args=(jnp.ones(2),))


def axis_name_of_a_ragged_exchange(refused: Refused) -> None:
    def replica_fn(x: Any) -> Any:
        at = jnp.arange(2)
        return lax.ragged_all_to_all(x, x, at, at, at, at, axis_name=R)

    with refused(RuntimeError):
        pair().run(replica_fn, args=(jnp.ones(2),))


def axis_name_with_unequal_lengths(refused: Refused) -> None:
    strategy = pair()
    x = unequal(strategy)
    with refused(RuntimeError):
        strategy.run(lambda x: lax.all_gather(x, R, tiled=True), args=(x,))
    gathered = strategy.run(lambda x: context().all_gather(x, 0), args=(x,))
    assert strategy.experimental_local_results(gathered)[0].shape == (3,)


def axis_name_with_unequal_shapes(refused: Refused) -> None:
    strategy = pair()
    with refused(RuntimeError):
        strategy.run(lambda x: lax.psum(x, R), args=(unequal(strategy),))


def permutation_with_a_sender_twice(refused: Refused) -> None:
    with refused(TypeError):
        pair().run(lambda x: lax.ppermute(x, R, [(0, 0), (0, 1)]), args=(jnp.ones(2),))


def permutation_to_a_replica_that_is_not_there(refused: Refused) -> None:
    with refused(TypeError):
        pair().run(lambda x: lax.ppermute(x, R, [(0, 2)]), args=(jnp.ones(2),))


def predicate_of_what_was_exchanged(refused: Refused) -> None:
    def replica_fn(x: Any) -> Any:
        sent = lax.ppermute(x, R, [(0, 1)])
        return lax.cond(sent > 0, lambda: lax.psum(x, R), lambda: x)

    with refused(ValueError):
        pair().run(replica_fn, args=(jnp.float32(1),))
