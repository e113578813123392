"""Measure checkpoints against plain copies and plain files.

    python -m graphdist.tools.bench.checkpoints --gigabytes 2

Variables are saved and restored. In turns with that, the same bytes are copied to the memory of the
host, and written to files that are synced to the disk. For each round it prints how long
`Checkpoint.write` held up the program, against the copy, and how long the checkpoint took to reach
the disk, against the files; then the medians of all rounds, and how long a step takes while a
checkpoint is written and while none is: the writing thread needs a processor, too.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any  # Any: numpy's arrays

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from graphdist.tools.console import CommandParser, console_tool

_ARRAYS = 16


def call_seconds(call: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def copied(variables: Sequence[gd.Variable]) -> list[Any]:
    """Return copies of the values in the memory of the host."""
    return [np.array(variable.storage.buffer.addressable_data(0)) for variable in variables]


def write_files(folder: Path, arrays: Sequence[Any]) -> None:
    """Write arrays to files, each synced."""
    folder.mkdir()
    for index, array in enumerate(arrays):
        with open(folder / str(index), "wb") as file:
            file.write(memoryview(array).cast("B"))
            file.flush()
            os.fsync(file.fileno())


def measure_checkpoints(gigabytes: float, rounds: int, folder: Path) -> None:
    """Measure and print."""
    rows = int(gigabytes * 2**30 / 4 / _ARRAYS / 1024)
    keys = jax.random.split(jax.random.key(0), _ARRAYS)
    variables = [gd.Variable(jax.random.normal(key, (rows, 1024))) for key in keys]
    size = sum(variable.size * 4 for variable in variables) / 2**30
    checkpoint = gd.train.Checkpoint(variables=variables)
    print(f"{len(variables)} variables, {size:.2f} GiB; in seconds")
    print("  copy  held up    files  checkpoint  restored")
    measure_round(checkpoint, folder)  # warms the disk and the compiler
    seconds = []
    for _ in range(rounds):
        seconds.append(measure_round(checkpoint, folder))
        print("{:6.2f} {:8.2f} {:8.2f} {:11.2f} {:9.2f}".format(*seconds[-1]), flush=True)
    copy, held_up, files, written, _ = map(statistics.median, zip(*seconds, strict=True))
    print(f"medians of {rounds} rounds: held up {held_up / copy:.2f} times the copy,")
    print(f"written at {files / written:.0%} of the speed of files, {size / written:.2f} GiB/s")
    measure_steps(checkpoint, folder)


def measure_round(checkpoint: gd.train.Checkpoint, folder: Path) -> tuple[float, ...]:
    """Return the seconds of a copy, the call of `write`, files, a checkpoint and a restore."""
    path = folder / "checkpoint"
    arrays: list[Any] = []
    copy = call_seconds(lambda: arrays.extend(copied(checkpoint.variables)))
    files = call_seconds(lambda: write_files(folder / "files", arrays))
    arrays.clear()
    shutil.rmtree(folder / "files")
    held_up = call_seconds(lambda: checkpoint.write(path))
    written = held_up + call_seconds(checkpoint.sync)
    restored = call_seconds(lambda: checkpoint.restore(path).assert_consumed())
    shutil.rmtree(path)
    return copy, held_up, files, written, restored


def measure_steps(checkpoint: gd.train.Checkpoint, folder: Path) -> None:
    """Print how long a step takes while a checkpoint is written, and while none is."""
    w = gd.Variable(jnp.ones((512, 512)))

    @gd.function
    def step() -> None:
        w.assign(jnp.tanh(w[...] @ w[...]))

    def timed_step() -> None:
        step()
        w.storage.buffer.block_until_ready()

    timed_step()
    alone = statistics.median(call_seconds(timed_step) for _ in range(200))
    checkpoint.write(folder / "checkpoint")
    beside = [call_seconds(timed_step) for _ in range(200)]
    checkpoint.sync()
    print(
        f"a step takes {alone * 1e3:.2f} ms, while a checkpoint is written "
        f"{statistics.median(beside) * 1e3:.2f} ms, at most {max(beside) * 1e3:.0f} ms"
    )


@console_tool("checkpoints")
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = CommandParser(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", help="where to write; by default the system's for such")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        measure_checkpoints(options.gigabytes, options.rounds, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
