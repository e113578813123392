"""The lines of docs/watching.md for trackers that the extra `test` does not bring."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "watching.md"
BLOCK = re.compile(r"^```(python|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def logged(tracker: str, folder: Path) -> set[str]:
    """Run the page's loop with a tracker in a folder; return the files that it leaves there."""
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    (loop,) = (text for _, text in blocks if f"import {tracker}\n" in text)
    program = folder / "train.py"
    program.write_text(blocks[0][1] + loop, encoding="utf-8")
    subprocess.run([sys.executable, str(program)], cwd=folder, check=True, timeout=300)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.long
@pytest.mark.needs("wandb")
def test_weights_and_biases(tmp_path: Path) -> None:
    assert any(re.fullmatch(r"wandb/.*/run-.*\.wandb", name) for name in logged("wandb", tmp_path))


@pytest.mark.long
@pytest.mark.needs("mlflow")
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "runs.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    logged("mlflow", tmp_path)
    with closing(sqlite3.connect(database)) as runs:
        steps = runs.execute("select step from metrics where key = 'loss' order by step")
        assert steps.fetchall() == [(0,), (10,), (20,)]


def test_worker_0_alone_writes() -> None:
    loops = [text for _, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if "for " in text]
    written = [text for text in loops if re.search(r"\.(log|log_metric|add_scalar)\(", text)]
    assert len(written) == 3
    assert all("strategy.extended.should_save_summary" in text for text in written)
