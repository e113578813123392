"""What a command line names as the step to compile, and what it is told when that is wrong."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path

import pytest

import graphdist as gd
from graphdist.tools.steps import make_step, parse_settings
from graphdist.tools.targets import load_factory, source_of
from graphdist.tools.viz import main as viz

GOOD = """
import jax
import jax.numpy as jnp
import graphdist as gd

def make_step(strategy, size: int = 4):
    step = gd.function(lambda x: x * 2)
    return step, (jax.ShapeDtypeStruct((size,), jnp.float32),)

def make_failing_step(strategy):
    return {}["missing"]

def make_nothing(strategy):
    return None

def make_undecorated(strategy):
    return (lambda x: x), ()

def make_loose_args(strategy):
    return gd.function(lambda x: x), [1]

value = 3
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "steps.py"
    file.write_text(GOOD)
    return str(file)


def made(target: str, **settings: object) -> tuple[object, tuple[object, ...]]:
    return make_step(target, gd.get_strategy(), settings)


@pytest.mark.parametrize("suffix", ["", ":make_step"])
def test_a_file_names_a_factory(path: str, suffix: str) -> None:
    function, (x,) = made(path + suffix, size=3)
    assert isinstance(function, gd.Function)
    assert x.shape == (3,)  # type: ignore[attr-defined]


def test_a_module_names_a_factory(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert load_factory("steps:make_step")("strategy")[1][0].shape == (4,)


def test_a_file_imports_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")  # restores the path
    (tmp_path / "neighbour.py").write_text("def make_step(strategy): return 1\n")
    (tmp_path / "main.py").write_text("from neighbour import make_step\n")
    assert load_factory(str(tmp_path / "main.py"))("strategy") == 1


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("{path}:make_setp", "did you mean make_step"),
        ("{path}:value", "has a int, no function, 'value'"),
        ("{path}x.py", "did you mean"),
        ("{path}:make_failing_step", "raised KeyError: 'missing'"),
        ("{path}:make_nothing", "not (function, args)"),
        ("{path}:make_undecorated", "decorate the step with @gd.function"),
        ("{path}:make_loose_args", "write (batch,) for one argument"),
        ("no_such_module:make_step", "there is no module 'no_such_module'"),
        ("{path}:not a name", "neither file.py:name nor module:name"),
    ],
)
def test_bad_targets_are_refused(path: str, target: str, says: str) -> None:
    with pytest.raises(gd.ArgumentError) as caught:
        made(target.format(path=path))
    assert says in str(caught.value)


def test_an_error_of_the_factory_names_its_line(path: str) -> None:
    with pytest.raises(gd.ArgumentError) as caught:
        made(f"{path}:make_failing_step")
    assert f'{path}:11, in make_failing_step\n    return {{}}["missing"]' in str(caught.value)


def test_an_unknown_setting_is_refused_before_the_factory_runs(path: str) -> None:
    with pytest.raises(gd.ArgumentError, match="takes no setting 'sise'; its settings are size"):
        made(f"{path}:make_step", sise=1)


@pytest.mark.parametrize(
    ("text", "says"), [("x = ", "SyntaxError"), ("1 / 0", "ZeroDivisionError: division by zero")]
)
def test_a_file_that_fails_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text + "\n")
    with pytest.raises(gd.ArgumentError) as caught:
        load_factory(str(file))
    assert says in str(caught.value)
    assert f"{file}:1" in str(caught.value)


ENDING = """
import argparse
import sys
import graphdist as gd

def make_step(strategy):
    sys.exit("too few devices")

@gd.function
def step(x):
    sys.exit()

def make_exiting_step(strategy):
    return step, (1.0,)
"""


@pytest.mark.parametrize(
    ("text", "target", "says", "line"),
    [
        (
            "import sys; sys.exit()",
            "",
            "cannot be imported: it ended the program with sys.exit()",
            1,
        ),
        ("import sys; sys.exit(0)", "", "ended the program with sys.exit(0)", 1),
        ("raise SystemExit('done')", "", "ended the program with sys.exit('done')", 1),
        ("import argparse\nargparse.ArgumentParser().parse_args(['x'])", "", "sys.exit(2)", 2),
        (ENDING, "", "steps.py ended the program with sys.exit('too few devices')", 7),
        (ENDING, ":make_exiting_step", "with sys.exit() when it was traced", 11),
    ],
)
def test_a_target_that_ends_the_program_is_refused_with_its_line(
    tmp_path: Path,
    text: str,
    target: str,
    says: str,
    line: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "steps.py"
    file.write_text(text)
    assert viz([f"{file}{target}"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert f"{file}:{line}" in said.err
    assert 'under if __name__ == "__main__"' in " ".join(said.err.split())


def test_a_module_that_ends_the_program_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_the_program.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(gd.ArgumentError, match=r"sys\.exit\(0\)") as caught:
        load_factory("ends_the_program:make_step")
    assert "ends_the_program.py:2" in str(caught.value)


def test_a_setting_has_one_value() -> None:
    with pytest.raises(gd.ArgumentError, match="setting 'batch' is given twice"):
        parse_settings(["batch=3", "rate=1", "batch=4"])


@pytest.mark.parametrize("value", ["{[]: 1}", "+".join(["1"] * 20_000)], ids=len)
def test_a_setting_whose_literal_cannot_be_made(value: str) -> None:
    with pytest.raises(gd.ArgumentError, match="'batch' has a value that Python cannot read"):
        parse_settings([f"batch={value}"])


@pytest.mark.parametrize("text", ["batch", "=3", "a-b=3"])
def test_a_setting_has_a_name_and_a_value(text: str) -> None:
    with pytest.raises(gd.ArgumentError, match="not of the form name=value"):
        parse_settings([text])


def test_a_file_whose_path_is_not_in_the_encoding_of_the_system(tmp_path: Path) -> None:
    program = "def make_step(strategy):\n    raise KeyError('mine')\n"
    for name in ("schritt ü.py", "a:b.py", "neu\nzeile.py", "-x.py", "not utf-8 \udcff.py"):
        path = tmp_path / name
        path.write_text(program)
        factory = load_factory(f"{path}:make_step")
        assert factory.__code__.co_filename.encode()  # XLA takes it
        assert Path(sys.modules[factory.__module__].__file__ or "").exists()
        with pytest.raises(KeyError) as caught:
            factory(None)
        source = source_of(caught.value, factory)
        assert source.frame is not None
        assert source.frame.line == 2
        assert linecache.getline(source.frame.file, 2).strip() == "raise KeyError('mine')"
