"""Profiles of steps: what is read of a real one, and of events as TPUs and GPUs have them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any  # Any: planes, lines and events

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.report.step_report import Report
from graphdist.report.step_timeline import CollectiveTime, StepTimeline
from graphdist.tools.measure import main
from graphdist.tools.profiles import ProfiledStep, profiled_operations, times_of

STEPS = 4


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """Return the folder of a profile of a step on two devices, and the report of the step."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        w = gd.Variable(jnp.ones((64, 64)) / 64)

    @gd.function
    def train_step(x: Any) -> Any:
        def replica_fn(x: jax.Array) -> jax.Array:
            def loss_fn(w: jax.Array) -> jax.Array:
                body = lambda x, _: (jnp.tanh(x @ w), None)  # noqa: E731
                return jnp.mean(jax.lax.scan(body, x, None, length=3)[0] ** 2)

            loss, gradient = jax.value_and_grad(loss_fn)(w.read_value())
            w.assign_sub(gd.get_replica_context().all_reduce("MEAN", gradient))
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    (x,) = strategy.experimental_distribute_dataset([np.ones((32, 64), np.float32)])
    jax.block_until_ready(train_step(x))
    folder = tmp_path_factory.mktemp("profile")
    with jax.profiler.trace(str(folder)):
        for _ in range(STEPS):
            loss = train_step(x)
        jax.block_until_ready(loss)
    return folder, train_step.trace(x).lower().compile().report()


