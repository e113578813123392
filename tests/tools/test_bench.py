"""The benchmark: that it compares like with like and writes what it says. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import fields, replace
from pathlib import Path
from typing import Any  # Any: JSON
from unittest import mock

import jsonschema
import pytest

import graphdist as gd
from graphdist.tools.bench.command import ALL_SYSTEMS, main
from graphdist.tools.bench.measurement import (
    TOLERANCE,
    DifferentProgramsError,
    Effort,
    Measurement,
    Module,
    check_agreement,
    compiled_on,
    measured,
    seconds_in_turns,
    tolerance_of,
    with_first_steps,
)
from graphdist.tools.bench.passes_saved import (
    SHOWCASES,
    CompiledSide,
    PassSaving,
    Showcase,
    effect,
    effects,
)
from graphdist.tools.bench.picture import draw_picture
from graphdist.tools.bench.process import COMPILED, Process, packages_of
from graphdist.tools.bench.programs import PROGRAMS, TINY
from graphdist.tools.bench.report import Run, bounds_of, passes_table
from graphdist.tools.bench.systems import SYSTEMS, Fsdp, systems_of

QUICK = Effort(rounds=1, turn_seconds=0, compilations=1)
DEVICES = ["cpu:0", "cpu:1"]
BYTES = {"type": ["integer", "null"], "minimum": 0}
SECONDS = {"type": ["number", "null"], "exclusiveMinimum": 0}
SCHEMA = {
    "type": "object",
    "required": ["format", "target", "replicas", "versions", "cores", "units", "measurements"],
    "properties": {
        "format": {"const": 2},
        "measurements": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["program", "title", "system", "losses"],
                "properties": {
                    "program": {"enum": list(PROGRAMS)},
                    "title": {"type": "string"},
                    "system": {"enum": list(ALL_SYSTEMS)},
                    "losses": {"type": "array", "items": {"type": "number"}},
                    "results": {"type": "object"},
                    "step_seconds": SECONDS,
                    "quick_seconds": SECONDS,
                    "turns": {
                        "type": "array",
                        "items": {"type": "array", "items": {"type": "number"}},
                    },
                    "compile_seconds": SECONDS,
                    "collectives": {"type": ["object", "null"]},
                    "num_collectives": BYTES,
                    "moved_bytes": BYTES,
                    "peak_bytes": BYTES,
                },
            },
        },
        "bounds": {
            "type": "array",
            "items": {"required": ["program", "system", "ratio", "bound", "met"]},
        },
    },
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "rounds"), [*((name, False) for name in TINY), ("transformer-bfloat16", True)]
)
def test_systems_run_one_program(name: str, rounds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if rounds:  # each value of bfloat16, as the others do: then losses agree as those of float32
        monkeypatch.setattr("graphdist.runtime.cpu_operations.chains_of_bfloat16", lambda graph: {})
    strategy = gd.MirroredStrategy(DEVICES, **TINY[name].strategy_options)
    found = [
        with_first_steps(Measurement(name, system), start(TINY[name], strategy))
        for system, start in systems_of(TINY[name]).items()
    ]
    check_agreement(found, TOLERANCE if rounds else tolerance_of(TINY[name]))
    losses = found[0].losses
    kind = TINY[name].kind
    assert (losses[2] < losses[0]) == (kind not in ("evaluate", "forward"))
    assert bool(found[0].results) == (kind == "evaluate")


def test_parameters_in_slices_by_hand_are_gathered_twice_and_scattered_once() -> None:
    strategy = gd.MirroredStrategy(DEVICES)
    fsdp = Fsdp(TINY["sharded"], strategy)
    held = fsdp.changed["params"][0]["weight"].addressable_shards[0].data.shape
    assert held == (16 // len(strategy.devices), 16)
    lowered = fsdp.lower().as_text()  # XLA gathers once on CPUs
    assert lowered.count("stablehlo.all_gather") == 3  # the first layer's input has no gradient
    assert lowered.count("stablehlo.reduce_scatter") == 2


@pytest.mark.long
def test_cores_exchange_by_hand_what_they_exchange_here() -> None:
    program = TINY["cores"]
    strategy = gd.MirroredStrategy(
        [*DEVICES, "cpu:2", "cpu:3"], **program.strategy_options
    )  # two replicas
    _, found = compiled_on(program, strategy, list(systems_of(program)))
    ours, peer = found["graphdist"].module, found["shard_map"].module
    assert ours is not None
    assert peer is not None
    assert ours.moved_bytes == peer.moved_bytes
    assert ours.num_collectives <= peer.num_collectives


@pytest.mark.long
def test_measurements_are_complete() -> None:
    found = measured(TINY["small"], gd.MirroredStrategy(DEVICES), list(SYSTEMS), QUICK)
    assert [one.system for one in found] == list(SYSTEMS)
    for one in found:
        assert len(one.losses) == 3
        assert [len(turn) for turn in one.turns] == [5]
        assert one.step_seconds is not None
        assert one.compile_seconds is not None
        assert one.module is not None
        is_floor = one.system == "floor"
        assert one.module.collectives == ({} if is_floor else {"all_reduce": 1})
        expected = 0 if is_floor else 4 * (3 * (16 + 4) + 1)  # each gradient once, and the loss
        assert one.module.moved_bytes == expected


@pytest.mark.parametrize(
    ("name", "system"),
    [
        pytest.param(name, system, marks=pytest.mark.needs(package))
        for name in TINY
        for system, package in packages_of(TINY[name]).items()
        if system != COMPILED
    ]
    + [  # seconds to compile each
        pytest.param(name, COMPILED, marks=pytest.mark.needs("inductor"))
        for name in ("small", "transformer")
    ],
)
def test_systems_elsewhere_run_the_same_program(system: str, name: str) -> None:
    program = TINY[name]
    peer = "fsdp" if program.shards_parameters else "shard_map"
    found = measured(program, gd.MirroredStrategy(DEVICES), [peer, system], QUICK, is_tiny=True)
    assert [one.system for one in found] == [peer, system]
    assert found[1].module is None


def test_tiny_programs_are_the_same_programs() -> None:
    assert list(TINY) == list(PROGRAMS)
    for name, tiny in TINY.items():
        program = PROGRAMS[name]
        assert type(tiny.model) is type(program.model)
        assert (tiny.kind, tiny.microbatches) == (program.kind, program.microbatches)
        assert tiny.strategy_options == program.strategy_options


def test_other_losses_are_refused() -> None:
    one = Measurement("small", "graphdist", losses=(1.0, 0.9, 0.8))
    check_agreement([one, replace(one, system="jit", losses=(1.00001, 0.9, 0.8))])
    check_agreement([replace(one, system="floor", losses=(2.0, 2.0, 2.0)), one])
    with pytest.raises(DifferentProgramsError, match=r"graphdist has .* 0\.8, jit 1, 0\.9, 0\.7"):
        check_agreement([one, replace(one, system="jit", losses=(1.0, 0.9, 0.7))])
    with pytest.raises(DifferentProgramsError, match="nan"):
        check_agreement([one, replace(one, system="jit", losses=(1.0, 0.9, float("nan")))])
    seen = replace(one, results={"accuracy": 0.5})
    with pytest.raises(DifferentProgramsError, match=r"0\.8, 0\.5, jit"):
        check_agreement([seen, replace(seen, system="jit", results={"accuracy": 0.4})])


def test_systems_take_turns() -> None:
    calls: list[str] = []

    def timed(name: str, seconds: float) -> Any:
        def run(steps: int) -> list[float]:
            calls.append(name)
            return [9.0] + [seconds] * (steps - 1)

        return run

    effort = Effort(rounds=2, turn_seconds=1.0)
    found = seconds_in_turns({"fast": timed("fast", 0.125), "slow": timed("slow", 5.0)}, effort)
    # The first of each turn is left out.
    assert found == {"fast": [[0.125] * 8] * 2, "slow": [[5.0] * 5] * 2}
    assert calls[2:] == ["fast", "slow", "slow", "fast"]


def test_the_process_of_a_system_that_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process("ddp", "small", 2, is_tiny=True)
    monkeypatch.setattr(process, "command", [sys.executable, "-c", "print('not JSON')"])
    with pytest.raises(RuntimeError, match="the process of ddp ended: run "):
        process.start(3)
    process.close()


@pytest.mark.long
def test_command_writes_json_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "run.json", tmp_path / "run.svg"]
    command = [sys.executable, "-m", "graphdist.tools.bench", "small", "evaluation", "--tiny"]
    command += ["--systems", "graphdist,shard_map", "--rounds", "1", "--turn", "0"]
    command += ["--compilations", "1", "--json", str(files[0]), "--svg", str(files[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "small: 3 layers of 4" in done.stdout
    assert "x shard_map, at most 1.05x: " in done.stdout
    run = json.loads(files[0].read_text())
    jsonschema.validate(run, SCHEMA)
    assert run["target"] == "2 CPU devices"
    assert {one["program"] for one in run["measurements"]} == {"small", "evaluation"}
    assert {one["system"] for one in run["bounds"]} == {"shard_map"}
    drawn = ElementTree.parse(files[1]).getroot()
    bars = [one for one in drawn.iter("{http://www.w3.org/2000/svg}rect") if "rx" in one.attrib]
    assert len(bars) == len(run["measurements"]) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["smal"], "there is no measurement 'smal'"),
        (["small", "--systems", "jax"], "there is no system 'jax'"),
        (["passes", "small"], "passes and small are asked for in one run"),
        (["small", "--topology", "v5e:3"], "topology"),
        (["passes", "--devices", "two"], "'two'"),
        (["small", "--devices", "2,4"], "'2,4'"),
        (["small", "--topology", "v5e:4x4", "--topology", "v5e:2x2"], "2 topologies"),
        (["small", "--rounds", "0"], "0 rounds"),
        (["small", "--turn", "-1"], "turns of -1.0 seconds"),
        (["passes", "--devices", "2,3"], "which 3 devices do not divide"),
        (["small", "--topology", "v5e:4x4", "--systems", "ddp"], "no use for --systems ddp"),
        (["small", "--json", "nowhere/run.json"], "there is no folder 'nowhere'"),
        (["small", "--svg", "nowhere/run.svg"], "there is no folder 'nowhere'"),
    ],
)
def test_command_refuses(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_command_without_a_system_that_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("graphdist.config.set_logical_cpu_devices", lambda number: None)
    monkeypatch.setattr("graphdist.tools.bench.command.is_installed", lambda name: False)
    assert main(["small", "--tiny", "--systems", "ddp,tensorflow"]) == 2
    said = capsys.readouterr()
    assert "ddp is not installed here" in said.out
    assert "there is no system left to measure" in said.err


def test_command_that_is_interrupted_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("graphdist.config.set_logical_cpu_devices", lambda number: None)
    monkeypatch.setattr(
        "graphdist.tools.bench.command.measured", mock.Mock(side_effect=KeyboardInterrupt)
    )
    assert main(["small", "--tiny", "--systems", "graphdist"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_picture_of_a_topology_shows_bytes() -> None:
    shown = [
        Measurement("small", name, module=Module({"all_reduce": 1}, moved, 4096))
        for name, moved in (("graphdist", 1024), ("shard_map", 2048))
    ]
    drawn = draw_picture("a & b", {"small": "50 layers < 51"}, shown)
    texts = [one.text for one in ElementTree.fromstring(drawn).iter() if one.text]
    assert "a & b" in texts
    assert "50 layers < 51" in texts
    assert "2.00 KiB   ours 0.50x" in texts


def test_systems_are_compared_round_by_round() -> None:
    # The machine gets slower: the medians of all steps would say 5.0 against 3.5.
    ours = Measurement("small", "graphdist", turns=((1.0, 1.0, 9.0), (4.0,), (6.0, 6.0)))
    theirs = Measurement("small", "shard_map", turns=((2.0, 2.0, 2.0), (5.0,), (12.0, 12.0)))
    assert ours.of(theirs) == 0.5
    assert ours.step_seconds == 5.0
    assert ours.quick_seconds == 1.0
    assert ours.of(replace(theirs, turns=())) is None


def test_bounds_are_of_ratios() -> None:
    small = PROGRAMS["small"]
    seconds = {"graphdist": 1.0, "shard_map": 10.0, "tensorflow": 1.0}
    shown = [Measurement("small", name, turns=((one,),)) for name, one in seconds.items()]
    by_system = {bound.system: bound for bound in bounds_of(small, shown)}
    assert by_system["shard_map"].met
    assert not by_system["tensorflow"].met
    assert str(by_system["tensorflow"]) == "1.00x tensorflow, at most 0.5x: MISSED"
    assert not bounds_of(small, [replace(one, turns=()) for one in shown])


ON_TPU = "stage_collectives"


@pytest.mark.long
@pytest.mark.needs("tpu")
def test_stages_halve_what_is_sent() -> None:
    (showcase,) = [one for one in SHOWCASES if one.pass_name == ON_TPU]
    found = effect(showcase, gd.TPUStrategy(topology="v5e:8x8", shard_update=True))
    assert found.with_it.module.moved_bytes < 0.55 * found.without.module.moved_bytes
    assert found.with_it.module.peak_bytes < found.without.module.peak_bytes
    assert found.target == "v5e:8x8"


def test_a_pass_that_a_target_does_without_is_not_shown() -> None:
    with mock.patch("graphdist.config.set_logical_cpu_devices"):  # these tests have their own
        assert effects("8", [ON_TPU]) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "showcase",
    [one for one in SHOWCASES if one.pass_name != ON_TPU],
    ids=lambda one: f"{one.pass_name}: {one.program.title}",
)
def test_each_pass_saves_something(showcase: Showcase) -> None:
    name = showcase.pass_name
    strategy = gd.MirroredStrategy(
        [f"cpu:{i}" for i in range(4)], shard_update=showcase.shard_update
    )
    found = effect(showcase, strategy)
    before, after = found.without, found.with_it
    saves = {
        "remove_redundant_collectives": after.module.moved_bytes < 0.6 * before.module.moved_bytes,
        "own_slices": after.module.moved_bytes < 0.7 * before.module.moved_bytes,
        "delay_reductions": after.module.moved_bytes < 0.6 * before.module.moved_bytes,
        "place_conversions": after.held_bytes < 0.6 * before.held_bytes,
        "bucket_collectives": after.module.num_collectives < 0.1 * before.module.num_collectives,
    }
    assert saves[name]
    assert found.target == "4 CPU devices"
    assert name in passes_table(name, found.program, [found])


def test_effects_survive_json() -> None:
    from graphdist.tools.bench.passes_saved import effect_from_json

    side = CompiledSide(Module({"all_reduce": 2}, 10, 20), 30)
    found = PassSaving("delay_reductions", "two losses", "2 CPU devices", 2, side, side)
    assert effect_from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.needs("tpu")
@pytest.mark.long
def test_topologies_are_compiled_for() -> None:
    from graphdist.runtime.targets.topologies import find_topology
    from graphdist.tools.compilation import strategy_for

    strategy = strategy_for(find_topology("v5e:2x2"))
    _, found = compiled_on(TINY["accumulation"], strategy, ["graphdist", "shard_map"])
    ours, peer = found["graphdist"].module, found["shard_map"].module
    assert ours is not None
    assert peer is not None
    assert ours.collectives == peer.collectives == {"all_reduce": 1}
    assert ours.moved_bytes == peer.moved_bytes


def test_fields_of_the_file_are_documented() -> None:
    import graphdist.tools.bench.report as report

    assert report.__doc__ is not None
    run = Run("2 CPU devices", 2, {"small": ""}, [Measurement("small", "jit")])
    said = run.to_json()
    for name in (*said, *said["measurements"][0]):
        assert f"`{name}`" in report.__doc__, name
    assert {one.name for one in fields(Run)} - {"titles"} <= set(said)


@pytest.mark.long
@pytest.mark.needs("tpu")
@pytest.mark.parametrize("topology", ["v5e:4x4", "v5e:8x8"])
def test_a_sharded_update_sends_no_more_than_is_asked(topology: str) -> None:
    program, strategy = PROGRAMS["large"], gd.TPUStrategy(topology=topology)
    _, found = compiled_on(program, strategy, ["graphdist"])
    module = found["graphdist"].module
    assert module is not None
    replicas = strategy.num_replicas_in_sync
    bound = 2 * (replicas - 1) / replicas * 4 * 8 * (1024 * 1024 + 1024)
    # Over groups the compiler joins the last, smallest reduce_scatters in one all_reduce.
    assert bound <= module.moved_bytes <= 1.08 * bound
    assert module.collectives["reduce_scatter"] >= 8
    assert module.collectives["all_gather"] >= 8
