"""The command line: what it prints, writes and exits with."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import graphdist as gd
from graphdist.program.stages import Lowered
from graphdist.report.step_report import Report
from graphdist.runtime.targets.chips import CHIPS
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tools.comparisons import find_largest, topology_of
from graphdist.tools.compile import main
from graphdist.tools.console import OUTPUT_LOST
from tests.aot.steps import make_step

STEP = """
import jax, jax.numpy as jnp, graphdist as gd

def make_step(strategy, batch: int = 8, width: int = 128):
    with strategy.scope():
        w = gd.Variable(jax.ShapeDtypeStruct((width, width), jnp.float32), name="w")

    @gd.function
    def step(x):
        def replica_fn(x):
            grad = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w[...])
            w.assign(w - gd.get_replica_context().all_reduce("SUM", grad))
        strategy.run(replica_fn, args=(x,))

    return step, (gd.PerReplicaSpec((batch, width), jnp.float32, strategy=strategy),)

def make_raising_step(strategy):
    raise KeyError("no data")

def make_undivided_step(strategy, batch: int = 10):
    def dataset_fn(context):
        rows = context.get_per_replica_batch_size(batch)
        return gd.data.Dataset.from_tensor_slices(jnp.ones((8 * rows, 2))).batch(rows)
    dataset = strategy.distribute_datasets_from_function(dataset_fn)
    return gd.function(lambda x: x), (next(iter(dataset)),)

def make_accumulating_step(strategy):
    spec = gd.PerReplicaSpec((8, 2), jnp.float32, strategy=strategy)
    step = gd.accumulate(lambda x: x.sum(), microbatches=3)
    return gd.function(lambda x: strategy.run(step, args=(x,))), (spec,)

def make_untraceable_step(strategy):
    def step(x):
        raise TypeError("no such shape")
    return gd.function(step), (jax.ShapeDtypeStruct((2,), jnp.float32),)
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    file = tmp_path / "steps.py"
    file.write_text(STEP)
    return f"{file}:make_step"


