"""Targets in programs: what they print, the devices that they ask for, the calls that they make."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import graphdist as gd
from graphdist.runtime.targets.topologies import Topology
from graphdist.tools import compile, measure, viz
from graphdist.tools.chosen_strategy import ChosenStrategy
from graphdist.tools.console import Main

ROOT = Path(__file__).parents[2]


def blocks_of(page: str) -> list[str]:
    """Return the programs of a page, without the marks around them."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


FACTORY = """
import jax.numpy as jnp
import graphdist as gd

gd.config.set_logical_cpu_devices(2)
own = gd.MirroredStrategy(["cpu:0", "cpu:1"])
with own.scope():
    jnp.ones(3)

def make_step(strategy):
    gd.config.set_logical_cpu_devices(1)
    print("made")
    def replica_fn(x):
        context = gd.get_replica_context()
        return context.all_reduce("SUM", x * context.replica_id_in_sync_group)
    return gd.function(lambda x: strategy.run(replica_fn, args=(x,))), (jnp.ones(3),), "more"
"""


@pytest.fixture(autouse=True)
def devices_are_there() -> None:
    """Start JAX: otherwise a program sets how many devices there are, also for other tests."""
    jax.devices()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(blocks_of("README.md")[0])
    (tmp_path / "ahead.py").write_text("\n".join(blocks_of("docs/tutorials/ahead-of-time.md")[:2]))
    (tmp_path / "factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
def test_a_program_says_how_many_devices_there_are(programs: Path) -> None:
    commands = {
        2: ["train.py:train_step", "--collectives"],
        4: ["factory.py:make_step", "--collectives", "--strategy", "mirrored:4"],
    }
    started = {
        replicas: subprocess.Popen(
            [sys.executable, "-m", "graphdist.tools.viz", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for replicas, command in commands.items()
    }
    outputs = {each: process.communicate(timeout=120) for each, process in started.items()}
    for replicas, (out, err) in outputs.items():
        assert started[replicas].returncode == 0, err
        header, row, last = out.splitlines()
        assert header.split()[:3] == ["kind", "bytes", "times"]
        assert row.split()[0] == "all_reduce"
        assert last.startswith(f"1 collective over {replicas} replicas, ")
        assert ("loss 0.0000" in err) == (replicas == 2)


def test_a_function_is_shown_as_its_program_called_it(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert viz.main(["train.py:train_step"]) == 0
    assert capsys.readouterr().out.startswith("graph train_step on 2 replicas, stage spmd\n")
    assert viz.main(["train.py", "--all", "-o", "pages"]) == 0
    assert (programs / "pages" / "train_step.html").exists()


@pytest.mark.parametrize(
    ("main", "option", "value"),
    [
        (viz.main, "--strategy", "mirrored:4"),
        (viz.main, "--topology", "v5e:2x2"),
        (compile.main, "--topology", "v5e:2x2"),
    ],
)
def test_no_other_strategy_is_chosen_for_a_function_that_its_program_has_called(
    main: Main,
    option: str,
    value: str,
    programs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train.py:train_step", option, value]) == 2
    said = capsys.readouterr().err
    assert "train.py:train_step has the strategy with which its own program called it" in said
    assert f"{option} {value} cannot choose another" in said


def test_more_devices_than_there_are(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert viz.main(["factory.py:make_step", "--strategy", "mirrored:9"]) == 2
    assert "--strategy mirrored:9 takes 9 devices, and there are 8" in capsys.readouterr().err


def test_devices_in_use_are_enough_only_inside_a_command() -> None:
    with pytest.raises(gd.DeviceError, match="2 logical CPU devices asked for, 8 are already"):
        gd.config.set_logical_cpu_devices(2)


@pytest.mark.parametrize(
    ("main", "target"),
    [
        (compile.main, "ahead.py:make_step"),
        (compile.main, "factory.py:make_step"),
        (viz.main, "ahead.py:make_step"),
        (viz.main, "factory.py:make_step"),
        (measure.main, "factory.py:make_step"),
    ],
)
def test_a_factory_may_return_more_than_a_step(
    main: Main,
    target: str,
    programs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chosen(topology: Topology, shard_parameters: int | None, cores: int) -> ChosenStrategy:
        return ChosenStrategy(str(topology), lambda: gd.MirroredStrategy(["cpu:0", "cpu:1"]))

    monkeypatch.setattr(compile, "chosen_for", chosen)
    options = {compile.main: ["--topology", "v5e:1x2", "--json"], viz.main: ["--format", "json"]}
    others = ["--steps", "1", "--json"]
    assert main([target, *options.get(main, others)]) == 0
    json.loads(capsys.readouterr().out)  # nothing else is printed


def test_a_measured_factory_is_no_function(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure.main(["train.py:train_step"]) == 2
    assert "train.py:train_step is a gd.function, and no factory" in capsys.readouterr().err
