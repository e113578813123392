"""Files that users give to a command: regular ones, pipes, and what is neither."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import graphdist as gd
from graphdist.tools.given_files import read_given
from graphdist.tools.viz import main as viz
from graphdist.tools.viz_targets import read_earlier


def text_of_a_graph() -> str:
    @gd.function
    def step(x: object) -> object:
        return x * 2  # type: ignore[operator]

    return str(step.trace(1.0).graph)


def test_a_text_may_come_by_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of_a_graph()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (lambda: viz([str(pipe)]), lambda: read_earlier(pipe)):
        code = f"open({str(pipe)!r}, 'w').write({text!r})"
        with subprocess.Popen([sys.executable, "-c", code]):
            assert not isinstance(read(), int) or "jax.mul" in capsys.readouterr().out


def test_a_text_that_is_larger_than_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"x" * 101)
    with pytest.raises(gd.ArgumentError, match=r"has more than 100 bytes, the limit"):
        read_given(path, "graph.txt", 100)
    assert len(read_given(path, "graph.txt", 101)) == 101


@pytest.mark.parametrize("arguments", [["/dev/zero"], ["{text}", "--compare", "/dev/zero"]])
def test_a_device_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    text = tmp_path / "graph.txt"
    text.write_text(text_of_a_graph())
    assert viz([each.format(text=text) for each in arguments]) == 2
    assert "/dev/zero is a device or a socket, and no file" in capsys.readouterr().err
