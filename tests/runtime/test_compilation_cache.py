"""JAX's persistent compilation cache, where the user set one: the next process compiles no step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("cached_step.py")


@pytest.mark.long
def test_a_second_process_finds_the_step(tmp_path: Path) -> None:
    first, second = (
        subprocess.run(
            [sys.executable, str(PROGRAM), str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout.split()
        for _ in range(2)
    )
    assert first[:2] == ["0", "1"]
    assert second[:2] == ["1", "0"]
    assert first[2:] == second[2:]
