"""The program of the tutorial on several machines, run as the tutorial says: by the launcher."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorials" / "several-machines.md"


@pytest.mark.long
def test_two_workers_print_what_the_tutorial_shows(tmp_path: Path) -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    launcher = [sys.executable, "-m", "graphdist.tools.run", "-n", "2", "--devices-per-worker", "2"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    # Twice: the second job finds the checkpoint of the first, and nothing is left to do.
    for _ in range(2):
        done = subprocess.run(
            [*launcher, "train.py"],
            cwd=tmp_path,
            env={**environment, "CHECKPOINTS": str(tmp_path / "job")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert shown in done.stdout
