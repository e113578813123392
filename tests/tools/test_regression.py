"""`graphdist-compile --against`: what grew since an earlier report, and the exit status."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.report.step_report import Report
from graphdist.tools.compile import main
from graphdist.tools.regression import Amount, compare_reports, parse_allowed, read_report

STEP = """
import jax, jax.numpy as jnp, graphdist as gd
{comment}
def make_step(strategy, batch: int = 8, width: int = 128):
    with strategy.scope():
        w = gd.Variable(jax.ShapeDtypeStruct((width, width), jnp.float32), name="w")

    @gd.function
    def step(x):
        def replica_fn(x):
            grad = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w[...])
            {line}
        return strategy.run(replica_fn, args=(x,))

    return step, (gd.PerReplicaSpec((batch, width), jnp.float32, strategy=strategy),)
"""
REDUCE = 'return gd.get_replica_context().all_reduce("SUM", grad)'


@pytest.fixture
def target(tmp_path: Path) -> Path:
    file = tmp_path / "steps.py"
    file.write_text(STEP.format(comment="", line=REDUCE))
    return file


def reported(rows: int, *, gathers: bool = False) -> Report:
    """Return the report of a step on two devices; more rows reduce and gather more."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: jax.Array) -> Any:
            context = gd.get_replica_context()
            gathered = context.all_gather(x, axis=0) if gathers else x
            return context.all_reduce("SUM", x * x), gathered

        return strategy.run(replica_fn, args=(x,))

    spec = gd.PerReplicaSpec((rows, 4), jnp.float32, strategy=strategy)
    return step.trace(spec).lower().compile().report()


def as_json(report: Report) -> Any:
    return json.loads(json.dumps(report.to_json()))


def test_a_step_has_not_grown_against_itself() -> None:
    report = reported(8)
    same = compare_reports("old.json", Report.from_json(as_json(report)), report, 0.0)
    assert same.grown == ()
    assert same.lines == ()
    assert str(same).endswith("nothing grew")


def test_a_compiled_step_is_not_compared_with_a_counted_one() -> None:
    compiled = reported(8)
    counted = replace(compiled, is_compiled=False)
    with pytest.raises(gd.ArgumentError, match="was compiled, this step is counted on its graph"):
        compare_reports("old.json", compiled, counted, 0.0)
    assert compare_reports("old.json", counted, counted, 0.0).grown == ()


def test_parts_of_memory_of_an_earlier_version_are_left_out(tmp_path: Path) -> None:
    found = {**as_json(reported(8)), "parts": {"variables": 1, "gradients": 2, "saved": 3}}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(found))
    assert read_report(str(path)).parts is None


def test_growth_is_found_by_figure_and_by_line() -> None:
    regression = compare_reports("old.json", reported(8), reported(12), 0.2)
    growth = {figure.name: figure.growth for figure in regression.figures}
    assert growth["collectives"] == 0
    assert growth["bytes of collectives"] == pytest.approx(0.5)
    assert "bytes of collectives" in {figure.name for figure in regression.grown}
    (line,) = regression.lines
    assert (line.before, line.after) == (Amount(1, 128), Amount(1, 192))
    assert line.code == 'return context.all_reduce("SUM", x * x), gathered'
    assert "test_regression.py:" in line.place
    assert "GREW by more than 20%: " in str(regression)
    allowed = compare_reports("old.json", reported(8), reported(12), 10.0)
    assert allowed.grown == ()
    assert str(allowed).endswith("nothing grew by more than 1000%")


def test_new_collectives_are_lines_that_were_nothing_before() -> None:
    regression = compare_reports("old.json", reported(8), reported(8, gathers=True), 0.0)
    (line,) = regression.lines
    assert (line.before, line.after) == (Amount(), Amount(1, 128))
    assert "all_gather" in line.code
    gone = compare_reports("old.json", reported(8, gathers=True), reported(8), 0.0)
    assert [line.after for line in gone.lines] == [Amount()]
    assert gone.grown == ()
    found = regression.to_json()
    assert found["lines"][0]["after"]["bytes"] == 128
    assert found["figures"]["collectives"] == {"before": 1, "after": 2, "growth": 1}
    assert "collectives" in found["grown"]


