"""`python -m graphdist.tools.truth`: the table, the fit of the constants, rows from end to end."""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import pytest

import graphdist as gd
from graphdist.runtime.module.predicted_seconds import KernelFlops
from graphdist.runtime.targets.chip_timing import TIMINGS
from graphdist.tools.truth import runs
from graphdist.tools.truth.command import Observed, fitted, judged, main, slowdown_at, slowdown_of
from graphdist.tools.truth.graphs import counted, differences_line
from graphdist.tools.truth.page import PAGE, PICTURE, Judged, drawn, write_page
from graphdist.tools.truth.runs import (
    MODULES,
    ROOT,
    TABLE,
    CompiledRun,
    PublishedRun,
    kept_run,
    read_table,
)
from tests.aot.steps import make_step


def test_the_table_has_each_row_once_and_a_source_for_all() -> None:
    runs = read_table(ROOT / TABLE)
    assert [run.row for run in runs] == list(range(1, 56))
    assert all(run.source and run.seconds > 0 for run in runs)
    assert {run.row for run in runs if run.not_expressed} == {41}


def test_slices_and_groups_are_part_of_the_program() -> None:
    (run,) = (run for run in read_table(ROOT / TABLE) if run.row == 34)
    assert run.title == "fuji-7b, 4 slices of v5e:16x16, 1 x 4096"
    assert run.hardware.num_chips == 4 * 256
    assert run.program["slices"] == 4
    assert replace(run, group=1024).program["group"] == 1024
    alone = replace(run, slices=1)
    assert alone.hardware.num_chips == 256
    assert not {"slices", "group", "cores"} & set(alone.program)
    assert replace(run, cores=4).program["cores"] == 4


def observed(*found: tuple[str, str, float]) -> list[Observed]:
    platforms = {"v5e": "tpu", "v6e": "tpu", "h100": "gpu"}
    return [Observed(family, chip, platforms[chip], by) for family, chip, by in found]


def test_the_slowdown_of_a_run_is_found_again() -> None:
    assert slowdown_at(5.0, ends=(2 + 3 * 0.7, 2 + 3 * 1.3)) == pytest.approx(1.0)
    assert slowdown_at(0.1, ends=(2.7, 3.3)) == 0.1


def test_a_family_counts_once_however_many_rows_it_has() -> None:
    few = observed(("a", "v5e", 0.8), ("b", "v5e", 1.2))
    many = observed(*[("a", "v5e", 0.8)] * 6, ("b", "v5e", 1.2))
    assert slowdown_of("v5e", "tpu", few) == pytest.approx(slowdown_of("v5e", "tpu", many))


def test_a_chip_without_rows_has_what_its_platform_says() -> None:
    rows = observed(("a", "v5e", 0.8), ("b", "h100", 1.5))
    assert slowdown_of("v6e", "tpu", rows) == pytest.approx(0.8**0.5)
    assert slowdown_of("a100", "gpu", rows) == pytest.approx(1.5**0.5)
    assert slowdown_of("v5e", "tpu", rows) == pytest.approx(0.8**0.5)
    assert slowdown_of("v5e", "tpu", []) == 1


def judged_rows() -> list[Judged]:
    runs = read_table(ROOT / TABLE)
    return [Judged(run, run.seconds * 1.1, run.seconds * 1.2, 0.9) for run in runs[:3]]


def test_the_page_keeps_its_text_around_the_table(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    page = tmp_path / "estimates.md"
    page.write_text("# Title\n\n<!-- predictions -->\nold\n<!-- end of predictions -->\n\nAfter.\n")
    write_page(tmp_path, judged_rows())
    text = page.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith("\n\nAfter.\n")
    assert "old" not in text
    assert "| 1 | maxtext-16b, v5e:16x16, 6 x 2048 | 10.3 s | 11.3 s | +10.0% |" in text
    assert "TPU, 3 rows: median error 10.0%, 90th percentile 10.0%." in text
    ElementTree.parse(tmp_path / "figures" / "estimates.svg")
    page.write_text("# Title\n")
    with pytest.raises(gd.ArgumentError, match="no place for predictions"):
        write_page(tmp_path, judged_rows())


def test_a_prediction_that_is_true_stands_on_the_line_of_the_picture() -> None:
    (run,) = read_table(ROOT / TABLE)[:1]
    shown = ElementTree.fromstring(drawn([Judged(run, run.seconds, run.seconds, 1.0)]))
    circle = next(each for each in shown if each.tag.endswith("circle"))
    line = next(each for each in shown if each.get("class") == "equal")
    x, y = float(circle.get("cx", 0)), float(circle.get("cy", 0))
    assert x - float(line.get("x1", 0)) == pytest.approx(float(line.get("y1", 0)) - y, abs=0.2)


def test_unknown_rows_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--row", "99"]) == 2
    assert "the table has no 99" in capsys.readouterr().err
    assert main(["--family", "none"]) == 2
    assert "maxtext-v5e" in capsys.readouterr().err
    assert main(["--table", str(tmp_path / "none.json")]) == 2
    assert "there is no table of published runs" in capsys.readouterr().err
    with pytest.raises(gd.ArgumentError):
        read_table(tmp_path / "none.json")


def test_rows_that_cannot_be_expressed_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--row", "41"]) == 0
    said = capsys.readouterr().err
    assert "row 41, 405b, 2 slices of v6e:16x16, 1 x 8192: not predicted: it takes param" in said


def test_rows_whose_modules_are_not_kept_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--row", "1", "--kept", "--modules", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    assert "row 1, maxtext-16b, v5e:16x16, 6 x 2048: not predicted: its module is not" in said.err
    assert json.loads(said.out)["rows"] == []


def table_of(rows: list[dict[str, Any]], folder: Path) -> list[str]:
    table = folder / "table.json"
    table.write_text(json.dumps({"rows": rows}))
    return ["--table", str(table), "--modules", str(folder / "modules")]


OF_ALL = {"length": 128, "source": "none", "recompute": "all of a layer", "model": "10m"}


@pytest.mark.needs("tpu")
def test_rows_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"row": 1, "family": "a", "topology": "v5e:2x2", "rows": 1, "seconds": 2e-5, **OF_ALL},
        {"row": 2, "family": "b", "topology": "v5e:2x2", "rows": 2, "seconds": 3e-5, **OF_ALL},
    ]
    command = [*table_of(rows, tmp_path), "--json"]
    (tmp_path / "modules").mkdir()
    programs = [run.program for run in read_table(tmp_path / "table.json")]
    for row, batch in ((1, 16), (2, 1024)):
        strategy = gd.TPUStrategy(topology="v5e:2x2")
        step, _, spec = make_step(strategy, batch=batch, width=128)
        text = step.trace(spec, 0.1).lower().compile().as_text("hlo")
        kept = {"program": programs[row - 1], "module": text, "kernels": []}
        packed = lzma.compress(json.dumps(kept).encode())
        (tmp_path / "modules" / f"row{row}.json.xz").write_bytes(packed)
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert [row["row"] for row in found] == [1, 2]
    assert 0 < found[0]["predicted"] < found[1]["predicted"]
    assert main(command[:-1]) == 0
    assert "median error" in capsys.readouterr().out


