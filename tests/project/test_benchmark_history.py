"""The figures of benchmarks by commit: what a run adds to them, and the picture of docs/."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from unittest import mock

import pytest

from graphdist.tools.bench import history
from graphdist.tools.bench.command import main
from graphdist.tools.bench.measurement import Measurement, Module
from graphdist.tools.bench.overheads import Overhead
from graphdist.tools.bench.programs import PROGRAMS
from graphdist.tools.bench.report import Run

ROOT = Path(__file__).parents[2]


def run_of(seconds: float) -> Run:
    """Return a run of one program, in which JAX by hand takes two seconds a step."""
    module = Module({"all_reduce": 1}, moved_bytes=64, peak_bytes=128)
    measurements = [
        Measurement("small", "graphdist", turns=((seconds,), (seconds,)), module=module),
        Measurement("small", "shard_map", turns=((2.0,), (2.0,)), compile_seconds=0.5),
    ]
    run = Run("2 CPU devices", 2, {"small": "50 layers of 16"}, measurements)
    run.overheads.append(Overhead("a call", 1e-5, 2e-5, "at most 2x"))
    return run


def test_a_run_keeps_commit_machine_versions_and_figures() -> None:
    record = history.record_of(run_of(0.5))
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert record["commit"] == head.stdout.strip()
    assert record["date"].endswith("+00:00")
    assert record["machine"]["cores"] >= 1
    assert {"graphdist", "jax", "jaxlib"} <= set(record["versions"])
    assert record["programs"] == {
        "small": {
            "graphdist": {"step_seconds": 0.5, "moved_bytes": 64, "peak_bytes": 128},
            "shard_map": {"step_seconds": 2.0, "ratio": 0.25, "compile_seconds": 0.5},
        }
    }
    assert record["overheads"] == {"a call": {"ours": 1e-5, "peer": 2e-5}}


def test_without_git_a_run_has_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(history, "ROOT", tmp_path)
    assert history.record_of(run_of(1.0))["commit"] == ""


def test_each_run_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    for seconds in (0.5, 1.0):
        history.append(path, history.record_of(run_of(seconds)))
    ratios = [run["programs"]["small"]["shard_map"]["ratio"] for run in history.recorded(path)]
    assert ratios == [0.25, 0.5]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["runs.jsonl"]),
        (["--tiny"], []),
        (["--no-record"], []),
        (["--record", "other.jsonl"], ["other.jsonl"]),
        (["--record", "other.jsonl", "--tiny"], ["other.jsonl"]),
    ],
)
def test_the_command_appends_the_run(
    options: list[str],
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(history, "FIGURES", tmp_path / "runs.jsonl")
    history.FIGURES.touch()
    with mock.patch("graphdist.tools.bench.command._here", return_value=run_of(0.5)):
        assert main(["small", *options]) == 0
    assert [path.name for path in tmp_path.iterdir() if path.read_text("utf-8")] == expected


def test_the_command_refuses_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["small", "--tiny", "--record", "nowhere/runs.jsonl"]) == 2
    assert "there is no folder 'nowhere'" in capsys.readouterr().err


def test_the_picture_has_a_point_for_each_ratio() -> None:
    first, second, elsewhere = (history.record_of(run_of(s)) for s in (0.5, 1.0, 3.0))
    elsewhere["machine"] = {"processor": "another", "cores": 64}
    drawn = ElementTree.fromstring(history.drawing([first, second, elsewhere]))
    points = [
        circle for circle in drawn.findall(".//{*}circle") if circle.find("{*}title") is not None
    ]
    assert [point.findtext("{*}title") for point in points] == [
        "0.25 of shard_map",
        "0.50 of shard_map",
        "1.50 of shard_map",
    ]
    heights = [float(point.attrib["cy"]) for point in points]
    assert heights[0] > heights[1] > heights[2]
    assert len(drawn.findall(".//{*}path")) == 1  # none leads to the run on another machine
    second["target"] = "8 CPU devices"
    assert "<path" not in history.drawing([first, second])


def test_a_file_without_runs_is_an_empty_picture() -> None:
    assert "no runs" in history.drawing([])


def test_the_picture_of_the_documents_is_fresh() -> None:
    assert history.main(["--check"]) == 0, "run python -m graphdist.tools.bench.history"


def test_the_figures_of_the_project_are_complete() -> None:
    for line in history.FIGURES.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert len(record["commit"]) == 40
        assert set(record["programs"]) <= set(PROGRAMS)
        for systems in record["programs"].values():
            assert all(figures["step_seconds"] > 0 for figures in systems.values())
