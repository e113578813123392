"""Changed files, each used in a process that must not die of it.

    python -m tests.mutations.trial --artifacts 2000 --texts 2000

A process uses files one after the other and says what came of each; another goes on where it died
or hung. Besides, nothing is written but the changed file, and memory stays below a limit.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Any  # Any: JSON

ROOT = Path(__file__).parents[2]
KINDS = ("artifacts", "texts")
MOST_MEMORY = 2**30
SECONDS = 90
"""What no file may take, on a machine that has other things to do."""
A_PROCESS = 250
"""Files that one process uses."""


@dataclass
class Result:
    """What came of files: exceptions by class, and what must not be."""

    kind: str
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    memory: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return the figures in a few lines."""
        outcomes = ", ".join(f"{name} {count}" for name, count in self.outcomes.most_common())
        return "\n".join(
            [
                f"{self.outcomes.total()} {self.kind} in {self.seconds:.0f} s, "
                f"{self.memory / 2**20:.0f} MiB at most: {outcomes}",
                *self.faults,
            ]
        )


def run_trials(kind: str, count: int, first: int = 0) -> Result:
    """Return what came of so many changed files, from a seed on."""
    result, started = Result(kind), time.monotonic()
    following = first
    while following < first + count:
        following = _run_process(result, following, min(first + count, following + A_PROCESS))
        print(f"{following - first} of {count} {kind}", *result.faults, sep="\n", file=sys.stderr)
    result.seconds = time.monotonic() - started
    if result.memory > MOST_MEMORY:
        result.faults.append(f"{result.memory / 2**20:.0f} MiB of memory")
    return result


def _run_process(result: Result, first: int, end: int) -> int:
    """Use files in a process of their own, and return the seed to go on with."""
    with tempfile.TemporaryDirectory() as folder:
        work, home = Path(folder, "work"), Path(folder, "home")
        work.mkdir()
        home.mkdir()
        away = {name: str(home) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutations.trial", "--use", result.kind, str(work),
             str(first), str(end)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=work,
            env={**os.environ, **away, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        assert process.stdout is not None
        seed = first
        for line in _lines(process.stdout):
            said = json.loads(line)
            seed = said["seed"] + 1
            result.outcomes[said["outcome"]] += 1
            result.memory = max(result.memory, said["memory"])
            result.faults += [f"seed {said['seed']}: {fault}" for fault in said["faults"]]
        process.kill()  # it has ended, or hangs
        process.stdout.close()
        if (status := process.wait()) != 0 or seed < end:
            result.outcomes["died"] += 1
            result.faults.append(f"seed {seed}: the process ended with status {status}")
            seed += 1
        left = [path.relative_to(folder) for path in Path(folder).rglob("*") if path.is_file()]
        if extra := [str(path) for path in left if path.stem != "changed"]:
            result.faults.append(f"seeds {first} to {seed}: left {', '.join(extra)}")
    return seed


def _lines(out: IO[bytes]) -> Iterator[bytes]:
    """Yield what a process says, until it ends or says nothing for too long."""
    while select.select([out], [], [], SECONDS)[0]:
        line = out.readline()
        if not line:
            return
        yield line


def use(kind: str, folder: Path, first: int, end: int) -> None:
    """Use changed files, and say of each what came of it."""
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    from graphdist.errors import GraphdistError
    from tests.mutations import artifacts, texts
    from tests.mutations.peak_memory import peak_bytes

    say = os.fdopen(os.dup(1), "w")
    trials: Any = {"artifacts": artifacts.Trials, "texts": texts.Trials}[kind](folder)
    written: set[str] = set()
    changing = [True]

    def watch(event: str, given: tuple[Any, ...]) -> None:
        if event != "open" or changing[0] or isinstance(given[0], int):
            return  # what is open already, such as a pipe, is no file of another name
        path, _, flags = given
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path) != os.devnull:
            written.add(str(path))

    sys.addaudithook(watch)
    for seed in range(first, end):
        changing[0] = True
        trials.change(Random(seed))
        changing[0] = False
        outcome, faults = "used", []
        try:
            try:
                trials.use()
            except GraphdistError as error:
                outcome = type(error).__name__
                str(error).encode()  # whatever is in it can be printed
        except BaseException as error:
            outcome = f"{type(error).__name__}, not ours"
            faults = [f"{type(error).__name__}: {str(error)[:200]}"]
        faults += [f"wrote {path}" for path in written]
        written.clear()
        said = {"seed": seed, "outcome": outcome, "memory": peak_bytes(), "faults": faults}
        print(json.dumps(said), file=say, flush=True)
    os._exit(0)  # what a failed step left on the devices has nobody to wait for it


def main() -> None:
    """Run the trials that are asked for, and print what came of them."""
    parser = argparse.ArgumentParser(description="Use changed files, and see what becomes of it.")
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=0, metavar="COUNT")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--use", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.use:
        kind, folder, first, end = given.use
        use(kind, Path(folder), int(first), int(end))
    results = [run_trials(kind, getattr(given, kind), given.seed) for kind in KINDS]
    print(*[result for result in results if result.outcomes], sep="\n")
    sys.exit(any(result.faults for result in results))


if __name__ == "__main__":
    main()
