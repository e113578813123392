"""The pages that a run leaves of its compiled functions: what they are, and that none fails it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.config import dump_folder
from graphdist.errors import ArgumentError
from graphdist.runtime.files.checkpoint_owner import OwnerProcess
from graphdist.viz import display, page
from tests.viz.test_index import seen_of

ROW = re.compile(r"<tr>(.*)</tr>")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    gd.config.set_dump(tmp_path / "pages")
    yield tmp_path / "pages"
    gd.config.set_dump(None)


def rows(folder: Path) -> list[str]:
    """Return the text of each row of the index."""
    index = (folder / "index.html").read_text()
    return [re.sub(r"<[^>]+>", " ", row) for row in ROW.findall(index)[1:]]


def test_each_compiled_function_leaves_its_page(folder: Path) -> None:
    @gd.function
    def first(x: jax.Array) -> jax.Array:
        return x * 2.0

    @gd.function(name="second/<b>")
    def second(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    for _ in range(3):
        first(jnp.ones(3))
    second(jnp.ones(3))
    assert {path.name for path in folder.glob("*.*")} - {".owner"} == {
        *("index.html", "first.html", "second_b.html")
    }
    assert [row.split()[0] for row in rows(folder)] == ["first", "second_b"]
    assert "graphdist" in (folder / "first.html").read_text()


def test_a_retrace_says_why_and_what_changed(folder: Path) -> None:
    @gd.function
    def step(x: jax.Array) -> jax.Array:
        return jnp.sum(x) if x.ndim > 1 else x * 2.0

    step(jnp.ones(3))
    step(jnp.ones((3, 4)))
    _, again = rows(folder)
    assert "compiled again: x was f32[3], is f32[3, 4]" in again
    assert re.search(r"1 nodes added, 1 removed, 0 changed\s+what changed", again)
    names = {path.name for path in folder.iterdir()} - {".owner"}
    assert names == {"index.html", "step.html", "step-2.html", "step-2-changes.html"}


def test_functions_of_one_name_are_not_compared(folder: Path) -> None:
    for factor in (2.0, 3.0):
        gd.function(lambda x, by=factor: x * by, name="scaled")(jnp.ones(3))
    assert len(rows(folder)) == 2
    assert not any("compiled again" in row for row in rows(folder))


def test_variables_that_moved_are_a_reason(folder: Path) -> None:
    with gd.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        several = [gd.Variable(jnp.full((i, 2), 1.0)) for i in range(1, 6)]
    total = gd.function(lambda: sum(v.read_value().sum() for v in several), name="total")
    packs = gd.function(lambda: [v.assign_add(v) for v in several] and None, name="packs")
    for step in (total, packs, total, total, packs):
        step()
    assert [row.split()[0] for row in rows(folder)] == ["total", "packs", "total"]
    assert "compiled again: another program has changed how its variables" in rows(folder)[2]


@pytest.mark.needs("browser")
def test_the_index_and_a_retrace_in_a_browser(folder: Path) -> None:
    @gd.function
    def step(x: jax.Array, flag: bool) -> jax.Array:
        return jnp.sin(x) if flag else jnp.cos(x)

    step(jnp.ones(3), True)
    step(jnp.ones(3), False)
    seen = seen_of(folder / "index.html")
    assert seen["titles"] == ["step - graphdist"] * 3  # two programs, and the comparison
    assert "flag was True, is False" in seen["rows"][1]


def test_a_second_process_writes_to_a_folder_of_its_own(folder: Path) -> None:
    gd.function(lambda x: x + 1, name="first")(jnp.ones(3))
    program = (
        "import jax.numpy as jnp, graphdist as gd\n"
        "gd.function(lambda x: x + 2, name='second')(jnp.ones(3))"
    )
    environment = {**os.environ, "GRAPHDIST_DUMP_DIR": str(folder), "JAX_PLATFORMS": "cpu"}
    child = subprocess.Popen([sys.executable, "-c", program], env=environment)
    assert child.wait(timeout=120) == 0
    assert (folder / f"process{child.pid}" / "second.html").exists()
    assert [row.split()[0] for row in rows(folder)] == ["first"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_the_folder_of_a_process_that_ended_is_used_again(folder: Path) -> None:
    folder.mkdir()
    gone = replace(OwnerProcess.this_process(), started="1")  # the number is used again
    (folder / ".owner").write_bytes(gone.record(0))
    gd.function(lambda x: x + 1, name="first")(jnp.ones(3))
    assert (folder / "index.html").exists()


def test_nothing_is_written_where_it_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "program_of", pytest.fail)
    monkeypatch.chdir(tmp_path)
    gd.config.set_dump(None)
    assert gd.function(lambda x: x + 1)(jnp.ones(3))[0] == 2
    assert not any(tmp_path.iterdir())


def test_the_folder_stays_when_the_current_one_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gd.config.set_dump("pages")
    try:
        monkeypatch.chdir("/")
        assert dump_folder() == tmp_path / "pages"
    finally:
        gd.config.set_dump(None)


def test_the_environment_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphdist import config

    monkeypatch.setattr(config, "_chosen", {})
    assert dump_folder() is None
    monkeypatch.setenv("GRAPHDIST_DUMP_DIR", str(tmp_path / "pages"))
    gd.function(lambda x: x - 1)(jnp.ones(3))
    assert (tmp_path / "pages" / "index.html").exists()
    gd.config.set_dump(None)
    assert dump_folder() is None


def test_a_folder_that_cannot_be_written_fails_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    gd.config.set_dump(tmp_path / "file" / "pages")
    try:
        for size in (3, 4):
            assert gd.function(lambda x: x + 1)(jnp.ones(size)).shape == (size,)
    finally:
        gd.config.set_dump(None)
    assert len([r for r in caplog.records if "is not written" in r.message]) == 1


def test_a_viewer_that_fails_fails_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(program: object) -> str:
        raise RecursionError("too deep")

    monkeypatch.setattr(page, "render", broken)
    assert gd.function(lambda x: x + 1)(jnp.ones(3))[0] == 2
    assert not (folder / "index.html").exists()


def test_a_compilation_that_fails_has_left_its_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphdist.program import program

    def refused(*_: object) -> None:
        raise RuntimeError("the compiler refused")

    monkeypatch.setattr(program, "step_of", refused)
    with pytest.raises(RuntimeError, match="refused"):
        gd.function(lambda x: x + 1, name="large")(jnp.ones(3))
    assert (folder / "large.html").exists()


def test_a_function_that_is_compiled_for_ever_leaves_few_pages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "MOST", 3)
    step = gd.function(lambda x: x * 2, name="step")
    for size in range(2, 8):
        step(jnp.ones(size))
    assert len(rows(folder)) == 3
    assert "later programs of this function leave no pages" in rows(folder)[-1]


def test_what_is_no_path_is_refused() -> None:
    with pytest.raises(ArgumentError, match="which is no path"):
        gd.config.set_dump(3)  # type: ignore[arg-type]
