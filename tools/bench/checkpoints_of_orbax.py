"""Measure checkpoints against those of orbax.

    python -m graphdist.tools.bench.checkpoints_of_orbax --gigabytes 2

The same arrays are saved and restored by `gd.train.Checkpoint`, by orbax's `StandardCheckpointer`,
which saves in the background too, and by `gd.train.export` and `load` in orbax's format, in turns.
It prints how long a save holds the program up, how long until the checkpoint is on the disk, and
how long a restore takes; how long each takes to import, and how large its packages are. Then it
changes a bit in the files of an array 200 times, and counts how often a restore finds that, and
whether a save is on the disk when the process ends right after it.
"""

from __future__ import annotations

import importlib.metadata
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any  # Any: what is restored

import jax
import numpy as np
import orbax.checkpoint as ocp

import graphdist as gd
from graphdist.tools.bench.checkpoints import call_seconds
from graphdist.tools.console import CommandParser, console_tool

_ARRAYS = 16
_CHANGES = 200
_Seconds = tuple[float, float, float]


def of_graphdist(path: Path, variables: Sequence[gd.Variable]) -> _Seconds:
    """Return the seconds of the call, of the whole save, and of a restore."""
    checkpoint = gd.train.Checkpoint(variables=list(variables))
    start = time.perf_counter()
    held_up = call_seconds(lambda: checkpoint.write(path))
    checkpoint.sync()
    written = time.perf_counter() - start
    return held_up, written, call_seconds(lambda: checkpoint.restore(path).assert_consumed())


def of_orbax(path: Path, variables: Sequence[gd.Variable]) -> _Seconds:
    """Return the seconds of the call, of the whole save, and of a restore to the same devices."""
    arrays = [variable.storage.buffer for variable in variables]
    checkpointer = ocp.StandardCheckpointer()
    start = time.perf_counter()
    held_up = call_seconds(lambda: checkpointer.save(path, arrays))
    checkpointer.wait_until_finished()
    written = time.perf_counter() - start
    shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, arrays)
    return (
        held_up,
        written,
        call_seconds(lambda: jax.block_until_ready(checkpointer.restore(path, shapes))),
    )


def of_export(path: Path, variables: Sequence[gd.Variable]) -> _Seconds:
    """Return the seconds of an export, twice, and of a load."""
    written = call_seconds(lambda: gd.train.export(path, list(variables)))
    return (
        written,
        written,
        call_seconds(lambda: gd.train.load(path, list(variables)).assert_consumed()),
    )


WAYS: dict[str, Callable[[Path, Sequence[gd.Variable]], _Seconds]] = {
    "gd.train.Checkpoint": of_graphdist,
    "orbax": of_orbax,
    "gd.train.export, load": of_export,
}


def measure_ways(gigabytes: float, rounds: int, folder: Path) -> None:
    """Measure in turns, and print the medians."""
    rows = int(gigabytes * 2**30 / 4 / _ARRAYS / 1024)
    keys = jax.random.split(jax.random.key(0), _ARRAYS)
    variables = [gd.Variable(jax.random.normal(key, (rows, 1024))) for key in keys]
    seconds: dict[str, list[_Seconds]] = {name: [] for name in WAYS}
    for number in range(rounds + 1):
        for name, way in WAYS.items():
            found = way(folder / "saved", variables)
            size = sum(file.stat().st_size for file in (folder / "saved").rglob("*"))
            shutil.rmtree(folder / "saved")
            if number:  # the first warms the disk and the compiler
                seconds[name].append(found)
                shown = " ".join(f"{each:6.2f}" for each in found)
                print(f"{name:22} {shown}   {size / 2**30:.2f} GiB", flush=True)
    print(f"medians of {rounds} rounds, in seconds: held up, written, restored")
    for name, found_of_all in seconds.items():
        medians = map(statistics.median, zip(*found_of_all, strict=True))
        print(f"{name:22} {' '.join(f'{each:6.2f}' for each in medians)}")


