"""The benchmark of several workers: each program runs on both systems. No time is asserted."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.multi_worker.launch import environment


@pytest.mark.long
def test_each_program_is_compared() -> None:
    command = [sys.executable, "-m", "graphdist.tools.bench.workers", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--steps", "1"], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    line = r"\[worker 0\] (.*), 2 workers: .* by hand .*x, at most (.*)x"
    lines = re.findall(line, done.stdout)
    assert lines == [("4 layers of 256", "1.05"), ("100 gradients of 8 or 64", "0.3")]
    compared = r"8 layers of 1024, a comparison of values: .* at one in 1000 steps, at most 1%"
    assert re.search(compared, done.stdout)
