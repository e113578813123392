"""Values and axes that cannot be reduced or gathered."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.errors.programs import pair, per_replica
from tests.errors.refusal import Refused


def _in_replica_context(replica_fn: Any, *values: Any) -> Any:
    strategy = pair()
    args = tuple(per_replica(strategy, value) for value in values)
    return strategy.run(replica_fn, args=args)


def gather_of_scalars(refused: Refused) -> None:
    strategy = pair()
    x = per_replica(strategy, np.float32(1))
    with refused(ValueError):
        strategy.gather(x, axis=0)
    assert strategy.gather(strategy.run(lambda x: x[None], args=(x,)), axis=0).tolist() == [1, 2]


def gather_axis_out_of_range(refused: Refused) -> None:
    strategy = pair()
    x = per_replica(strategy, np.ones((2, 3)))
    with refused(ValueError):
        strategy.gather(x, axis=2)
    assert strategy.gather(x, axis=1).shape == (2, 6)


def gather_axis_no_number(refused: Refused) -> None:
    strategy = pair()
    axis: Any = "0"
    with refused(TypeError):
        strategy.gather(per_replica(strategy, np.ones(2)), axis=axis)


def gather_along_two_axes(refused: Refused) -> None:
    strategy = pair()
    axis: Any = [0, 1]
    with refused(TypeError):
        strategy.gather(per_replica(strategy, np.ones((2, 2))), axis=axis)


def gather_of_text_in_a_dict(refused: Refused) -> None:
    strategy = pair()
    x = per_replica(strategy, np.ones(2, np.float32))
    with refused(TypeError):
        strategy.gather({"x": x, "name": "x"}, axis=0)
    assert strategy.gather(x, axis=0).tolist() == [1, 1, 2, 2]


def gather_of_strings(refused: Refused) -> None:
    strategy = pair()
    x = strategy.experimental_distribute_values_from_function(lambda context: "a")
    with refused(TypeError):
        strategy.gather(x, axis=0)


def reduce_axis_out_of_range(refused: Refused) -> None:
    strategy = pair()
    x = per_replica(strategy, np.ones((2, 3)))
    with refused(ValueError):
        strategy.reduce("SUM", x, axis=(0, 2))
    assert strategy.reduce("SUM", x, axis=(0, 1)) == 18


def reduce_axis_no_number(refused: Refused) -> None:
    strategy = pair()
    axis: Any = 0.5
    with refused(TypeError):
        strategy.reduce("SUM", per_replica(strategy, np.ones(2)), axis=axis)


def reduce_by_unknown_op(refused: Refused) -> None:
    strategy = pair()
    with refused(ValueError):
        strategy.reduce("MAX", per_replica(strategy, np.float32(1)), axis=None)


def reduce_by_no_op(refused: Refused) -> None:
    strategy = pair()
    op: Any = jnp.sum
    with refused(ValueError):
        strategy.reduce(op, per_replica(strategy, np.float32(1)), axis=None)


def reduce_sum_of_one_value(refused: Refused) -> None:
    strategy = pair()
    with refused(ValueError):
        strategy.reduce("SUM", jnp.float32(1), axis=None)
    assert strategy.reduce("MEAN", jnp.float32(1), axis=None) == 1


def reduce_of_strings(refused: Refused) -> None:
    strategy = pair()
    x = strategy.experimental_distribute_values_from_function(lambda context: "a")
    with refused(TypeError):
        strategy.reduce("SUM", x, axis=None)


def reduce_of_bools(refused: Refused) -> None:
    strategy = pair()
    x = per_replica(strategy, np.ones(2))
    flags = strategy.run(lambda x: x > 1, args=(x,))
    with refused(TypeError):
        strategy.reduce("SUM", flags, axis=None)


def all_reduce_of_bools(refused: Refused) -> None:
    with refused(TypeError):
        _in_replica_context(lambda x: gd.get_replica_context().all_reduce("SUM", x > 1), np.ones(2))


def all_reduce_of_random_keys(refused: Refused) -> None:
    with refused(TypeError):
        _in_replica_context(lambda: gd.get_replica_context().all_reduce("MEAN", jax.random.key(0)))


def all_reduce_of_string(refused: Refused) -> None:
    with refused(TypeError):
        _in_replica_context(lambda: gd.get_replica_context().all_reduce("SUM", {"loss": "1.0"}))


def all_reduce_by_unknown_op(refused: Refused) -> None:
    with refused(ValueError):
        _in_replica_context(lambda: gd.get_replica_context().all_reduce("MAX", jnp.float32(1)))


def all_gather_of_scalars(refused: Refused) -> None:
    with refused(ValueError):
        _in_replica_context(lambda x: gd.get_replica_context().all_gather(x, axis=0), np.float32(1))


def all_gather_of_string(refused: Refused) -> None:
    with refused(TypeError):
        _in_replica_context(lambda: gd.get_replica_context().all_gather("ab", axis=0))


def all_gather_axis_out_of_range(refused: Refused) -> None:
    with refused(ValueError):
        _in_replica_context(lambda x: gd.get_replica_context().all_gather(x, axis=-2), np.ones(2))


def values_of_different_structures(refused: Refused) -> None:
    strategy = pair()

    def value_fn(context: gd.ValueContext) -> Any:
        return {"x": 1.0} if context.replica_id_in_sync_group == 0 else {"y": 1.0}

    with refused(ValueError):
        strategy.experimental_distribute_values_from_function(value_fn)