def changed_bits(folder: Path) -> None:
    """Print how often a restore finds a changed bit of an array."""
    values = np.random.default_rng(0).integers(0, 2**32, (256, 256), np.uint32)
    variables = [gd.Variable(values)]
    generator = random.Random(0)
    for name, way in WAYS.items():
        found = 0
        way(folder / "saved", variables)
        (file,) = (file for file in (folder / "saved").rglob("*") if is_of_array(file, values))
        content = file.read_bytes()
        for _ in range(_CHANGES):
            changed = bytearray(content)
            changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
            file.write_bytes(changed)
            try:
                restored = RESTORES[name](folder / "saved", values)
            except Exception:  # each has errors of its own
                found += 1
            else:
                assert not np.array_equal(restored, values), "the bit had no effect"
        shutil.rmtree(folder / "saved")
        print(f"{name:22} finds {found} of {_CHANGES} changed bits")


def is_of_array(file: Path, values: np.ndarray[Any, Any]) -> bool:
    """Return whether a file has the elements of an array of random integers."""
    return file.is_file() and file.stat().st_size >= values.nbytes


def _restored(path: Path, values: np.ndarray[Any, Any]) -> Any:
    checkpoint = gd.train.Checkpoint(variables=[np.zeros_like(values)])
    checkpoint.restore(path)
    return checkpoint.variables[0]


RESTORES: dict[str, Callable[[Path, np.ndarray[Any, Any]], Any]] = {
    "gd.train.Checkpoint": _restored,
    "orbax": lambda path, values: ocp.StandardCheckpointer().restore(path, [values])[0],
    "gd.train.export, load": lambda path, values: gd.train.load(path)["0"][...],
}

_AT_THE_END = {
    "gd.train.Checkpoint": "import graphdist as gd; gd.train.Checkpoint(w=w).write(path)",
    "orbax": "import orbax.checkpoint as ocp; ocp.StandardCheckpointer().save(path, {'w': w})",
}


def ended_processes(folder: Path) -> None:
    """Print whether a save is on the disk when the process ends right after it."""
    for name, save in _AT_THE_END.items():
        path = folder / "last"
        code = f"import jax.numpy as jnp; w = jnp.ones(2**24); path = {str(path)!r}; {save}"
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        what = "is" if path.exists() else "is not"
        print(f"{name:22} what a process saves last {what} on the disk")
        shutil.rmtree(path, ignore_errors=True)


def import_seconds(module: str, beside: str) -> float:
    """Return how much longer a process takes that imports a module beside another one."""
    clock = "time.perf_counter()"
    code = f"import {beside}, time; t = {clock}; import {module}; print({clock} - t)"
    run = [sys.executable, "-c", code]
    return min(
        float(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    )


def sizes_of_packages(package: str, without: set[str]) -> dict[str, int]:
    """Return the size in bytes of a package and of all it requires, besides some."""
    sizes: dict[str, int] = {}
    waiting = [package]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in sizes or name in without:
            continue
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform
        files = [Path(str(found.locate_file(file))) for file in found.files or ()]
        sizes[name] = sum(file.stat().st_size for file in files if file.exists())
        required = [each for each in found.requires or () if "extra ==" not in each]
        waiting += [re.split(r"[^\w.-]", each)[0] for each in required]
    return sizes


@console_tool("checkpoints_of_orbax")
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = CommandParser(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", help="where to write; by default the system's for such")
    options = parser.parse_args(arguments)
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("orbax-checkpoint", "tensorstore")
    )
    ours = {*sizes_of_packages("jax", set()), *sizes_of_packages("networkx", set())}
    sizes = sizes_of_packages("orbax-checkpoint", ours)
    print(versions)
    print(f"{len(sizes)} packages beside those of graphdist: {sum(sizes.values()) / 2**20:.0f} MiB")
    print(f"  {', '.join(f'{name} {size / 2**20:.1f}' for name, size in sizes.items())}")
    for module in ("orbax.checkpoint", "tensorstore", "graphdist"):
        print(f"import {module} beside jax: {import_seconds(module, 'jax'):.2f} s", flush=True)
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        changed_bits(Path(folder))
        ended_processes(Path(folder))
        measure_ways(options.gigabytes, options.rounds, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
