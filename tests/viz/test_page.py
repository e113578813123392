"""The page in a real browser: used as its reader would, offline, without an error."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any  # Any: JSON

import pytest

import graphdist as gd
from graphdist.passes import pipeline
from graphdist.tools.viz import main
from graphdist.viz.program import Program, Step
from tests.viz.graphs import chain, hostile

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "graphdist" / "viz" / "web" / "node_modules" / "playwright-core"

pytestmark = pytest.mark.slow


def use(page: Path, line: int | None = None) -> Any:
    """Return what a reader of the page saw; skips if a program it takes is not installed."""
    chromium = shutil.which("chromium")
    missing = [name for name in ("chromium", "node") if shutil.which(name) is None]
    if not DRIVER.is_dir():
        missing.append("playwright-core (npm ci in graphdist/viz/web)")
    if missing or chromium is None:
        pytest.skip(f"not installed: {', '.join(missing)}")
    script = str(ROOT / "tests" / "viz" / "browser.mjs")
    arguments = [chromium, str(page), str(page.parent / "shots"), str(line or "")]
    done = subprocess.run(
        ["node", script, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["console"] == []
    assert seen["requests"] == ["file"]
    assert seen["images"] == 0
    return seen


def test_the_step_of_an_example(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    page = tmp_path / "page.html"
    example = ROOT / "examples" / "train_digits.py"
    arguments = [f"{example}:make_step", "--strategy", "mirrored:2", "--format", "html"]
    assert main([*arguments, "-o", str(page)]) == 0
    line = next(
        number
        for number, text in enumerate(example.read_text().splitlines(), 1)
        if "all_reduce" in text
    )
    seen = use(page, line)
    assert seen["passes"] == 1 + len(pipeline("cpu"))  # and the trace
    assert "logical" in seen["firstStage"]
    assert seen["lastPass"] == "bucket_collectives"
    assert seen["opened"] > seen["boxes"] == seen["closed"]
    assert seen["selected"] == "all_reduce"
    assert "mirrored" in seen["facts"]
    assert seen["sorted"] == "descending"
    assert seen["bytes"] == ["39,724"]
    assert seen["lineNodes"] >= 3  # pack, all_reduce, unpack
    assert seen["live"] > 10
    assert seen["changes"] > 3
    assert "removed" in seen["marked"]


def test_ten_thousand_nodes(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    before, after = chain(9_000), chain(10_000)
    program = Program((Step("before", before), Step("after", after)))
    page.write_text(gd.viz.render(program, "html"))
    seen = use(page)
    assert seen["boxes"] < 100
    assert seen["found"] == 50
    assert len(seen["bytes"]) == 100
    assert seen["lastPass"] == "after"


def test_hostile_text_is_text(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(gd.viz.render(hostile(), "html"), encoding="utf-8")
    assert use(page)["selected"] == "all_reduce"
