"""The benchmark's systems that need a process of their own, and the protocol with it.

A process is `python -m graphdist.tools.bench.on_<package> program replicas steps`, with options. It
builds the program, runs the first steps, and prints one line of JSON with the losses, the metrics
after them and the seconds of its compilation. Then it reads counts, one per line. For each it runs
that many steps and prints their seconds as JSON in one line. It ends with its input. Other lines
that it prints do not begin with "{".
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any  # Any: JSON

from graphdist.tools.bench.programs import PROGRAMS, TINY, BenchProgram

SHARDED_PACKAGES = {"fully_shard": "torch"}
"""Systems that store parameters in shards, by name, with the package that each needs."""
PACKAGES = {"tensorflow": "tensorflow", "ddp": "torch", "inductor": "torch"}
"""The other systems."""
ALL_PACKAGES = {**PACKAGES, **SHARDED_PACKAGES}
COMPILED = "inductor"


def packages_of(program: BenchProgram) -> dict[str, str]:
    """Return the systems on which a program runs in a separate process, with their packages."""
    if program.kind == "muon" or program.cores > 1:
        return {}
    return SHARDED_PACKAGES if program.shards_parameters else PACKAGES


def is_installed(system: str) -> bool:
    """Return whether the package of a system, and the compiler that it calls, are installed."""
    has_compiler = system != COMPILED or shutil.which("c++") is not None
    return has_compiler and importlib.util.find_spec(ALL_PACKAGES[system]) is not None


def runs_on(system: str, platform: str) -> bool:
    """Return whether a system is measured on a platform: TensorFlow on CPUs alone, none on TPUs."""
    return platform == "cpu" or (platform == "gpu" and ALL_PACKAGES[system] == "torch")


class Process:
    """One benchmark program on one system, run in a separate process."""

    def __init__(
        self, system: str, program: str, replicas: int, platform: str = "cpu", *, is_tiny: bool
    ) -> None:
        """Remember what to run."""
        self.system = system
        module = f"graphdist.tools.bench.on_{ALL_PACKAGES[system]}"
        self.command = [sys.executable, "-m", module, program, str(replicas)]
        self.options = ["--platform", platform]
        self.options += ["--tiny"] if is_tiny else []
        self.options += ["--compiled"] if system == COMPILED else []
        self._process: subprocess.Popen[str] | None = None

    def start(self, steps: int) -> dict[str, Any]:
        """Start it and return the results of its first steps."""
        self._process = subprocess.Popen(
            [*self.command, str(steps), *self.options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        results = self._line()
        results["losses"] = tuple(results["losses"])
        return results

    def seconds(self, steps: int) -> list[float]:
        """Run steps and return the seconds of each."""
        assert self._process is not None
        assert self._process.stdin is not None
        print(steps, file=self._process.stdin, flush=True)
        seconds: list[float] = self._line()["seconds"]
        return seconds

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def _line(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                message: dict[str, Any] = json.loads(line)
                return message
        raise RuntimeError(f"the process of {self.system} ended: run {' '.join(self.command)} 3")


@dataclass(frozen=True)
class Served:
    """What a process serves: a program, on how many replicas of which platform."""

    program: BenchProgram
    replicas: int
    first_steps: int
    platform: str
    is_compiled: bool


def from_command_line() -> Served:
    """Return what the command line of this process asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("replicas", type=int)
    parser.add_argument("first_steps", type=int)
    parser.add_argument("--platform", default="cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    asked = parser.parse_args()
    program = (TINY if asked.tiny else PROGRAMS)[asked.program]
    return Served(program, asked.replicas, asked.first_steps, asked.platform, asked.compiled)


def serve(
    step: Callable[[], float],
    results: Callable[[], dict[str, float]],
    first_steps: int,
    announce: Callable[[int], object] = lambda steps: None,
    *,
    compiles: bool = True,
) -> None:
    """Run the first steps of a program, and then as many steps as each line of stdin asks for.

    The losses of the first steps, and the seconds of the later ones, are printed as JSON. `step`
    runs one step to its end and returns the loss. `announce` is called with the count of steps
    before they run. If the system `compiles`, it does so in the first step: the time of compilation
    is the difference between the first step and the mean of the next ones.
    """
    announce(first_steps)
    start = time.perf_counter()
    losses = [step()]
    first = time.perf_counter() - start
    start = time.perf_counter()
    losses += [step() for _ in range(first_steps - 1)]
    later = (time.perf_counter() - start) / max(first_steps - 1, 1)
    compilation = max(first - later, 0.0) if compiles else None
    _print_json({"losses": losses, "results": results(), "compile_seconds": compilation})
    for line in sys.stdin:
        seconds = []
        announce(int(line))
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        _print_json({"seconds": seconds})


def _print_json(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)
