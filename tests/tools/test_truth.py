"""`python -m graphdist.tools.truth`: the table, the fit of the constants, rows from end to end."""

from __future__ import annotations

import gzip
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import graphdist as gd
from graphdist.tools.truth import (
    KERNEL_SHARES,
    LINK_SHARES,
    ROOT,
    SLOWDOWNS,
    TABLE,
    fitted,
    main,
    read_table,
)
from tests.aot.steps import make_step, needs_tpu


def test_the_table_has_each_row_once_and_a_source_for_all() -> None:
    runs = read_table(ROOT / TABLE)
    assert [run.row for run in runs] == list(range(1, 32))
    assert all(run.source and run.seconds > 0 for run in runs)
    assert {run.row for run in runs if run.not_expressed} == {*range(4, 8), *range(21, 32)}


def surface(work: float, kernels: float, links: float) -> dict[Any, float]:
    """Return the seconds of a step that computes, then runs kernels, then communicates."""
    return {
        (float(slowdown), kernel, link): work * slowdown + kernels / kernel + links / link
        for slowdown, kernel, link in product(SLOWDOWNS, KERNEL_SHARES, LINK_SHARES)
    }


def test_constants_are_found_again() -> None:
    surfaces = [surface(1, 0.1, 0.2), surface(2, 0.5, 0.1), surface(1, 0.3, 0.5)]
    truth = float(SLOWDOWNS[4]), 0.4, 0.65
    constants = fitted([(each, each[truth]) for each in surfaces])
    assert (constants.slowdown, constants.kernel_share, constants.link_share) == truth
    assert constants.source == "fitted to 3 published runs"


def test_unknown_rows_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--row", "99"]) == 2
    assert "the table has no 99" in capsys.readouterr().err
    assert main(["--family", "none"]) == 2
    assert "maxtext-v5e" in capsys.readouterr().err
    assert main(["--table", str(tmp_path / "none.json")]) == 2
    assert "is no table of published runs" in capsys.readouterr().err
    with pytest.raises(gd.ArgumentError):
        read_table(tmp_path / "none.json")


def test_rows_that_cannot_be_expressed_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--row", "4"]) == 0
    said = capsys.readouterr().out
    assert "row 4, maxtext-32b, v5p:4x4x4, 6 x 2048: not predicted, it takes tensor" in said


def table_of(rows: list[dict[str, Any]], folder: Path) -> list[str]:
    table = folder / "table.json"
    table.write_text(json.dumps({"rows": rows}))
    return ["--table", str(table), "--modules", str(folder / "modules")]


OF_ALL = {"length": 128, "source": "none", "recompute": "all of a layer", "model": "10m"}


@needs_tpu
def test_rows_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"row": 1, "family": "a", "topology": "v5e:2x2", "rows": 1, "seconds": 2e-5, **OF_ALL},
        {"row": 2, "family": "b", "topology": "v5e:2x2", "rows": 2, "seconds": 3e-5, **OF_ALL},
    ]
    command = [*table_of(rows, tmp_path), "--json"]
    (tmp_path / "modules").mkdir()
    for row, batch in ((1, 16), (2, 1024)):
        strategy = gd.TPUStrategy(topology="v5e:2x2")
        step, _, spec = make_step(strategy, batch=batch, width=128)
        text = step.trace(spec, 0.1).lower().compile().as_text("hlo")
        kept = json.dumps({"module": text, "kernels": []}).encode()
        (tmp_path / "modules" / f"row{row}.json.gz").write_bytes(gzip.compress(kept))
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["row"] for row in found] == [1, 2]
    assert 0 < found[0]["predicted"] < found[1]["predicted"]
    assert main(command[:-1]) == 0
    assert "median error" in capsys.readouterr().out


@needs_tpu
@pytest.mark.long
def test_a_row_is_compiled_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"row": 1, "family": "a", "topology": "v5e:2x2", "rows": 1, "seconds": 0.01, **OF_ALL}
    command = [*table_of([{**row, "settings": {"attention": "plain"}}], tmp_path), "--json"]
    assert main(command) == 0
    first = capsys.readouterr().out
    (kept,) = (tmp_path / "modules").iterdir()
    before = kept.stat().st_mtime_ns
    assert main(command) == 0  # from the folder
    assert capsys.readouterr().out == first
    assert kept.stat().st_mtime_ns == before
