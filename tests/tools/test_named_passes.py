"""`--passes`: what can be named is what the pipeline has for the target, to the options."""

from __future__ import annotations

from itertools import product
from typing import Any  # Any: options of strategies

import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.passes import Target, pipeline
from graphdist.passes.layouts.limit_gathered import LimitGathered
from graphdist.passes.logical.local_steps import LocalSteps
from graphdist.passes.manager import Pass
from graphdist.passes.pipelines import PASSES
from graphdist.program.stages import Traced
from graphdist.quoted import did_you_mean
from graphdist.tools.compilation import with_passes

TARGETS = {
    f"{platform}, in slices={in_slices}, local steps={is_local}, servers={cuts_updates}": Target(
        platform,
        bytes_per_pack=2**20,
        num_slices=2,
        shard_parameters=in_slices,
        gathered_bytes=12345,
        local_steps=LocalSteps(7) if is_local else None,
        cuts_updates=cuts_updates,
    )
    for platform in ("cpu", "gpu", "tpu")
    for in_slices, is_local, cuts_updates in product((False, True), repeat=3)
}


def traced(passes: tuple[Pass, ...]) -> Traced:
    """Return a traced step with these passes."""
    step = gd.function(lambda x: x + 1, passes=passes)
    with gd.MirroredStrategy(["cpu:0"]).scope():
        return step.trace(jnp.ones(2))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("reassociates", [False, True])
def test_the_passes_of_the_pipeline_are_named(target: Target, reassociates: bool) -> None:
    passes = pipeline(target, reassociates)
    step = traced(passes)
    # Run once more, the pipeline makes passes that are equal to the options.
    for entry in pipeline(target, reassociates):
        assert list(with_passes(step, entry.name).pipeline) == [entry]
    names = [entry.name for entry in passes]
    assert tuple(with_passes(step, ",".join(names)).pipeline) == passes
    assert with_passes(step, None) is step


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_other_passes_are_refused(target: Target) -> None:
    step = traced(pipeline(target))
    has = dict.fromkeys(entry.name for entry in pipeline(target))
    for name in PASSES.keys() - has.keys() | {"no_pass"}:
        with pytest.raises(gd.errors.ArgumentError) as refused:
            with_passes(step, f"simplify,{name}")
        assert f"there is no pass {name!r} for cpu:0" in str(refused.value)
        all_of_them = f"there are {', '.join(has)}"
        assert refused.value.hint == did_you_mean(name, has, all_of_them)
    with pytest.raises(gd.errors.ArgumentError, match="hint: did you mean simplify\\?"):
        with_passes(step, "simplfy")
    with pytest.raises(gd.errors.ArgumentError, match=f"hint: {all_of_them}$"):
        with_passes(step, "no_pass")


def test_options_are_those_of_the_target() -> None:
    for most in (100, 2**20):
        step = traced(pipeline(Target("gpu", gathered_bytes=most)))
        (entry,) = with_passes(step, "limit_gathered").pipeline
        assert entry.run == LimitGathered(most)


@pytest.mark.parametrize("options", [{"sync_every": 3}, {"shard_parameters": True}])
def test_a_strategy_compiles_with_the_pipeline_of_its_target(options: dict[str, Any]) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], **options)
    with strategy.scope():
        step = gd.function(lambda x: x + 1).trace(jnp.ones(2))
    assert tuple(step.pipeline) == pipeline(strategy.target)
