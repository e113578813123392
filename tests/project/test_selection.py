"""Which tests a command runs, what is said of the others, and what the budget of a file finds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.selected_tests import NEEDS, part_of
from tests.project.conftest import Module

NEEDS_MARK = re.compile(r"mark\.needs\((?P<names>[^)a-z]*\"[^)]*)\)")
PLUGINS = Path(__file__).parents[1] / "plugins"
INI = f"""
[pytest]
pythonpath = {PLUGINS}
markers =
    long: takes long
    needs(names): needs these
addopts = -p selected_tests -p seconds_of_tests -p no:cacheprovider -p no:xdist -rs
testpaths = .
"""
TESTS = """
import time
import pytest
import seconds_of_tests, selected_tests

seconds_of_tests.QUICK_SECONDS = 0.05
selected_tests.NEEDS["nothing"] = selected_tests.Need("pip install nothing", ("no_such_package",))

def test_quick(): pass
@pytest.mark.long
def test_long(): time.sleep(0.1)
@pytest.mark.needs("nothing", "pip")
def test_needs(): raise AssertionError("it is run")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with tests of each kind."""
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "test_kinds.py").write_text(TESTS)
    for name in "abcdef":
        (tmp_path / f"test_{name}.py").write_text("def test_it(): pass\n\ndef test_that(): pass\n")
    return tmp_path


def run(folder: Path, *options: str) -> tuple[int, str]:
    """Return the exit status of pytest in this folder, and what it prints."""
    command = [sys.executable, "-m", "pytest", *options]
    without_ours = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        command, cwd=folder, env=without_ours, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_long_tests_are_run_when_they_are_asked_for_or_named(folder: Path) -> None:
    status, printed = run(folder)
    assert (status, "13 passed, 1 skipped, 1 deselected" in printed) == (0, True), printed
    assert "not installed: pip install nothing\n" in printed
    assert "14 passed, 1 skipped" in run(folder, "--long")[1]
    assert "2 passed, 1 skipped" in run(folder, "test_kinds.py")[1]


@pytest.mark.long
def test_parts_are_whole_files_and_together_everything(folder: Path) -> None:
    seen: list[str] = []
    for part in ("1/3", "2/3", "3/3"):
        _, printed = run(folder, "--long", "--collect-only", "-q", "--part", part)
        names = [line for line in printed.splitlines() if "::" in line]
        files = {name.partition("::")[0] for name in names}
        assert 0 < len(files) < 7
        assert not files & {name.partition("::")[0] for name in seen}
        seen += names
    assert len(seen) == len(set(seen)) == 15


@pytest.mark.parametrize("part", ["0/3", "4/3", "1", "a/b"])
def test_a_part_that_is_none_is_refused(part: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"--part is '{part}', not one of N parts such as"):
        part_of(part)


@pytest.mark.long
def test_a_file_beyond_its_budget_fails(folder: Path) -> None:
    status, printed = run(folder, "--long", "--budget")
    assert status == 0, printed
    (folder / "test_kinds.py").write_text(TESTS.replace("@pytest.mark.long\n", ""))
    status, printed = run(folder, "--budget")
    assert (status, "14 passed" in printed) == (pytest.ExitCode.TESTS_FAILED, True), printed
    assert "BEYOND BUDGET test_kinds.py: its quick tests took " in printed
    assert run(folder)[0] == 0


def needed(module: Module) -> Iterator[str]:
    for mark in NEEDS_MARK.finditer(module.text):
        yield from mark["names"].replace('"', "").split(", ")


def test_what_tests_need_is_in_the_table_and_said_by_the_marker(modules: list[Module]) -> None:
    tests = [module for module in modules if module.path.parts[0] == "tests"]
    asking = [
        module.path
        for module in tests
        if "pytest.importorskip(" in module.text and module.path.name != Path(__file__).name
    ]
    assert asking == [], "these skip what is missing without the marker needs"
    names = {name for module in tests for name in needed(module)}
    assert names - {"nothing"} <= set(NEEDS)
    assert set(NEEDS) <= names, "nothing needs these"
