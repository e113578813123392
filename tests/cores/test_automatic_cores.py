"""`cores="auto"`: what is chosen, when, and that no value changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.ir.parser import parse
from graphdist.ir.printer import opaques
from graphdist.tracing.jax_ops import resolve
from tests.cores.test_equal_results import check_close
from tests.cores.training import PROGRAMS, step_of, strategy_on, trained

MEGATRON = {"q": 2, "k": 2, "v": 2, "o": 1, "gate": 2, "up": 2, "down": 1, "embedding": 0}


@pytest.mark.parametrize("mesh", [(1, 2), (2, 2), (1, 4)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_value_changes(name: str, mesh: tuple[int, int]) -> None:
    replicas, cores = mesh
    program = replace(PROGRAMS[name], cores="auto")
    expected = trained(PROGRAMS[name], strategy_on(replicas, 1))
    check_close(trained(program, strategy_on(replicas, cores)), expected)


def test_a_decoder_is_split_as_people_do() -> None:
    step, batch, params = step_of(replace(PROGRAMS["decoder"], cores="auto"), strategy_on(2, 2))
    traced = step.trace(batch)
    lowered = traced.lower()
    found = lowered.plan.cores
    assert {name: along for name, along in found.items() if name in params} == MEGATRON
    by_hand, same, _ = step_of(PROGRAMS["decoder"], strategy_on(2, 2))
    sent = [sum(each.bytes_sent * each.times for each in lowered.collectives)]
    sent += [sum(e.bytes_sent * e.times for e in by_hand.trace(same).lower().collectives)]
    assert sent[0] <= sent[1]
    assert params["up"].stored.on_devices.layout.core is None
    step(batch)
    assert params["up"].stored.on_devices.layout.core == 2
    text = str(traced.graph)
    assert text.count("chooses_core=true") == len(params)
    assert str(parse(text, opaques(traced.graph), resolve)) == text


class Perceptron:
    """Two matrices of a model that is evaluated, trained, and evaluated."""

    def __init__(self, **cores: Any) -> None:
        self.strategy = strategy_on(1, 2)
        rows = np.random.default_rng(0).normal(size=(16, 8)).astype("f")
        with self.strategy.scope():
            self.params = {
                "up": gd.Variable(jnp.ones((8, 64)) / 8, name="up", cores=cores.get("up", "auto")),
                "down": gd.Variable(jnp.ones((64, 8)) / 64, name="down", cores="auto"),
            }
        self.rows = self.strategy.experimental_distribute_values_from_function(lambda _: rows)

    def loss(self, p: Any, rows: Any) -> jax.Array:
        return jnp.mean((jax.nn.relu(rows @ p["up"]) @ p["down"] - rows) ** 2)

    def evaluated(self) -> gd.Function:
        return gd.function(
            lambda rows: self.strategy.run(
                lambda rows: self.loss(gd.read(self.params), rows), args=(rows,)
            )
        )

    def trained(self) -> gd.Function:
        def replica_fn(rows: Any) -> None:
            old = gd.read(self.params)
            grads = jax.grad(self.loss)(old, rows)
            gd.assign(self.params, optax.apply_updates(old, jax.tree.map(lambda g: -g, grads)))

        return gd.function(lambda rows: self.strategy.run(replica_fn, args=(rows,)))

    def stored(self) -> list[int | None]:
        return [each.stored.on_devices.layout.core for each in self.params.values()]


def test_an_evaluation_decides_nothing_and_follows() -> None:
    model = Perceptron()
    evaluate, train = model.evaluated(), model.trained()
    before = float(evaluate(model.rows))
    assert model.stored() == [None, None]
    train(model.rows)
    assert model.stored() == [1, 0]
    after = float(evaluate(model.rows))
    assert after < before
    assert model.stored() == [1, 0]
    kinds = [each.kind for each in evaluate.trace(model.rows).lower().collectives]
    assert kinds == ["all_reduce_over_cores"]


def initialize(params: Any) -> None:
    key = jax.random.key(0)
    gd.assign(params, {name: jax.random.normal(key, p.shape) for name, p in params.items()})


def orthogonal(params: Any) -> None:
    square = jax.random.orthogonal(jax.random.key(0), 64)
    gd.assign(params, {name: square[: p.shape[0], : p.shape[1]] for name, p in params.items()})


def scale(params: Any) -> None:
    gd.assign(params, jax.tree.map(lambda p: p * 0.5, gd.read(params)))


@pytest.mark.parametrize("first", [initialize, orthogonal, scale])
def test_a_function_that_only_initializes_or_scales_decides_nothing(
    first: Callable[[Any], None],
) -> None:
    model = Perceptron()
    with model.strategy.scope():
        gd.function(lambda: first(model.params))()
    assert model.stored() == [None, None]
    model.trained()(model.rows)
    assert model.stored() == [1, 0]


def test_what_is_said_of_one_variable_holds_for_what_is_chosen() -> None:
    model = Perceptron(up=(None, "sharded"))
    model.trained()(model.rows)
    assert model.stored() == [1, 0]


def test_a_plan_says_more_than_auto() -> None:
    model = Perceptron()
    plan = gd.Plan(cores={"up": None, "down": None})
    lowered = model.trained().trace(model.rows).planned(plan).lower()
    assert [each.core for each in lowered.graph.variables] == [None, None]


def test_slots_follow_a_plan_that_comes_after_the_first_step() -> None:
    model = Perceptron(up=(None, "sharded"))
    with model.strategy.scope():
        slots = {name: gd.Variable(jnp.zeros(p.shape)) for name, p in model.params.items()}

    def replica_fn(rows: Any) -> None:
        old, before = gd.read(model.params), gd.read(slots)
        grads = jax.grad(model.loss)(old, rows)
        after = jax.tree.map(lambda m, g: 0.9 * m + g, before, grads)
        gd.assign(slots, after)
        gd.assign(model.params, jax.tree.map(lambda p, m: p - 0.1 * m, old, after))

    def train(rows: Any) -> Any:
        return model.strategy.run(replica_fn, args=(rows,))

    gd.function(train)(model.rows)
    assert [each.stored.on_devices.layout.core for each in slots.values()] == [1, 0]
    planned = gd.function(train, plan=gd.Plan(cores={"up": 0, "down": 1}))
    planned(model.rows)
    assert model.stored() == [0, 1]
    assert [each.stored.on_devices.layout.core for each in slots.values()] == [0, 1]


def test_nothing_is_chosen_for_one_core_or_for_values_of_replicas() -> None:
    with strategy_on(2, 1).scope():
        assert not gd.Variable(jnp.ones(4), cores="auto").chooses_core
    with strategy_on(2, 2).scope():
        assert not gd.Variable(
            jnp.ones(4), cores="auto", synchronization=gd.VariableSynchronization.ON_READ
        ).chooses_core
        assert gd.variables({"w": jnp.ones(4)}, cores={"*": "auto"})["w"].chooses_core
        with pytest.raises(gd.ArgumentError, match="for a shape of 1 dimensions"):
            gd.Variable(jnp.ones(4), cores="automatic")