@pytest.mark.needs("tpu")
@pytest.mark.long
def test_a_row_is_compiled_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"row": 1, "family": "a", "topology": "v5e:2x2", "rows": 1, "seconds": 0.01, **OF_ALL}
    row |= {"slices": 2, "group": 2, "settings": {"attention": "plain"}}
    command = [*table_of([row], tmp_path), "--json"]
    assert main(command) == 0
    first = capsys.readouterr().out
    (kept,) = (tmp_path / "modules").iterdir()
    module = json.loads(lzma.decompress(kept.read_bytes()))["module"]
    gathered = [line for line in module.splitlines() if " all-gather" in line]
    groups = {line.partition("replica_groups=")[2].partition("}}")[0] for line in gathered}
    assert "{{0,1},{2,3" in groups  # of a slice of four devices
    before = kept.stat().st_mtime_ns
    assert main(command) == 0  # from the folder
    assert capsys.readouterr().out == first
    assert kept.stat().st_mtime_ns == before
    assert main([*command, "--again"]) == 0
    assert kept.stat().st_mtime_ns > before


def test_a_module_of_another_program_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def compile(run: PublishedRun) -> tuple[str, KernelFlops, int]:
        asked.append(run.options)
        return "", {}, 0

    monkeypatch.setattr(runs, "_compile", compile)
    (run,) = (run for run in read_table(ROOT / TABLE) if run.row == 3)
    changed = replace(run, options={})
    for each in (run, run, changed, changed, run):
        runs.compiled_run(each, tmp_path)
    assert asked == [run.options, {}, run.options]


def test_modules_are_kept_for_the_programs_of_the_table() -> None:
    programs = {f"row{run.row}.json.xz": run.program for run in read_table(ROOT / TABLE)}
    for kept in (ROOT / MODULES).glob("*.json.xz"):
        assert json.loads(lzma.decompress(kept.read_bytes()))["program"] == programs[kept.name]


def kept_runs() -> list[CompiledRun]:
    found = (kept_run(run, ROOT / MODULES) for run in read_table(ROOT / TABLE))
    return [run for run in found if run is not None]


@pytest.mark.long
def test_the_page_and_the_constants_are_of_the_modules_that_are_kept(tmp_path: Path) -> None:
    runs = kept_runs()
    for name in (PAGE, PICTURE):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / "docs" / name).read_bytes())
    write_page(tmp_path, judged(runs))
    for name in (PAGE, PICTURE):
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text()
    by_chip = Counter(compiled.run.chip.name for compiled in runs)
    slowdowns = fitted(runs)
    for chip, timing in TIMINGS.items():
        assert timing.slowdown == pytest.approx(slowdowns[chip], abs=0.006)
        if chip in by_chip:
            kind = "measured" if chip == "h200" else "published"
            assert timing.source == f"fitted to {by_chip[chip]} {kind} runs"
        else:
            assert "no published run" in timing.source


@pytest.mark.long
@pytest.mark.needs("tpu")
def test_graphs_predict_what_compiled_modules_do() -> None:
    results = list(counted([each for each in kept_runs() if each.run.chip.platform == "tpu"]))
    assert median(abs(each.difference) for each in results) < 0.08
    told = re.search(r"(\d+) of (\d+) pairs", differences_line(results))
    assert told is not None
    assert int(told[1]) >= 0.9 * int(told[2])
