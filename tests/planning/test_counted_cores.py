"""What the cores of a replica shard: the axes of variables, plans that say it, and the search."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any  # Any: pytrees

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.passes.cores.variable_axes import variable_axes
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.planning.counted_cores import best_cores, count_cores
from tests.cores.test_strategies import shards_of as shapes_of_shards
from tests.cores.training import PROGRAMS, step_of, strategy_on

MLP = replace(PROGRAMS["mlp"], cores={})


def test_the_axes_of_a_decoder_are_its_hidden_units_heads_vocabulary_and_width() -> None:
    step, batch, _ = step_of(PROGRAMS["decoder"], strategy_on(1, 2))
    axes = variable_axes(infer_layouts(step.trace(batch).graph), 2)
    of_parameters = [
        {
            name: along
            for name, along in axis.dimensions.items()
            if name in PROGRAMS["decoder"].shapes
        }
        for axis in axes
    ]
    assert {"gate": 2, "up": 2, "down": 1} in of_parameters
    assert {"q": 2, "k": 2, "v": 2, "o": 1} in of_parameters
    assert {"embedding": 0} in of_parameters
    width = dict.fromkeys(("q", "k", "v", "gate", "up", "norm", "embedding"), 1)
    assert {**width, "o": 2, "down": 2} in of_parameters
    assert len(axes) == 4, "the layers are no axis"
    hidden = axes[of_parameters.index({"gate": 2, "up": 2, "down": 1})].dimensions
    assert {along for name, along in hidden.items() if name.endswith("down")} == {1}
    assert len(hidden) == 9, "adam has two values for each parameter"


def losses(step: Any, batch: Any) -> list[float]:
    return [float(step(batch)) for _ in range(3)]


def test_a_plan_shards_variables_over_cores() -> None:
    expected = losses(*step_of(MLP, strategy_on(1, 1))[:2])
    step, batch, params = step_of(MLP, strategy_on(1, 2))
    plan = gd.Plan(cores={"up": 1, "up_bias": 0, "down": 0})
    assert gd.Plan.from_json(plan.to_json()) == plan
    planned = gd.function(step.fn, plan=plan)
    lowered = planned.trace(batch).lower()
    assert lowered.plan.cores.items() >= plan.cores.items()
    assert "all_reduce_over_cores" in {each.kind for each in lowered.collectives}
    np.testing.assert_allclose(losses(planned, batch), expected, rtol=1e-5)
    shapes = {name: shapes_of_shards(value) for name, value in params.items()}
    assert shapes == {"up": {(8, 16)}, "up_bias": {(16,)}, "down": {(16, 8)}}


def test_a_plan_may_say_full() -> None:
    step, batch, _ = step_of(PROGRAMS["mlp"], strategy_on(1, 2))
    own = step.trace(batch).lower()
    assert {"up", "down"} <= {name for name, along in own.plan.cores.items() if along is not None}
    full = gd.function(step.fn, plan=gd.Plan(cores={"up": None, "down": None}))
    assert not full.trace(batch).lower().collectives
    partly = gd.function(step.fn, plan=gd.Plan(cores={"up": None})).trace(batch).lower()
    assert partly.plan.cores["up"] is None, "what else is sharded does not count"
    assert partly.plan.cores["down"] == 0


def test_a_plan_that_says_full_changes_no_number() -> None:
    expected = losses(*step_of(MLP, strategy_on(1, 1))[:2])
    step, batch, params = step_of(PROGRAMS["mlp"], strategy_on(1, 2))
    partly = gd.function(step.fn, plan=gd.Plan(cores={"up": None}))
    np.testing.assert_allclose(losses(partly, batch), expected, rtol=1e-5)
    assert shapes_of_shards(params["up"]) == {(8, 32)}


@pytest.mark.parametrize(
    ("cores", "says"),
    [
        ({"upp": 1}, "no such variable"),
        ({"up": 2}, "shards dimension 2 of up"),
        ({"up": -1}, "may say a dimension, from 0 on, or null"),
        ({"up": True}, "may say a dimension, from 0 on, or null"),
        (["up"], "not an object of variables' names"),
    ],
)
def test_plans_that_do_not_fit(cores: Any, says: str) -> None:
    step, batch, _ = step_of(MLP, strategy_on(1, 2))
    with pytest.raises(gd.PlanError, match=says):
        gd.function(step.fn, plan=gd.Plan.from_json(json.dumps({"cores": cores}))).trace(
            batch
        ).lower()


def test_a_wrong_name_is_refused_on_one_core_too() -> None:
    step, batch, _ = step_of(MLP, strategy_on(2, 1))
    cores: Any = {"upp": np.int64(1)}  # an index of NumPy is one, too
    with pytest.raises(gd.PlanError, match="no such variable"):
        gd.function(step.fn, plan=gd.Plan(cores=cores)).trace(batch).lower()


def test_cores_that_do_not_divide_a_dimension() -> None:
    narrow = replace(MLP, shapes={"up": (8, 4), "up_bias": (4,), "down": (4, 8)})
    step, batch, _ = step_of(narrow, strategy_on(1, 8))
    traced = gd.function(step.fn, plan=gd.Plan(cores={"up": 1})).trace(batch)
    with pytest.raises(gd.PlanError, match="which has 4 elements: 8 cores do not divide them"):
        traced.lower()


def wide_step(width: int, hidden: int, rows: int) -> tuple[Any, Any]:
    """Return a step of a wide MLP for eight chips that are not here, four to a replica."""
    strategy = gd.TPUStrategy(topology="v5e:2x4", cores_per_replica=4)
    shapes = {"up": (width, hidden), "down": (hidden, width)}
    with strategy.scope():
        params = gd.variables({n: jax.ShapeDtypeStruct(s, jnp.bfloat16) for n, s in shapes.items()})

    @gd.function
    def step(x: jax.Array) -> Any:
        def replica_fn(x: jax.Array) -> jax.Array:
            def loss_of(p: Any) -> jax.Array:
                return jnp.sum(jax.nn.relu(x @ p["up"]) @ p["down"]).astype(jnp.float32)

            old = gd.read(params)
            loss, grads = jax.value_and_grad(loss_of)(old)
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            gd.assign(params, jax.tree.map(lambda value, change: value - change, old, grads))
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    return step, gd.PerReplicaSpec((rows, width), jnp.bfloat16, strategy=strategy)


@pytest.mark.needs("tpu")
def test_the_search_shards_the_axis_that_costs_least() -> None:
    step, x = wide_step(4096, 16384, 8192)
    choices = count_cores(step.trace(x), lambda text: None)
    assert choices[0].axes is None
    assert [len(each.axes or ()) for each in choices[:2]] == [0, 0]
    best = best_cores(choices, 2**40)
    assert dict(best.traced.plan.cores) == {"up": 1, "down": 0}
    assert best.seconds < 0.6 * choices[0].seconds
    least = best_cores(choices, 1)
    assert least.report.needed_bytes == min(each.report.needed_bytes for each in choices)


@pytest.mark.needs("tpu")
def test_a_plan_of_the_search_has_cores() -> None:
    step, x = wide_step(4096, 16384, 8192)
    found = gd.plan(step, x, compilations=0)
    assert found.plan is not None
    assert dict(found.plan.cores) == {"up": 1, "down": 0}
    shown = " ".join(str(found).split())
    assert "what the cores of a replica shard" in shown
    assert "as the program says" in shown
    assert "down[0] (2 variables)" in shown or "up[1] (2 variables)" in shown
    assert shown.endswith("the plan changes nothing but what the cores shard")
    listed = found.to_json()["cores"]
    assert len(listed) == len(found.search.core_choices)
    assert (
        min(each["seconds"] for each in listed)
        == found.search.core_choices[
            [each["plan"].get("cores") for each in listed].index({"up": 1, "down": 0})
        ].seconds
    )
    planned = gd.function(step.fn, plan=gd.Plan.from_json(found.plan.to_json()))
    assert found.best is not None
    assert planned.trace(x).lower().estimate().needed_bytes == found.best.peak_bytes
