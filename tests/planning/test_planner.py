"""The search for a plan: within which memory it finds which, and what it says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.ir.value_names import ValueName
from graphdist.planning import planner
from graphdist.planning.found_plan import FoundPlan
from graphdist.planning.planner import PlanSearch
from graphdist.planning.residual_choice import ResidualProgram
from graphdist.program.stages import Lowered, Traced
from graphdist.report.amounts import count_text
from graphdist.report.step_report import Report, report_of_refused
from graphdist.runtime.compilation import DeviceMemoryError
from graphdist.runtime.targets.chips import HOST_BYTES, Figure
from tests.planning.layered_steps import LAYERS, make_step, run_written_out

pytestmark = pytest.mark.needs("tpu")
WIDTH, ROWS = 512, 4096


@pytest.fixture(scope="module")
def traced() -> Traced:
    strategy = gd.TPUStrategy(topology="v5e:2x2", shard_parameters=True)
    step, x, _ = make_step(strategy, WIDTH, ROWS)
    with strategy.scope():
        found: Traced = step.trace(x)
    return found


def run_of_many_sizes(_: Any, x: jax.Array, weights: Any) -> jax.Array:
    """Run layers whose values for the backward pass differ in size, so any peak is possible."""

    @jax.checkpoint
    def layer(x: jax.Array, both: Any) -> tuple[jax.Array, None]:
        up, down = both
        for part in range(1, 5):
            width = part * up.shape[1] // 4
            x = x + jnp.tanh(x @ up[:, :width]) @ down[:, :width].T
        return x, None

    return jax.lax.scan(layer, x, weights)[0]


def search(traced: Traced, memory_bytes: int, compilations: int = 0) -> PlanSearch:
    found = PlanSearch(traced, memory_bytes, compilations)
    found.run()
    return found


def test_more_memory_takes_no_more_time_and_every_plan_fits(traced: Traced) -> None:
    plans = search(traced, 2**34)
    low, high = plans.frontier[0].peak_bytes, plans.frontier[-1].peak_bytes
    assert low < high
    found = [search(traced, low + (high - low) * part // 10) for part in range(11)]
    best = [each.best for each in found]
    seconds = [each.seconds for each in best if each is not None]
    assert len(seconds) == len(found)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] < seconds[0]
    for each, plan in zip(found, best, strict=True):
        assert plan is not None
        assert plan.peak_bytes <= each.memory_bytes


def test_all_memory_recomputes_no_product(traced: Traced) -> None:
    plan = gd.plan(traced, compilations=0).plan
    assert plan is not None
    own, planned = traced.lower(), traced.planned(plan).lower()

    def products(lowered: Lowered) -> int:
        return sum(lowered.estimate().flops.values())

    once = 2 * ROWS * WIDTH * 4 * WIDTH * LAYERS
    assert products(own) - products(planned) >= 0.9 * once


def test_the_plan_of_a_search_is_what_the_function_takes(traced: Traced) -> None:
    found = gd.plan(traced, compilations=0)
    assert found.plan is not None
    strategy = gd.TPUStrategy(topology="v5e:2x2", shard_parameters=True)
    step, x, _ = make_step(strategy, WIDTH, ROWS, plan=gd.Plan.from_json(found.plan.to_json()))
    with strategy.scope():
        lowered = step.trace(x).lower()
    assert found.best is not None
    assert lowered.estimate().needed_bytes == found.best.peak_bytes
    for name, _ in found.search.values:
        keep = found.plan.residuals.get(name, gd.Keep.RECOMPUTE)
        assert lowered.plan.residuals[name] is keep
    other, x, _ = make_step(strategy, WIDTH, ROWS // 2, plan=found.plan)
    with strategy.scope(), pytest.raises(gd.PlanError, match="made for another graph"):
        other.trace(x).lower()


def test_what_does_not_fit_is_said(traced: Traced) -> None:
    found = FoundPlan(search(traced, 2**20))
    assert not found.fits
    assert found.plan is None
    assert "NO PLAN FITS 1.00 MiB: with the fewest residuals the step needs" in str(found)
    assert json.loads(json.dumps(found.to_json()))["plan"] is None


def test_a_plan_fits_if_the_compiler_says_so(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler needs a fifth more than the graph says: the second choice takes less."""
    counted = Lowered.estimate

    def compiled(lowered: Lowered, options: Any = None) -> Report:
        report = counted(lowered)
        return replace(report, needed_bytes=report.needed_bytes * 6 // 5, is_compiled=True)

    monkeypatch.setattr(Lowered, "report", compiled)
    most = search(traced, 2**34)
    memory = most.frontier[-1].peak_bytes * 11 // 10
    found = search(traced, memory, compilations=4)
    assert found.best is not None
    assert found.best.compiled is not None
    assert found.best.peak_bytes <= memory
    done = [each for each in found.counted.values() if each.compiled is not None]
    assert 2 <= len(done) <= 4
    text = str(FoundPlan(found))
    assert "FITS, compiled" in text
    assert f"{len(found.counted)} choices counted, {len(done)} compiled" in text


@pytest.mark.parametrize("slower", [1, 2])
def test_the_program_s_own_choice_is_compiled_too(
    traced: Traced, monkeypatch: pytest.MonkeyPatch, slower: int
) -> None:
    """No plan is returned that the compiler makes slower than what the program does itself."""

    def compiled(lowered: Lowered, options: Any = None) -> Report:
        report = lowered.estimate()
        assert report.timeline is not None
        seconds = report.timeline.seconds * (slower if lowered.plan != own else 1)
        timeline = replace(report.timeline, seconds=seconds)
        return replace(report, timeline=timeline, is_compiled=True)

    own = traced.lower().plan
    monkeypatch.setattr(Lowered, "report", compiled)
    found = search(traced, 2**34, compilations=4)
    assert found.own_now.compiled is not None
    assert found.best is not None
    assert (found.best is found.own_now) is (slower > 1)
    everything = max(len(each.plan.residuals) for each in found.counted.values())
    compiled_plans = [each.plan for each in found.counted.values() if each.compiled is not None]
    assert everything in [len(plan.residuals) for plan in compiled_plans]


@pytest.mark.parametrize("share", [0.93, 0.6])
def test_a_plan_leaves_room_where_the_compiler_repeats_values(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """The compiler fits a step by computing values again, which takes longer than the plan says.

    Four compilations are enough, whether it lacks little memory or much.
    """
    strategy = gd.TPUStrategy(topology="v5e:2x2", shard_parameters=True)
    step, x, _ = make_step(strategy, WIDTH, ROWS, run=run_of_many_sizes)
    with strategy.scope():
        traced = step.trace(x)
    monkeypatch.setattr(planner, "_TRIES_TO_IMPROVE", 4)
    counted = search(traced, 2**34)
    assert counted.best is not None
    memory = counted.best.peak_bytes
    room = int(share * memory)

    def compiled(lowered: Lowered, options: Any = None) -> Report:
        report = lowered.estimate()
        timeline = report.timeline
        assert timeline is not None
        if report.needed_bytes > room:
            again = timeline.seconds / 2
            timeline = replace(timeline, seconds=timeline.seconds + again, repeated=again)
        return replace(report, timeline=timeline, is_compiled=True)

    monkeypatch.setattr(Lowered, "report", compiled)
    found = search(traced, memory, compilations=4)
    assert found.best is not None
    assert found.best.compiled is not None
    assert found.best is not found.own_now
    assert found.best.peak_bytes <= room
    assert any(
        each.compiled.timeline.repeated
        for each in found.counted.values()
        if each.compiled is not None and each.compiled.timeline is not None
    )


def test_choices_are_improved_until_a_compiled_one_repeats_nothing(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest choice by its graph fits, but is slow: the next one is improved, too."""
    small, counted = ValueName("layer+3:transpose"), Lowered.estimate

    def estimate(lowered: Lowered) -> Report:
        report, kept = counted(lowered), lowered.traced.plan.residuals
        assert report.timeline is not None
        seconds = 10.0 - 4 * (report.needed_bytes > 2**28) - (kept.get(small) is gd.Keep.DEVICE)
        return replace(report, timeline=replace(report.timeline, seconds=seconds))

    def compiled(lowered: Lowered, options: Any = None) -> Report:
        report = lowered.estimate()
        assert report.timeline is not None
        timeline = report.timeline
        if report.needed_bytes > 2**28:
            timeline = replace(timeline, seconds=20.0, repeated=10.0)
        return replace(report, timeline=timeline, is_compiled=True)

    monkeypatch.setattr(ResidualProgram, "solve", lambda program, most_bytes: None)
    monkeypatch.setattr(Lowered, "estimate", estimate)
    monkeypatch.setattr(Lowered, "report", compiled)
    best = search(traced, 2**30, compilations=8).best
    assert best is not None
    assert best.compiled is not None
    assert best.seconds == 9
    assert best.plan.residuals[small] is gd.Keep.DEVICE


@pytest.mark.parametrize("pace", [0.9, 1.2])
def test_the_best_plan_is_compiled_without_loops_too(
    traced: Traced, monkeypatch: pytest.MonkeyPatch, pace: float
) -> None:
    """Without loops it needs more memory, and takes its place if it is faster and fits."""
    compiled = list[bool]()

    def report(lowered: Lowered, options: Any = None) -> Report:
        report, is_unrolled = lowered.estimate(), lowered.traced.plan.unrolled
        compiled.append(is_unrolled)
        assert report.timeline is not None
        seconds = report.timeline.seconds * (pace if is_unrolled else 1.1)
        timeline = replace(report.timeline, seconds=seconds)
        return replace(report, timeline=timeline, is_compiled=True)

    monkeypatch.setattr(Lowered, "report", report)
    found = search(traced, 2**34, compilations=4)
    assert found.best is not None
    assert compiled[:2] == [False, True]
    assert found.best.plan.unrolled == (pace < 1)
    assert ("without a loop" in str(FoundPlan(found))) == (pace < 1)
    compiled.clear()
    monkeypatch.setattr(planner, "MOST_UNROLLED", LAYERS - 1)
    assert search(traced, 2**34, compilations=4).best is not None
    assert not any(compiled)


def test_a_plan_on_which_the_compiler_fails_is_left_out(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[gd.Plan] = []

    def compiled(lowered: Lowered, options: Any = None) -> Report:
        if not first:
            first.append(lowered.traced.plan)
        if lowered.traced.plan == first[0]:
            raise jax.errors.JaxRuntimeError("INTERNAL: Failed to allocate\nmore of it")
        return replace(lowered.estimate(), is_compiled=True)

    monkeypatch.setattr(Lowered, "report", compiled)
    found = search(traced, 2**34, compilations=3)
    assert found.best is not None
    assert found.best.compiled is not None
    assert found.best.plan != first[0]
    (failed,) = [each for each in found.counted.values() if each.failure]
    assert failed.plan == first[0]
    assert failed.failure == "INTERNAL: Failed to allocate"
    assert "XLA fails" in str(FoundPlan(found))


def test_a_plan_that_the_compiler_refuses_without_sizes_takes_too_much(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = search(traced, 2**34).best
    assert counted is not None
    memory = counted.peak_bytes
    refused: list[Report] = []

    def compiled(lowered: Lowered, options: Any = None) -> Report:
        report = lowered.estimate()
        if refused and report.needed_bytes < refused[0].needed_bytes:
            return replace(report, is_compiled=True)
        error = DeviceMemoryError("the program needs more memory than a device has")
        error.needed_bytes = error.available_bytes = 0
        refused.append(report_of_refused(lowered.graph, lowered.traced.devices, error))
        assert refused[-1].needed_bytes == report.needed_bytes
        return refused[-1]

    monkeypatch.setattr(Lowered, "report", compiled)
    found = search(traced, memory, compilations=4)
    assert found.best is not None
    assert found.best.compiled is not None
    assert found.best.peak_bytes < refused[0].needed_bytes
    assert "does not fit" in str(FoundPlan(found))
    done = [each.compiled for each in found.counted.values() if each.compiled is not None]
    assert all(report.needed_bytes <= memory for report in done)


def test_a_step_on_which_the_compiler_fails_has_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(lowered: Lowered, options: Any = None) -> Report:
        raise jax.errors.JaxRuntimeError("INTERNAL: Failed to allocate")

    monkeypatch.setattr(Lowered, "report", fails)
    strategy = gd.TPUStrategy(topology="v5e:2x2")
    step = gd.function(lambda x: strategy.run(lambda x: (x * 2.0).sum(), args=(x,)))
    with strategy.scope():
        found = gd.plan(step, gd.PerReplicaSpec((8,), jnp.float32))
    assert found.best is None
    assert "NO PLAN: XLA fails on what fits 15.75 GiB: INTERNAL: Failed to allocate" in str(found)


def test_what_the_device_has_no_room_for_may_be_on_the_host(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResidualProgram, "solve", lambda program, most_bytes: None)
    own = search(traced, 2**34).own_now
    found = search(traced, own.peak_bytes + 2**20)
    on_host = [
        each for each in found.counted.values() if gd.Keep.HOST in each.plan.residuals.values()
    ]
    assert on_host
    assert min(each.peak_bytes for each in on_host) <= found.memory_bytes


def test_what_the_host_has_no_room_for_is_not_there(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HOST_BYTES, "tpu", Figure(2**20, "here"))
    plan = gd.Plan({ValueName(name): gd.Keep.HOST for name in ("carry", "hidden")})
    report = traced.planned(plan).lower().estimate()
    assert not report.fits
    assert "of the host's memory for each device, the compiler allows 1.00 MiB; by its" in str(
        report
    ).replace("\n                      ", " ")
    best = search(traced, 2**28).best
    assert best is not None
    assert gd.Keep.HOST not in best.plan.residuals.values()


@pytest.mark.long
def test_the_compiled_plan(traced: Traced) -> None:
    found = gd.plan(traced, compilations=2)
    assert found.best is not None
    assert found.best.compiled is not None
    assert found.best.peak_bytes <= 2**34
    assert "FITS, compiled" in str(found)
    own = found.search.own_now
    assert found.best.counted.timeline is not None
    assert own.counted.timeline is not None
    assert found.best.counted.timeline.seconds < own.counted.timeline.seconds


def test_what_cannot_be_planned(traced: Traced) -> None:
    with pytest.raises(gd.ArgumentTypeError, match=r"a plan is for a gd\.function"):
        gd.plan(print)  # type: ignore[arg-type]
    with pytest.raises(gd.ArgumentError, match="memory_bytes is -1"):
        gd.plan(traced, memory_bytes=-1)
    with pytest.raises(gd.ArgumentError, match="compilations is -1"):
        gd.plan(traced, compilations=-1)


@pytest.mark.long
def test_stacks_on_the_host_are_not_in_the_memory_of_the_device() -> None:
    """The compiler reports one peak, of the memory that has the larger one."""
    strategy = gd.TPUStrategy(topology="v5e:2x2", shard_parameters=True)
    peaks = []
    for keep in (gd.Keep.DEVICE, gd.Keep.HOST):
        plan = gd.Plan({ValueName(name): keep for name in ("carry", "hidden", "inner")})
        step, x, _ = make_step(strategy, WIDTH, ROWS, plan=plan)
        with strategy.scope():
            compiled = step.trace(x).lower().compile()
        peaks.append(compiled.report().needed_bytes)
        assert ("S(5)" in compiled.as_text("hlo")) is (keep is gd.Keep.HOST)
    stacks = 4 * ROWS * 4 * WIDTH * LAYERS
    assert peaks[1] < peaks[0] - stacks // 2


@pytest.mark.parametrize("wrapper", [jax.checkpoint, lambda f: f], ids=["recomputed", "kept"])
def test_layers_that_are_written_out_have_a_plan(wrapper: Callable[[Any], Any]) -> None:
    strategy = gd.TPUStrategy(topology="v5e:2x2", shard_parameters=True)
    step, x, _ = make_step(strategy, WIDTH, ROWS, wrapper, run_written_out)
    with strategy.scope():
        written_out = step.trace(x)
    found = search(written_out, 2**34)
    assert found.best is not None
    if wrapper is jax.checkpoint:
        assert found.best.seconds < found.own_now.seconds
    else:  # it keeps everything, and there is room for that
        assert found.best is found.own_now
    inner = 4 * ROWS * 4 * WIDTH * LAYERS
    assert dict(found.values)[ValueName("inner")] == inner  # of all layers
    smallest = found.frontier[0].peak_bytes
    assert search(written_out, smallest * 5 // 4).best is not None
    assert found.frontier[-1].peak_bytes > smallest + inner // 2


def test_settings_are_compared_by_their_input_a_second(traced: Traced) -> None:
    strategy = gd.TPUStrategy(topology="v5e:2x2", shard_parameters=True)
    step, x, _ = make_step(strategy, WIDTH, ROWS // 2)
    with strategy.scope():
        half = search(step.trace(x), 2**34)
    whole, none = search(traced, 2**34), search(traced, 2**20)
    assert whole.own_now.seconds * whole.elements_per_second(whole.own_now) == pytest.approx(
        4 * ROWS * WIDTH
    )
    found = FoundPlan(whole, "rows=2", [("rows=1", half), ("rows=3", none)])
    lines = str(found).splitlines()
    assert any("step by graph  peak by graph  elements/s" in line for line in lines)
    assert next(line for line in lines if "rows=3" in line).endswith("does not fit")
    assert half.best is not None
    amount = count_text(half.elements_per_second(half.best))
    assert next(line for line in lines if "rows=1" in line).endswith(amount)
    figures = json.loads(json.dumps(found.to_json()))
    assert figures["others"]["rows=3"] is None
    one, own = figures["others"]["rows=1"], figures["own"]
    assert one["elements_per_second"] < own["elements_per_second"]


def test_the_picture_has_a_dot_for_each_choice_that_a_device_may_hold(traced: Traced) -> None:
    whole = search(traced, 2**34)
    low, high = whole.frontier[0].peak_bytes, whole.frontier[-1].peak_bytes
    narrow = FoundPlan(search(traced, (2 * low + high) // 3))
    for found in (FoundPlan(whole), narrow, FoundPlan(search(traced, 2**20))):
        picture = ElementTree.fromstring(found.picture)
        counted = found.search.counted.values()
        most = 1.3 * max(found.search.memory_bytes, found.search.own_now.peak_bytes)
        dots = [each for each in picture.iter() if each.tag.endswith("circle")]
        assert len(dots) == sum(each.peak_bytes <= most for each in counted)
        best = [each for each in dots if each.get("class") == "best"]
        assert len(best) == (found.best is not None)
        for dot in dots:
            x, y = float(dot.get("cx", 0)), float(dot.get("cy", 0))
            assert 0 <= x <= 640
            assert 0 <= y <= 320
        if best:
            limit = next(each for each in picture.iter() if each.get("class") == "limit")
            at = float(limit.get("d", "").removeprefix("M").split()[0])
            assert float(best[0].get("cx", 0)) <= at
    assert narrow._repr_html_().startswith('<img alt="memory and time" src="data:image/svg+xml')


def test_a_step_without_loops_has_nothing_to_choose() -> None:
    strategy = gd.TPUStrategy(topology="v5e:2x2")
    step = gd.function(lambda x: strategy.run(lambda x: (x * 2.0).sum(), args=(x,)))
    with strategy.scope():
        found = gd.plan(step, gd.PerReplicaSpec((8,), jnp.float32), compilations=0)
    assert found.plan is not None
    assert found.plan.residuals == {}
    assert "1 choice counted" in str(found)
    assert "nothing to choose" in str(found)
