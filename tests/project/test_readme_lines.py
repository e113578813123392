"""The program that runs the README's lines: all of them, in fresh clones; it tells a failure."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests import readme_lines

MAKES = f"{readme_lines.MAKES_ENVIRONMENT}--without-pip .venv"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository whose README stands for ours."""
    path = tmp_path / "repository"
    path.mkdir()
    (path / "file.txt").write_text("committed")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=path, check=True)
    (path / "later.txt").write_text("not committed")
    monkeypatch.setattr(readme_lines, "ROOT", path)
    return path


def test_the_lines_are_those_that_the_readme_begins_with(root: Path) -> None:
    lines = readme_lines.lines_of((root / "README.md").read_text(encoding="utf-8"))
    assert max(map(len, lines)) <= 90  # what a page of GitHub shows
    assert [line.split()[-1] for line in lines] == [
        "'.[examples]'",
        "examples/train_digits.py",
        "examples/train_keras.py",
        ".venv/bin/pytest",
    ]
    assert lines[0].startswith(readme_lines.MAKES_ENVIRONMENT)


@pytest.mark.parametrize("script", [".ci/run", "check"])
def test_the_scripts_call_it_as_it_is_called(root: Path, script: str) -> None:
    text = re.sub(r"\$\(part 6\)", "2/6", (root / script).read_text(encoding="utf-8"))
    calls = re.findall(r"python3? tests/readme_lines\.py(.*?)(?:;|$)", text, re.MULTILINE)
    assert calls
    for call in calls:
        options = readme_lines.options_of(shlex.split(call))
        assert ("2/6" in call) == (options.pytest == "--part=2/6")


def test_an_environment_begins_a_clone_of_what_is_committed(
    repository: Path, tmp_path: Path
) -> None:
    lines = [
        f"{MAKES} && ls > seen",
        "ls -a > again",
        f"{MAKES} && .venv/bin/python -c 'import sys; print(sys.prefix)' > seen",
    ]
    assert readme_lines.run(lines, tmp_path, os.environ)
    first, second = tmp_path / "clone1", tmp_path / "clone2"
    assert (first / "seen").read_text().split() == ["file.txt", "seen"]
    assert ".venv" in (first / "again").read_text().split()
    assert (second / "seen").read_text().strip() == str(second / ".venv")
    assert not (second / "again").exists()


def test_the_first_line_that_fails_ends_it(
    repository: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not readme_lines.run([MAKES, "exit 3", "touch seen"], tmp_path, os.environ)
    assert not (tmp_path / "clone1" / "seen").exists()
    assert "$ exit 3\nexit status 3, " in capfd.readouterr().out


def test_the_shell_has_the_python_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    python = tmp_path / "python3.99"
    python.write_text("#!/bin/sh\necho 3.99 $PYTHONPATH $(cat $PIP_CONSTRAINT)")
    python.chmod(0o755)
    variables = readme_lines.environment(tmp_path, str(python), "0.1.0", "")
    said = subprocess.run("python3", env=variables, capture_output=True, text=True, shell=True)
    assert said.stdout.split() == ["3.99", "jax==0.1.0", "jaxlib==0.1.0"]
