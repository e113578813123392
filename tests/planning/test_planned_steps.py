"""Steps with plans on devices that are here: what they are without, but for XLA's rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.ir.analyses import walk
from graphdist.ir.loops import Scan
from graphdist.ir.ops import SCAN
from graphdist.passes.logical.choose_residuals import ChooseResiduals
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.manager import run_passes
from graphdist.passes.order.unroll_loops import UnrollLoops
from graphdist.passes.pipelines import Target, pipeline
from graphdist.tools.compilation import read_plan
from tests.planning.layered_steps import LAYERS, make_step

DEVICES = ["cpu:0", "cpu:1"]


def trained(wrapper: Callable[[Any], Any], shard: bool, **options: Any) -> list[np.ndarray]:
    """Return the losses of five steps, and the weights behind them."""
    strategy = gd.MirroredStrategy(DEVICES, shard_parameters=shard)
    step, _, weights = make_step(strategy, wrapper=wrapper, **options)
    x = np.linspace(-1, 1, 2 * 4 * 8, dtype=np.float32).reshape(2, 4, 8)
    batch = strategy.experimental_distribute_values_from_function(
        lambda context: x[context.replica_id_in_sync_group]
    )
    losses = [np.asarray(strategy.experimental_local_results(step(batch))[0]) for _ in range(5)]
    return [*losses, *map(np.asarray, weights)]


def policies(wrapper: Callable[[Any], Any]) -> list[gd.Plan]:
    """Return plans that keep or recompute each value alone, all of them, and every second."""
    strategy = gd.MirroredStrategy(DEVICES)
    step, x, _ = make_step(strategy, wrapper=wrapper)
    with strategy.scope():
        names = list(step.trace(x).lower().plan.residuals)
    device, again = gd.Keep.DEVICE, gd.Keep.RECOMPUTE
    free = [name for name in names if name.text != "carry"]
    plans = [{name: keep} for name in free for keep in (device, again)]
    plans += [dict.fromkeys(free, keep) for keep in (device, again)]
    plans += [dict.fromkeys(free[::2], device)]
    return [gd.Plan(plan) for plan in plans]


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("wrapper", [jax.checkpoint, lambda f: f], ids=["recomputed", "kept"])
def test_a_plan_changes_no_value(wrapper: Callable[[Any], Any], shard: bool) -> None:
    expected = trained(wrapper, shard)
    plans = policies(wrapper)
    assert len(plans) > 6
    for plan in plans[-5:]:
        for given, array in zip(trained(wrapper, shard, plan=plan), expected, strict=True):
            np.testing.assert_allclose(given, array, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("wrapper", [jax.checkpoint, lambda f: f], ids=["recomputed", "kept"])
def test_layers_without_a_loop_change_no_value(wrapper: Callable[[Any], Any], shard: bool) -> None:
    expected = trained(wrapper, shard)
    for plan in policies(wrapper)[-3:]:
        plan = gd.Plan.from_json(replace(plan, unrolled=True).to_json())
        assert plan.unrolled
        for given, array in zip(trained(wrapper, shard, plan=plan), expected, strict=True):
            np.testing.assert_allclose(given, array, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_a_plan_runs_layers_without_a_loop(platform: str) -> None:
    """What the backward pass computes again is behind a barrier, so that no value is kept."""
    strategy = gd.MirroredStrategy(DEVICES, shard_parameters=True)
    plan = gd.Plan(unrolled=True)
    step, x, _ = make_step(strategy, plan=plan)
    with strategy.scope():
        traced = step.trace(x)
        assert traced.lower().plan.unrolled
    target = Target(platform, shard_parameters=True, plan=plan)
    lowered = run_passes(traced.graph, pipeline(target))[-1].graph
    scans = [Scan(node) for node in walk(lowered) if node.op is SCAN]
    assert [(scan.length, scan.is_unrolled) for scan in scans] == [(LAYERS, True)] * 2


def test_loops_over_time_stay_loops() -> None:
    """Their weights are the same in each iteration."""
    strategy = gd.MirroredStrategy(DEVICES)
    with strategy.scope():
        weights: Any = gd.Variable(np.ones((64, 64), np.float32))

    @gd.function(plan=gd.Plan(unrolled=True))
    def step(x: Any) -> Any:
        def loss(weights: Any, x: Any) -> Any:
            return jax.lax.scan(lambda h, x: (jnp.tanh(h @ weights + x), None), x[0], x)[0].sum()

        return strategy.run(lambda x: jax.grad(loss)(weights[...], x), args=(x,))

    with strategy.scope():
        graph = step.trace(gd.PerReplicaSpec((16, 4, 64), jnp.float32)).graph
    assert UnrollLoops.of_plan().lengths(infer_layouts(graph)) == []


def test_a_name_that_no_value_has_is_refused_with_the_nearest() -> None:
    plan = gd.Plan.from_json('{"residuals": {"hiden": "device"}}')
    with pytest.raises(gd.PlanError, match="the plan names hiden") as caught:
        trained(jax.checkpoint, False, plan=plan)
    assert "did you mean hidden" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "the plan is no JSON"),
        ("[]", r"the plan is \[\], not an object"),
        ('{"residual": {}}', "the plan has a field 'residual'"),
        ('{"residuals": []}', r"residuals is \[\]"),
        (
            '{"residuals": {"a": "disk"}}',
            "the plan says 'disk' for 'a': it may say device, recompute",
        ),
        ('{"residuals": {"a": []}}', r"the plan says \[\] for 'a'"),
        ('{"graph": 1}', "graph is 1, not a string"),
        ('{"unrolled": 16}', "unrolled is 16, not true or false"),
    ],
)
def test_a_text_that_is_no_plan(text: str, what: str) -> None:
    with pytest.raises(gd.PlanError, match=what):
        gd.Plan.from_json(text)


def test_a_carry_cannot_be_recomputed() -> None:
    plan = gd.Plan.from_json('{"residuals": {"carry": "recompute"}}')
    with pytest.raises(gd.PlanError, match="carry is computed again, which it cannot be"):
        trained(jax.checkpoint, False, plan=plan)


def test_a_plan_is_for_the_passes_of_the_pipeline() -> None:
    plan = gd.Plan.from_json('{"residuals": {"hidden": "device"}}')
    with pytest.raises(gd.ArgumentError, match="passes of its own"):
        trained(jax.checkpoint, False, plan=plan, passes=pipeline("cpu"))
    with pytest.raises(gd.ArgumentTypeError, match="plan is of type str, not a"):
        gd.function(plan="plan.json")(abs)  # type: ignore[call-overload]


def test_a_plan_for_a_loop_over_a_dataset_is_refused() -> None:
    strategy = gd.MirroredStrategy(DEVICES)
    dataset = strategy.experimental_distribute_dataset([np.ones((4, 2), np.float32)] * 3)

    @gd.function(plan=gd.Plan.from_json('{"residuals": {"hidden": "device"}}'))
    def train(dataset: Any) -> Any:
        total = 0.0
        for batch in dataset:
            total += strategy.reduce(
                "SUM", strategy.run(lambda x: x.sum(), args=(batch,)), axis=None
            )
        return total

    with pytest.raises(gd.ArgumentError, match="a plan is for one step"):
        train(dataset)


def test_what_is_chosen_without_a_plan_is_listed() -> None:
    strategy = gd.MirroredStrategy(DEVICES)
    step, x, _ = make_step(strategy)
    with strategy.scope():
        lowered = step.trace(x).lower()
    kept = {str(n) for n, keep in lowered.plan.residuals.items() if keep is gd.Keep.DEVICE}
    assert kept == {"carry", "loss+1:mul"}  # the latter is of the mean of squares
    assert {"inner", "hidden"} < set(map(str, lowered.plan.residuals))
    assert ChooseResiduals(lowered.plan.residuals).residuals == lowered.plan.residuals


def test_a_file_of_a_step_has_its_plan(tmp_path: Path) -> None:
    strategy = gd.MirroredStrategy(DEVICES, shard_parameters=True)
    step, x, _ = make_step(strategy)
    with strategy.scope():
        whole = step.trace(x).lower().plan
        planned, x, _ = make_step(strategy, plan=gd.Plan(whole.residuals, whole.graph))
        gd.aot.save(tmp_path / "step.gdx", planned.trace(x).lower().compile())
    assert read_plan(str(tmp_path / "step.gdx")) == whole


def test_a_plan_holds_while_variables_are_stored_otherwise() -> None:
    """After the first call small variables share a buffer, and the next trace says so."""
    strategy = gd.MirroredStrategy(DEVICES)
    step, x, _ = make_step(strategy)
    with strategy.scope():
        identity = step.trace(x).lower().plan.graph
        batch = strategy.experimental_distribute_values_from_function(
            lambda _: np.ones((4, 8), np.float32)
        )
        step(batch)
        assert step.trace(x).lower().plan.graph == identity
