"""Copies and pickles of what belongs to the devices of one process."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.errors.programs import pair, per_replica
from tests.errors.refusal import Refused


class _Model:
    """What holds a strategy and a variable of it."""

    def __init__(self, strategy: gd.Strategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.w = gd.Variable(1.0, name="w")

    def doubled(self) -> jax.Array:
        return self.w * 2


def strategy_pickled(refused: Refused) -> None:
    with refused(TypeError):
        pickle.dumps(pair())


def model_pickled(refused: Refused) -> None:
    with refused(TypeError):
        pickle.dumps(_Model(pair()))


def per_replica_pickled(refused: Refused) -> None:
    strategy = pair()
    value = per_replica(strategy, np.float32(1))
    with refused(TypeError):
        pickle.dumps({"x": value})
    values = [np.asarray(one) for one in strategy.experimental_local_results(value)]
    assert pickle.loads(pickle.dumps(values)) == [1, 2]


def function_pickled(refused: Refused) -> None:
    @gd.function
    def step(x: jax.Array) -> jax.Array:
        return x * 2

    with refused(TypeError):
        pickle.dumps(step)


def dataset_pickled(refused: Refused) -> None:
    distributed = pair().experimental_distribute_dataset([np.ones(4)])
    with refused(TypeError):
        pickle.dumps(distributed)


def iterator_copied(refused: Refused) -> None:
    iterator = iter(pair().experimental_distribute_dataset([np.ones(4)]))
    with refused(TypeError):
        copy.deepcopy(iterator)


def stage_pickled(refused: Refused) -> None:
    lowered = gd.function(lambda x: x * 2, name="double").trace(jnp.ones(2)).lower()
    with refused(TypeError):
        pickle.dumps(lowered)


def twins_in_one_function(refused: Refused) -> None:
    strategy = pair()
    model, twin = _Model(strategy), copy.deepcopy(strategy)

    @gd.function
    def step() -> Any:
        return twin.run(lambda: jnp.ones(()) * 2), model.w * 2

    with refused(RuntimeError):
        step()


def variable_of_a_twin(refused: Refused) -> None:
    strategy = pair()
    twin = copy.deepcopy(strategy)
    w = _Model(strategy).w
    with twin.scope(), refused(RuntimeError):
        w.assign(2.0)


def variable_of_a_twin_inside(refused: Refused) -> None:
    strategy = pair()
    twin, step = copy.deepcopy(strategy), gd.function(_Model(strategy).doubled)
    with twin.scope(), refused(RuntimeError):
        step()
    assert float(step()) == 2