def test_what_was_nothing_grows_without_bound() -> None:
    earlier = replace(reported(8), flops={})
    regression = compare_reports("old.json", earlier, reported(8), 1e6)
    assert [figure.name for figure in regression.grown if figure.growth == inf] == ["FLOP"]
    assert json.loads(json.dumps(regression.to_json()))["figures"]["FLOP"]["growth"] is None


@pytest.mark.parametrize("text", ["5", "-5%", "much", "%", "nan%", "inf%", ""])
def test_only_percentages_are_allowed(text: str) -> None:
    with pytest.raises(gd.ArgumentError, match="is no percentage"):
        parse_allowed(text)


def test_percentages() -> None:
    assert [parse_allowed(text) for text in ("0%", "2.5%", "150%")] == [0, 0.025, 1.5]


def test_files_without_a_report_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "old"
    with pytest.raises(gd.ArgumentError, match="there is no file"):
        read_report(str(file))
    for text in ("", "[]", "{}", "\x00\xff", "[" * 100_000):
        file.write_text(text)
        with pytest.raises(gd.ArgumentError, match="has no report"):
            read_report(str(file))
    for damage, says in (
        ({"collectives": [{"bytes": 3}]}, "lacks figures: KeyError"),
        ({"memory_traffic": "many"}, "'many' is no whole number"),
        ({"needed_bytes": True}, "True is no whole number"),
        ({"collectives": {}}, "{} is no list"),
        ({"timeline": []}, r"\[\] is no object"),
    ):
        file.write_text(json.dumps({**as_json(reported(8)), **damage}))
        with pytest.raises(gd.ArgumentError, match=says):
            read_report(str(file))
    elsewhere = replace(reported(8), target="v5e:2x2")
    with pytest.raises(gd.ArgumentError, match="has the report of v5e:2x2, this is cpu:0, cpu:1"):
        compare_reports("old.json", elsewhere, reported(8), 0.0)


def test_a_report_reads_its_own_json() -> None:
    report = reported(8, gathers=True)
    read = Report.from_json({**as_json(report), "unknown": 1})
    assert read == report
    assert str(read) == str(report)
    assert as_json(read) == as_json(report)


@pytest.mark.needs("tpu")
def test_a_step_that_grew_exits_with_4(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.gdx"
    arguments = [str(target), "--topology", "v5e:2x2", "--against", str(old), "--set"]
    assert main([*arguments[:3], "-o", str(old), "--set", "width=128"]) == 0
    assert main([*arguments, "width=128"]) == 0
    assert capsys.readouterr().out.endswith("nothing grew\n")
    # The same code some lines further down is the same code.
    moved = tmp_path / "moved" / "steps.py"
    moved.parent.mkdir()
    moved.write_text(STEP.format(comment="# moved\n" * 3, line=REDUCE))
    arguments[0] = str(moved)
    assert main([*arguments, "width=128"]) == 0
    assert main([*arguments, "width=256", "--allow", "5%"]) == 4
    printed = capsys.readouterr().out
    assert "bytes of collectives" in printed
    assert "steps.py:15: 1 -> 1 collectives, 64.00 KiB -> 256.00 KiB, " in printed
    assert REDUCE in printed
    assert main([*arguments, "width=256", "--allow", "500%", "--quiet"]) == 0


@pytest.mark.needs("tpu")
def test_the_output_of_json_is_a_report_to_compare_with(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.json"
    assert main([str(target), "--topology", "v5e:2x2", "--json"]) == 0
    old.write_text(capsys.readouterr().out)
    command = [str(target), "--topology", "v5e:2x2", "--against", str(old), "--json"]
    assert main([*command, "--set", "batch=16"]) == 4
    printed = json.loads(capsys.readouterr().out)
    assert "FLOP" in printed["against"]["grown"]
    assert printed["against"]["figures"]["step time"]["growth"] > 0
    old.write_text(json.dumps(printed))
    assert main([*command, "--set", "batch=16"]) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--against", "nowhere.gdx"], "there is no file nowhere.gdx"),
        (["--against", __file__], "has no report"),
        (["--against", __file__, "--scale", "4,8"], "--scale has no use for --against"),
        (["--allow", "5%"], "--allow goes with --against"),
    ],
)
def test_bad_input_exits_with_2(
    target: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(target), "--topology", "v5e:2x2", *arguments]) == 2
    assert says in capsys.readouterr().err
