"""Runs a program in several processes, through the launcher, and takes what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: JSON

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 120
"""What no job may take: a test fails then, it does not hang."""
_SAID = re.compile(r"\[worker (\d+)\] SAYS (.*)")


@dataclass(frozen=True)
class Outcome:
    """What became of a job: its exit status, what it wrote, and what each worker said."""

    status: int
    out: str
    err: str
    said: dict[int, list[Any]]


def command(workers: int, *program: str, options: tuple[str, ...] = ()) -> list[str]:
    """Return the command line of the launcher for a program of these tests."""
    launcher = [sys.executable, "-m", "graphdist.tools.run", "-n", str(workers), "--grace", "2"]
    launcher += options
    name, *arguments = program
    return [*launcher, str(PROGRAMS / f"{name}.py"), *arguments]


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a job: CPU devices only, and this checkout."""
    kept = {name: text for name, text in os.environ.items() if name != "TF_CONFIG"}
    return {**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), **variables}


def run(
    workers: int,
    *program: str,
    devices: int = 1,
    options: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a program on workers with so many devices each."""
    line = command(workers, *program, options=("--devices-per-worker", str(devices), *options))
    done = subprocess.run(
        line, env=environment(**(variables or {})), capture_output=True, text=True, timeout=SECONDS
    )
    said: dict[int, list[Any]] = {}
    for worker, text in _SAID.findall(done.stdout):
        said.setdefault(int(worker), []).append(json.loads(text))
    return Outcome(done.returncode, done.stdout, done.stderr, said)
