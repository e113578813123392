"""Values of replicas, and variables, where Python or JAX wants one number or array."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.errors.programs import pair, per_replica
from tests.errors.refusal import Refused


def _value(strategy: gd.Strategy) -> Any:
    return per_replica(strategy, np.float32(1))


def per_replica_as_float(refused: Refused) -> None:
    strategy = pair()
    with refused(TypeError):
        float(_value(strategy))
    assert strategy.run(lambda x: float(np.float32(2)) * x, args=(_value(strategy),)).values[0] == 2


def per_replica_as_int(refused: Refused) -> None:
    with refused(TypeError):
        int(_value(pair()))


def per_replica_rounded(refused: Refused) -> None:
    with refused(TypeError):
        round(_value(pair()), 2)


def per_replica_formatted(refused: Refused) -> None:
    value = _value(pair())
    assert f"{value}" == str(value)
    with refused(TypeError):
        f"{value:.3f}"


def per_replica_indexed(refused: Refused) -> None:
    with refused(TypeError):
        _value(pair())[0]


def per_replica_iterated_over(refused: Refused) -> None:
    with refused(TypeError):
        list(_value(pair()))


def per_replica_measured(refused: Refused) -> None:
    with refused(TypeError):
        len(_value(pair()))


def per_replica_times_none(refused: Refused) -> None:
    with refused(TypeError):
        _value(pair()) * None


def per_replica_times_a_large_int(refused: Refused) -> None:
    value = _value(pair()) * 3
    assert [float(one) for one in value.values] == [3, 6]
    with refused(TypeError):
        value * 2**70


def per_replica_matmul_a_number(refused: Refused) -> None:
    with refused(TypeError):
        _value(pair()) @ 2


def per_replica_closed_over_in_a_function_of_jax(refused: Refused) -> None:
    strategy = pair()
    value = _value(strategy)
    with refused(ValueError):
        strategy.run(lambda: jnp.sin(value))
    assert strategy.run(lambda: value * 2).values[1] == 4


def mirrored_in_a_function_of_jax(refused: Refused) -> None:
    strategy = pair()
    value: Any = strategy.extended.reduce_to("SUM", _value(strategy), _variable(strategy))
    with refused(ValueError):
        jnp.sin(value)
    assert float(jnp.cos(value[...] - 3)) == 1


def _variable(strategy: gd.Strategy) -> gd.Variable:
    with strategy.scope():
        return gd.Variable(jnp.ones(3), name="w")


def on_read_variable_in_a_function_of_jax(refused: Refused) -> None:
    with pair().scope():
        w: Any = gd.Variable(1.0, name="w", synchronization=gd.VariableSynchronization.ON_READ)
    with refused(ValueError):
        jnp.sin(w)
    assert float(w.strategy.run(lambda: jnp.sin(w[...])).values[0]) == float(jnp.sin(1.0))


def element_of_a_variable_assigned(refused: Refused) -> None:
    w = _variable(pair())
    with refused(NotImplementedError):
        w[0] = 2.0
    w.assign(w[...].at[0].set(2.0))
    assert w.read_value().tolist() == [2, 1, 1]


def per_replica_of_a_number(refused: Refused) -> None:
    values: Any = 3
    with refused(TypeError):
        gd.PerReplica(values)


def variable_named_by_a_dtype(refused: Refused) -> None:
    name: Any = jnp.float32
    with refused(TypeError):
        gd.Variable(1.0, name)


def metric_of_none(refused: Refused) -> None:
    mean, values = gd.metrics.Mean(), None
    with refused(TypeError):
        mean.update_state(values)
    mean.update_state(jnp.ones(2), sample_weight=None)
    assert float(mean.result()) == 1


def generator_of_no_seed(refused: Refused) -> None:
    seed: Any = None
    with refused(TypeError):
        gd.random.Generator.from_seed(seed)
