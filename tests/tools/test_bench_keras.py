"""The benchmark of Keras's models: each model is trained by both systems. No time is asserted."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.multi_worker.launch import environment


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "graphdist.tools.bench", "keras", *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200)


@pytest.mark.long
def test_each_model_is_trained_by_both_systems() -> None:
    done = bench("--rounds", "1", "--steps", "2", "--steps-per-execution", "2", "auto")
    assert done.returncode == 0, done.stderr
    row = r"^\| ([\w ]+) \| (\w+) \| [\d.]+ \| [\d.]+ \| [\d.]+ \|$"
    names = ["dense", "convnet", "LSTM", "transformer", "embedding", "two outputs"]
    expected = [(name, setting) for name in names for setting in ("2", "auto")]
    assert re.findall(row, done.stdout, re.M) == expected


@pytest.mark.long
def test_a_model_that_is_not_there_is_told() -> None:
    done = bench("perceptron")
    assert done.returncode == 2
    assert "no such model: perceptron" in done.stderr
