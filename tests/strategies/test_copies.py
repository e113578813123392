"""Copies of models train as their originals do, and leave these as they are."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd


class Model:
    """A model as users write them: with its strategy, its variables and its step."""

    def __init__(self, strategy: gd.Strategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.w = gd.Variable(jnp.ones(2), name="w")
            self.seen = gd.metrics.Mean()
        self.own_step = gd.function(self.train)

    def train(self, x: Any) -> Any:
        def replica_fn(x: jax.Array) -> jax.Array:
            gradient = gd.get_replica_context().all_reduce("MEAN", x)
            self.w.assign_sub(gradient)
            self.seen.update_state(x.sum())
            return gradient

        return self.strategy.run(replica_fn, args=(x,))

    @gd.function
    def step(self, x: Any) -> Any:
        return self.train(x)


class Pair(NamedTuple):
    strategy: gd.Strategy
    model: Model


@gd.function
def doubled(x: jax.Array) -> jax.Array:
    return x * 2


@pytest.fixture(params=[1, 2])
def strategy(request: pytest.FixtureRequest) -> gd.Strategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"][: request.param])


def ones(strategy: gd.Strategy) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.ones(2, np.float32)
    )


@pytest.mark.long
@pytest.mark.parametrize("has_run", [False, True])
def test_a_copied_model_trains_by_itself(strategy: gd.Strategy, has_run: bool) -> None:
    model = Model(strategy)
    if has_run:
        model.step(ones(strategy))
        model.own_step(ones(strategy))
    before = model.w.read_value().tolist()
    twin = copy.deepcopy(model)
    assert twin.strategy is twin.w.strategy is strategy
    assert twin.w is not model.w
    twin.step(ones(strategy))
    twin.own_step(ones(strategy))
    assert model.w.read_value().tolist() == before
    assert twin.w.read_value().tolist() == [one - 2 for one in before]
    assert float(twin.seen.result()) == 2


@pytest.mark.parametrize("holder", [list, tuple, lambda both: {"a": both[0], "b": both[1]}])
@pytest.mark.parametrize("strategy_is_first", [False, True])
def test_the_strategy_in_a_copied_container_stays(
    strategy: gd.Strategy, holder: Any, strategy_is_first: bool
) -> None:
    both = (strategy, Model(strategy)) if strategy_is_first else (Model(strategy), strategy)
    copied = jax.tree.leaves(copy.deepcopy(holder(both)))
    (model,) = (one for one in copied if isinstance(one, Model))
    assert strategy in copied
    assert model.strategy is strategy
    assert model.step(ones(strategy)) is not None


def test_the_strategy_in_a_copied_named_tuple_stays(strategy: gd.Strategy) -> None:
    copied = copy.deepcopy(Pair(strategy, Model(strategy)))
    assert copied.strategy is copied.model.strategy is strategy


def test_a_model_of_the_default_strategy_is_copied() -> None:
    model = Model(gd.get_strategy())
    twin = copy.deepcopy(model)
    twin.step(np.ones(2, np.float32))
    assert model.w.read_value().tolist() == [1, 1]
    assert twin.w.read_value().tolist() == [0, 0]


def test_a_strategy_alone_is_copied_to_another(strategy: gd.Strategy) -> None:
    assert copy.deepcopy(strategy) is not strategy


def test_values_and_stages_are_their_own_copies(strategy: gd.Strategy) -> None:
    value = gd.MirroredStrategy(["cpu:0", "cpu:1"]).run(lambda: jnp.ones(2))
    traced = doubled.trace(jnp.ones(2))
    for one in (value, traced, traced.lower(), traced.lower().compile()):
        assert copy.copy(one) is one
        assert copy.deepcopy({"one": one})["one"] is one


def test_a_copied_function_is_compiled_anew() -> None:
    for twin in (copy.copy(doubled), copy.deepcopy(doubled)):
        assert twin is not doubled
        assert twin(jnp.ones(2)).tolist() == [2, 2]


def test_a_function_of_a_module_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(doubled)) is doubled
