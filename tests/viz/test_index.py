"""The index of a program's functions: its rows, its links, and text that wants to be more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any  # Any: JSON

import jax
import pytest

from graphdist.tools.viz import main
from graphdist.viz.page import IndexRow, file_name, render_index
from tests.viz.browser import browse
from tests.viz.graphs import HOSTILE

PROGRAM = """
import jax.numpy as jnp
import graphdist as gd

def make_train(strategy, size=3):
    def step(x):
        return strategy.reduce("SUM", strategy.run(jnp.sin, args=(x,)), axis=None)
    return gd.function(step), (jnp.ones(size),)

def evaluation(strategy):
    return gd.function(lambda x: jnp.cos(x)), (jnp.ones(3),)

@gd.function
def constant():
    return jnp.ones(3) * 2.0

@gd.function
def scaled(values, factor):
    return values * factor

def make_broken(strategy):
    raise KeyError("<img src=x onerror=alert(1)>")

def other(values):
    return values

def make_part(strategy, size, *more, scale=1.0, **others):
    raise AssertionError

def make_devices(count, kind):
    raise AssertionError

def make_nothing():
    raise AssertionError

def _make_private(strategy):
    raise AssertionError
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    jax.devices()
    (tmp_path / "train.py").write_text(PROGRAM)
    return str(tmp_path / "train.py")


def seen_of(index: Path) -> Any:
    seen = browse("index.mjs", str(index))
    assert seen["console"] == []
    assert seen["violations"] == []
    assert seen["images"] == 0
    assert seen["narrow"] <= 0
    return seen


@pytest.mark.needs("browser")
def test_all_functions_of_a_program_have_pages(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pages"
    assert main([program, "--all", "--strategy", "mirrored:2", "-o", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "index.html")
    seen = seen_of(folder / "index.html")
    assert [row.split("\t")[0] for row in seen["rows"]] == [
        *("make_train", "evaluation", "constant", "scaled", "make_broken")
    ]
    assert seen["titles"] == ["step - graphdist", "lambda - graphdist", "constant - graphdist"]
    assert seen["rows"][0].startswith("make_train\t2\t")
    assert "scaled takes values, factor" in seen["rows"][3]
    assert "<img src=x onerror=alert(1)>" in seen["rows"][4]
    assert {path.name for path in folder.iterdir()} == {
        *("index.html", "make_train.html", "evaluation.html", "constant.html")
    }


def rows_of(index: Path) -> list[str]:
    return re.findall(r'<th scope="row">(?:<a [^>]*>)?([^<]*)', index.read_text())


def test_functions_that_need_more_than_the_strategy_are_left_out(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([program, "--all", "--strategy", "mirrored:2", "-o", str(tmp_path / "a")]) == 0
    names = ["make_train", "evaluation", "constant", "scaled", "make_broken"]
    assert rows_of(tmp_path / "a/index.html") == names
    said = " ".join(capsys.readouterr().err.split())
    left_out = "4 functions are left out: other, make_part, make_devices, make_nothing; a factory"
    assert said.startswith(f"graphdist-viz: {left_out} takes `strategy` first")
    more = ["--set", "size=4", "-o", str(tmp_path / "b")]
    assert main([program, "--all", "--strategy", "mirrored:2", *more]) == 0
    assert rows_of(tmp_path / "b/index.html") == [*names, "make_part"]
    example = str(Path(__file__).parents[2] / "examples" / "train_digits.py")
    assert main([example, "--all", "--strategy", "mirrored:2", "-o", str(tmp_path / "c")]) == 0
    assert rows_of(tmp_path / "c/index.html") == ["make_step"]


def test_an_index_of_hostile_names_is_text(tmp_path: Path) -> None:
    page = file_name(HOSTILE)
    assert re.fullmatch(r"[\w.-]+\.html", page, re.ASCII)
    (tmp_path / "index.html").write_text(
        render_index(HOSTILE, [IndexRow(HOSTILE, page, (HOSTILE,), HOSTILE, page)])
    )
    text = (tmp_path / "index.html").read_text()
    assert "<img" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train.py:make_train", "--all", "-o", "pages"], "of a file or module, not of train.py:"),
        (["train.py", "--all"], "--all writes several pages"),
        (
            ["train.py", "--all", "-o", "pages", "--compare", "old.json"],
            "--all has no use for --compare",
        ),
        (["empty.py", "--all", "-o", "pages"], "defines no factory of a step"),
        (["model.py", "--all", "-o", "pages"], "  hint: 1 function is left out: make_model; a fac"),
        (["broken.py", "--all", "-o", "pages"], "no function of broken.py can be shown"),
        (["broken.py", "--all", "-o", "pages"], "    make_step: broken.py:make_step raised KeyErr"),
        (["no.py", "--all", "-o", "pages"], "there is no file no.py"),
    ],
)
def test_what_has_no_index_is_refused(
    arguments: list[str],
    said: str,
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty.py").write_text("x = 3\n")
    (tmp_path / "model.py").write_text("def make_model(settings): raise AssertionError\n")
    (tmp_path / "broken.py").write_text("def make_step(strategy):\n    raise KeyError(3)\n")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