@pytest.mark.needs("tpu")
def test_a_step_is_compiled_reported_and_written(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "step.gdx"
    assert main([target, "--topology", "v5e:2x2", "-o", str(output), "--set", "width=256"]) == 0
    printed = capsys.readouterr().out
    assert "step on v5e:2x2, 4 devices\n  Fits " in printed
    assert "1 collective, 256.00 KiB of operands on each device a step" in printed
    assert "steps.py:12, over links x y -> " in " ".join(printed.split())
    assert f"written: {output}" in printed
    assert output.stat().st_size > 1000


@pytest.mark.needs("tpu")
def test_the_report_is_printed_though_the_file_cannot_be_written(
    target: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/.step.gdx.8ahf2k")

    monkeypatch.setattr("os.replace", full)
    output = tmp_path / "step.gdx"
    assert main([target, "--topology", "v5e:2x2", "-o", str(output)]) == OUTPUT_LOST
    captured = capsys.readouterr()
    assert "  Fits " in captured.out
    assert "written" not in captured.out
    assert f"No space left on device: '{output}'" in captured.err
    assert sorted(tmp_path.glob(".step.gdx*")) == []


SLOW = """
import hashlib, sys

def make_step(strategy):
    print("working", file=sys.__stdout__, flush=True)
    hashlib.pbkdf2_hmac("sha256", b"as a compiler does", b"not heed signals", 10**9)
"""


@pytest.mark.long
@pytest.mark.needs("tpu")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_ctrl_c_ends_the_command_at_once_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text(SLOW)
    command = [sys.executable, "-m", "graphdist.tools.compile", str(file), "--topology", "v5e:2x2"]
    environment = {**os.environ, "TPU_SKIP_MDS_QUERY": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        try:
            _, printed = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    lines = [line for line in printed.splitlines() if "graphdist" in line or "Traceback" in line]
    assert lines == ["graphdist-compile: interrupted"]


def test_an_interrupt_outside_the_compiler_is_one_line(
    target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("graphdist.tools.compile.find_topology", interrupted)
    assert main([target, "--topology", "v5e:2x2"]) == 130
    assert capsys.readouterr().err == "graphdist-compile: interrupted\n"


@pytest.mark.needs("tpu")
def test_json_has_the_whole_report(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([target, "--topology", "v5e:2x2", "--num-slices", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["fits"] is True
    assert report["num_devices"] == 8
    assert report["collective_bytes"] == {"all_reduce": 65536}
    assert report["timeline"]["seconds"] > 0


@pytest.mark.needs("tpu")
def test_what_does_not_fit_exits_with_3_and_writes_nothing(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "step.gdx"
    arguments = [target, "--topology", "v5e:2x2", "--set", "width=131072", "-o", str(output)]
    assert main(arguments) == 3
    assert "  Does not fit " in capsys.readouterr().out
    assert not output.exists()
    assert main([*arguments, "--quiet"]) == 3
    assert capsys.readouterr().out == ""


@pytest.mark.needs("tpu")
@pytest.mark.parametrize(("option", "held"), [([], "1.00 MiB"), (["4"], "1.00 MiB")])
def test_parameters_are_stored_in_slices(
    option: list[str], held: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sharded = ["--shard-parameters", *option]
    assert main([target, "--topology", "v5e:2x2", *sharded, "--set", "width=1024"]) == 0
    printed = capsys.readouterr().out
    assert "1 of 1 are stored sharded" in printed
    assert f"variables     {held}  of 4.00 MiB" in printed


@pytest.mark.needs("tpu")
def test_groups_that_cannot_be_are_refused(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([target, "--topology", "v5e:2x2", "--shard-parameters", "3"]) == 2
    assert "3" in capsys.readouterr().err


@pytest.mark.needs("tpu")
def test_topologies_side_by_side(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([target, "--compare", "v5e:2x2,v6e:2x2"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[:3] for line in printed.splitlines()[2:4]] == [
        ["v5e:2x2", "4", "yes"],
        ["v6e:2x2", "4", "yes"],
    ]
    assert main([target, "--topology", "v5e:2x2", "--scale", "4,16", "--json"]) == 0
    reports = json.loads(capsys.readouterr().out)["reports"]
    assert [report["num_devices"] for report in reports.values()] == [4, 16]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--topology", "v5e:2y2"], "did you mean v5e:2x2"),
        (["--topology", "v5e:2x2", "--num-slices", "0"], "there must be at least 1"),
        ([], "no topology is given"),
        (["--topology", "v5e:2x2", "--scale", "many"], "'many' is no number of chips"),
        (["--compare", "v5e:2x2,v6e:2x2", "-o", "x.gdx"], "--compare has no use for --output"),
        (["--topology", "v5e:2x2", "--fit", "batch=9..1"], "is not of the form name=low..high"),
        (["--topology", "v5e:2x2", "--fit", f"batch=1..{'9' * 5000}"], "is not of the form"),
        (
            ["--topology", "v5e:2x2", "--fit", "a=1..2", "--set", "a=3"],
            "both give a: leave one",
        ),
        (["--topology", "v5e:2x2", "--scale", "6", "--num-slices", "4"], "by --num-slices 4: it"),
        (["--topology", "h100:1x8", "--scale", "8", "--num-slices", "2"], "slices are of TPUs"),
        (["--topology", "v5e:2x2", "-o", "no/x.gdx"], "no/x.gdx cannot be written: there is no"),
        (["--topology", "v5e:2x2", "-o", "x" * 300], "cannot be written: File name too long"),
        (["--topology", "v5e:2x2", "-o", "x\0y"], "cannot be written: .. embedded null"),
    ],
)
def test_bad_input_exits_with_2(
    target: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([target, *arguments]) == 2
    captured = capsys.readouterr()
    assert all(words in captured.err for words in says.split(" .. "))  # the rest is Python's
    assert captured.out == ""


@pytest.mark.needs("tpu")
@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("make_steps", [], "did you mean make_step"),
        ("make_raising_step", [], "raised KeyError: 'no data'\n"),
        ("make_step", ["--set", "size=1"], "takes no setting 'size'"),
        ("make_step", ["--set", "size"], "not of the form name=value"),
        ("make_untraceable_step", [], "raised TypeError: no such shape when it was traced"),
        ("make_undivided_step", [], "global batch size 10 does not divide by 4 replicas"),
        ("make_accumulating_step", [], "8 rows does not divide into 3 microbatches"),
        ("make_step", ["--passes", "infer,lower"], "there is no pass 'infer'"),
        ("make_step", ["--passes", "simplfy"], "hint: did you mean simplify?\n"),
        ("make_step", ["--option", "xla_nothing=1"], "refuses a compiler option"),
        ("make_step", ["-o", "/no/such/folder/x.gdx"], "/no/such/folder"),
        ("make_step", ["-o", "x.gdx", "--platforms", "abacus"], "platform 'abacus' is not one of"),
    ],
)
def test_a_bad_target_exits_with_2(
    target: str, name: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([target.replace("make_step", name), "--topology", "v5e:2x2", *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--topology", "v5e:2x4"]])
def test_a_compiled_step_is_not_compiled(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "step.gdx"
    path.touch()
    assert main([str(path), *arguments]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{path} is the file of a step, which is compiled already" in said
    assert f"hint: graphdist-viz {path} shows it, gd.aot.load runs it," in said
    assert f"graphdist-compile --list-variables {path} prints its variables" in said
    assert f"name that step and --against {path}" in said
    path.unlink()
    assert main([str(path), *arguments]) == 2
    assert "there is no file" in capsys.readouterr().err


def test_the_table_of_topologies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-topologies"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^  h200 .* 141.00 GiB +4800 GB +989.00 T ", printed, re.MULTILINE)
    assert ".." not in printed.partition("Figures")[0]  # no word of the table is shortened
    assert "v5e:16x16" in printed
    assert "docs.cloud.google.com/tpu/docs/v5e" in printed
    assert main(["--list-topologies", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["h100"]["memory_bytes"] == 84942979072


def test_the_variables_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    step, _, batch = make_step(strategy)
    path = tmp_path / "step.gdx"
    gd.aot.save(path, step.trace(batch, 0.1).lower().compile())
    assert main(["--list-variables", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 variables, 768 B unsharded"
    assert lines[2].split() == ["0", "[8,", "8]", "float32", "256", "B", "assigned"]
    assert main(["--list-variables", str(path), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    expected = {"name": "0", "shape": [8, 8], "dtype": "float32", "bytes": 256, "is_assigned": True}
    assert first == expected
    assert main(["--list-variables", str(tmp_path / "no.gdx")]) == 2
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize("limit", [0, 1, 5, 63, 64])
def test_fit_finds_the_largest_that_fits_in_few_tries(limit: int) -> None:
    tried = []

    def report(topology: Any, *, batch: int) -> Report:
        tried.append(batch)
        empty: Any = ()
        return Report(
            "step",
            "x",
            1,
            argument_bytes=0,
            output_bytes=0,
            alias_bytes=0,
            temp_bytes=0,
            needed_bytes=batch,
            available_bytes=limit or -1,
            flops={},
            memory_traffic=0,
            collectives=empty,
            module_collectives=empty,
            constants=empty,
        )

    survey = find_largest("batch=1..64", find_topology("v5e:2x2"), report)
    assert survey.fits == (limit > 0)
    expected = f"largest that fits: batch={limit}" if limit else "not even batch=1 fits"
    assert survey.verdict == expected
    assert len(tried) == len(set(tried)) <= 8


@pytest.mark.parametrize(
    ("chip", "size", "name"),
    [
        ("v5e", "1", "v5e:1x1"),
        ("v5e", "256", "v5e:16x16"),
        ("v5p", "4", "v5p:2x2x1"),
        ("v5p", "512", "v5p:8x8x8"),
        ("v5p", "6144", "v5p:16x16x24"),
        ("h100", "4", "h100:1x4"),
        ("h100", "64", "h100:8x8"),
    ],
)
def test_a_number_of_chips_is_a_topology(chip: str, size: str, name: str) -> None:
    assert topology_of(CHIPS[chip], size).name == name


@pytest.mark.parametrize(("size", "name"), [("8", "v5e:2x2"), ("512", "v5e:16x16")])
def test_a_number_of_chips_is_that_of_all_slices(size: str, name: str) -> None:
    topology = topology_of(CHIPS["v5e"], size, 2)
    assert (topology.name, topology.num_slices, topology.num_chips) == (name, 2, int(size))


def test_a_step_takes_the_place_of_no_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["step.py", "--topology", "v5e:2x2", "-o", str(pipe)]) == 2
    assert f"{pipe} cannot be written: it is a pipe," in capsys.readouterr().err
    assert pipe.is_fifo()


@pytest.mark.needs("tpu")
def test_quick_compiles_nothing(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiled(*args: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(Lowered, "compile", compiled)
    quick = [target, "--topology", "v5e:2x2", "--quick"]
    assert main(quick) == 0
    text = capsys.readouterr().out
    assert re.search(r"^  Fits\? +v5e:2x2, by its graph it needs ", text, re.MULTILINE)
    assert not re.search(r"Fits(?!\?)|FITS", text)  # it asks, and does not say so
    assert "by the graph, since the program is not compiled" in " ".join(text.split())
    assert main([*quick, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["is_compiled"], report["timeline"]["is_compiled"]) == (False, False)
    assert report["timeline"]["seconds"] > 0


@pytest.mark.needs("tpu")
def test_quick_is_near_what_is_compiled(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for more in ([], ["--quick"]):
        assert main([target, "--topology", "v5e:2x2", "--json", *more]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    compiled, counted = reports
    for name in ("flops", "collective_bytes", "variables"):
        assert compiled[name] == counted[name]
    assert counted["timeline"]["low"] < compiled["timeline"]["seconds"]


@pytest.mark.needs("tpu")
def test_a_search_by_graphs_says_so(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--topology", "v5e:2x2", "--quick", "--fit", "width=128..256"]
    assert main([target, *options]) == 0
    text = capsys.readouterr().out
    assert "largest that fits: width=256, by its graph: nothing was compiled" in text
    assert "Nothing was compiled" in text