def test_a_profile_has_the_collectives_of_the_step(
    profiled: tuple[Path, Report], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, report = profiled
    (tmp_path / "report.json").write_text(json.dumps(report.to_json()))
    assert main([str(folder), "--report", str(tmp_path / "report.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["module"], found["devices"], found["predicted"]) == ("jit_train_step", 2, None)
    assert 1 <= found["runs"] <= STEPS + 1
    assert [each["name"] for each in found["collectives"]] == [
        each.name for each in report.module_collectives
    ]
    assert 0 < found["exposed"] <= found["communication"] <= found["seconds"]
    assert 0 < found["compute"] < found["seconds"]
    for each in found["collectives"]:
        assert each["runs"] == 1
        assert 0 <= each["exposed"] <= each["seconds"]


def test_the_prediction_stands_beside_it(
    profiled: tuple[Path, Report], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, report = profiled
    (name,) = (each.name for each in report.module_collectives)
    foreseen = CollectiveTime(name, "all_reduce", "step.py:1", 1, 3e-3, 2e-3)
    parts: dict[str, Any] = {
        "seconds": 7e-3,
        "low": 6e-3,
        "high": 8e-3,
        "compute": 5e-3,
        "exposed": 2e-3,
    }
    rest: dict[str, Any] = {"idle": 0.0, "utilization": 0.5, "model_flops": 1, "lines": ()}
    timeline = StepTimeline(**parts, **rest, collectives=(foreseen,), fitted="")
    text = json.dumps(replace(report, timeline=timeline).to_json())
    (tmp_path / "report.json").write_text(text)
    assert main([str(folder), "--report", str(tmp_path / "report.json")]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    step, compute, communication, exposed = lines[:4]
    collective = " ".join(" ".join(lines[4:]).split())
    assert header.startswith("jit_train_step on 2 devices, the median of ")
    for line, seconds in ((step, "7.00 ms"), (compute, "5.00 ms"), (exposed, "2.00 ms")):
        assert f" measured     {seconds} predicted  " in line
    assert "predicted" not in communication
    assert f"exposed, 2.00 ms of 3.00 ms predicted {name} all_reduce" in collective
    assert "test_profiles.py:" in collective


def test_what_is_no_profile_of_the_step(
    profiled: tuple[Path, Report], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, report = profiled
    other = tmp_path / "other.json"
    other.write_text(json.dumps(replace(report, name="evaluate").to_json()))
    for arguments, says in (
        ([str(tmp_path)], f"there is no profile in {tmp_path}"),
        ([str(tmp_path / "vm.xplane.pb")], "there is no profile in"),
        ([str(folder), "--report", str(other)], "has no run of evaluate"),
        ([str(folder), "--report", str(tmp_path / "none.json")], "there is no file"),
        ([str(folder), "--steps", "3"], "a profile has no use for --steps"),
        (["step.py:make_step", "--report", str(other)], "a step has no use for --report"),
    ):
        assert main(arguments) == 2
        assert says in capsys.readouterr().err


def event(name: str, start: float, end: float, **stats: Any) -> Any:
    return SimpleNamespace(name=name, start_ns=start, duration_ns=end - start, stats=stats.items())


def plane(name: str, **lines: list[Any]) -> Any:
    named = [SimpleNamespace(name=line, events=events) for line, events in lines.items()]
    return SimpleNamespace(name=name, lines=named)


def read(*planes: Any, collectives: tuple[str, ...] = ()) -> ProfiledStep:
    return times_of(list(profiled_operations(planes)), collectives)


def tpu(at: float, *, hidden: float) -> dict[str, list[Any]]:
    """Return a step of a TPU of 100 ns: a gather of 50 ns, of which computation hides a part."""
    ops = [
        event("%fusion.1 = f32[8]{0} fusion(..)", at, at + 20),
        event("%all-gather-start.2 = ..", at + 20, at + 21),
        event("%while.3 = ..", at + 21, at + 90),
        event("%fusion.4 = ..", at + 21, at + 21 + hidden),
        event("%all-gather-done.2 = ..", at + 60, at + 70),
        event("%fusion.5 = ..", at + 70, at + 100),
    ]
    return {
        "XLA Modules": [event("jit_step(123)", at, at + 100)],
        "XLA Ops": ops,
        "Async XLA Ops": [event("all-gather-start.2", at + 20, at + 70)],
    }


def test_operations_of_tpus_are_of_the_module_that_runs() -> None:
    runs = [tpu(start, hidden=30) for start in (0, 200, 500)]
    lines = {line: [each for run in runs for each in run[line]] for line in runs[0]}
    found = read(plane("/device:TPU:0", **lines), plane("/device:TPU:1", **lines))
    assert (found.module, found.devices, found.runs) == ("jit_step", 2, 3)
    times = (found.seconds, found.compute, found.communication, found.exposed)
    assert times == pytest.approx((100e-9, 80e-9, 50e-9, 20e-9))


def test_communication_that_is_hidden_is_not_exposed() -> None:
    found = read(plane("/device:TPU:0", **tpu(0, hidden=39)))
    assert found.exposed == pytest.approx(11e-9)  # the start, and the wait at the end
    assert found.communication == pytest.approx(50e-9)


def gpu(at: float) -> list[list[Any]]:
    """Return what the two streams of a GPU run in a step of 60 ns."""
    of = {"hlo_module": "jit_step", "program_id": 3}
    kernels = [
        event("loop_fusion", at, at + 20, hlo_op="fusion.1", **of),
        event("gemm", at + 20, at + 30, hlo_op="dot.2", **of),
        event("gemm", at + 30, at + 40, hlo_op="dot.2", **of),
        event("input_fusion", at + 50, at + 60, hlo_op="fusion.3", **of),
    ]
    nccl = [event("ncclDevKernel_AllReduce_Sum_f32(..)", at + 25, at + 50, hlo_op="ar.4", **of)]
    return [kernels, nccl]


def test_runs_on_gpus_begin_with_the_rarest_operation() -> None:
    steps = [gpu(start) for start in (0, 100, 200)]
    kernels, nccl = ([each for step in steps for each in step[stream]] for stream in range(2))
    lines = {"Stream #1(Compute)": kernels[1:], "Stream #2": nccl}  # it begins within a step
    found = read(plane("/device:GPU:0", **lines), plane("/host:CPU", python=[event("f", 0, 9)]))
    assert found.runs == 2
    assert found.seconds == pytest.approx(60e-9)
    assert found.exposed == pytest.approx(10e-9)
    (collective,) = found.collectives
    assert collective.name == "ar.4"
    assert collective.seconds == pytest.approx(25e-9)
    assert collective.runs == 1


@pytest.mark.parametrize(
    ("name", "is_collective"),
    [
        *((name, True) for name in ("psum.7", "all-reduce.1", "all_gather.3", "reduce_scatter")),
        *((name, True) for name in ("all-to-all.2", "collective-permute-start", "ppermute.4")),
        *((name, False) for name in ("reduce_sum.1", "gather.3", "fusion", "scatter.9", "copy.1")),
    ],
)
def test_collectives_are_known_by_their_names(name: str, is_collective: bool) -> None:
    of = {"hlo_module": "jit_step", "run_id": 1, "device_ordinal": 0}
    events = [event("other", 0, 1, hlo_op="other", **of), event(name, 2, 5, hlo_op=name, **of)]
    assert bool(read(plane("/host:CPU", thread=events)).collectives) == is_collective


def test_a_report_names_the_others() -> None:
    of = {"hlo_module": "jit_step", "run_id": 1, "device_ordinal": 0}
    events = [event("x", 0, 1, hlo_op="x", **of), event("mine.1", 2, 5, hlo_op="mine.1", **of)]
    (found,) = read(plane("/host:CPU", thread=events), collectives=("mine.1",)).collectives
    assert found.name == "mine.1"


def test_devices_of_two_hosts_are_two() -> None:
    of = {"hlo_module": "jit_step", "run_id": 1, "device_ordinal": 0}
    events = [event("a", 0, 1, hlo_op="a", **of), event("psum.1", 2, 5, hlo_op="psum.1", **of)]
    one = plane("/host:CPU", thread=events)
    found = times_of([*profiled_operations([one], "first"), *profiled_operations([one], "second")])
    assert (found.devices, found.runs) == (2, 1)


def test_programs_of_one_name_are_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def step(x: jax.Array) -> jax.Array:
        return jnp.sin(x @ x.T)

    arrays = [jnp.ones((128, 8)), jnp.ones((4, 8))]
    run = jax.jit(step)
    jax.block_until_ready([run(x) for x in arrays])
    with jax.profiler.trace(str(tmp_path)):
        jax.block_until_ready([run(arrays[0]), run(arrays[1]), run(arrays[0])])
    assert main([str(tmp_path)]) == 0
    assert "jit_step on 1 device, the median of 2 steps" in capsys.readouterr().out


def test_a_run_that_began_before_the_profile_does_not_count() -> None:
    def run(number: int, at: float, first: int) -> list[Any]:
        of = {"hlo_module": "jit_step", "run_id": number, "device_ordinal": 0}
        names = ("a", "psum.1", "b")
        return [
            event(name, at + 10 * i, at + 10 * i + 10, hlo_op=name, **of)
            for i, name in enumerate(names)
        ][first:]

    found = read(plane("/host:CPU", thread=[*run(1, 0, 2), *run(2, 50, 0), *run(3, 90, 0)]))
    assert found.runs == 2
    assert found.seconds == pytest.approx(30e-9)
