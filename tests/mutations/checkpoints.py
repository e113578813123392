"""Checkpoints changed at random: what reads them refuses in words of ours, or reads what was saved.

    python -m tests.mutations.checkpoints --count 2000

A mutation is a number: its generator chooses what is changed. Child processes take many each, and
are watched: a crash, an error that is not of `graphdist.errors`, a value that was not saved, a file
outside the folder that changed, much memory or much time is a failure that names the number.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import graphdist as gd
from graphdist.runtime.files.checkpoint_index import INDEX, sealed
from tests.mutations.peak_memory import peak_bytes
from tests.train.subjects import FORMAT_1, files_of, nested, put_in_slices

MOST_MEBIBYTES = 1024
_SECONDS_EACH = 20
_ROOT = Path(__file__).parents[2]


HOSTILE: list[Any] = [
    *(None, True, False, -1, 0, 1, 3, 2**31, 2**40, 2**63, 10**400, -(10**30)),
    *(0.5, 1e999, float("nan"), -1e999, "", "0", "x", "F", "|O", "object", "float32", "key<fry>"),
    *("../../outside/file", "/etc/passwd", "part-0/0", "\x00", "\ud800", "a" * 10_000, "(" * 300),
    *([], {}, [[]], [4, 2**40], [2**40, 2**40], [-1, 4], ["4"], [1] * 200, {"a": 1}),
    *({"hex": "0x1"}, {"hex": "-0x" + "f" * 10**6}, {"hex": "0xg"}, {"hex": "1_0"}),
    *(nested(60), nested(900), ["float32", [4, 2**40]], ["object", [4]], ["uint32", []]),
]


def objects(step: int = 0) -> dict[str, Any]:
    """Return objects of every kind, which hold a number."""
    return {
        "params": {"w": np.full((4, 3), step, np.float32), "b": gd.Variable(np.full(5, step))},
        "more": [np.full((2, 3), step, np.int8), np.full((2, 3), -step, np.int8)],
        "mean": gd.metrics.Mean(),
        "key": jax.random.key(step),
        "step": step,
        "rate": step / 2,
        "name": str(step),
        "iterator": iter(gd.data.Dataset.range(50).shuffle(5, seed=1)),
    }


def contents(checkpoint: gd.train.Checkpoint) -> Any:
    """Return what the objects of a checkpoint hold, to be compared."""
    found = checkpoint.objects
    arrays = [found["params"]["w"], found["params"]["b"].read_value(), *found["more"]]
    arrays.append(np.asarray(jax.random.key_data(found["key"])))
    values = [found[name] for name in ("step", "rate", "name")]
    return [np.asarray(array).tolist() for array in arrays], values


def make_originals(folder: Path) -> None:
    """Save two checkpoints, and put one of format 1 beside them."""
    for step in (1, 2):
        checkpoint = gd.train.Checkpoint(**objects(step))
        checkpoint.write(folder / f"ckpt-{step}")
        checkpoint.sync()
    put_in_slices(folder / "ckpt-2", "params/w", 1, [1, 2])
    shutil.copytree(FORMAT_1, folder / "old-1")


# What is changed. Each returns whether a right checksum covers it.


def turn_bits(chosen: random.Random, path: Path) -> bool:
    file = chosen.choice(files_of(path))
    content = bytearray(file.read_bytes())
    for _ in range(chosen.choice([1, 1, 1, 2, 8])):
        place = chosen.randrange(len(content))
        content[place] ^= 1 << chosen.randrange(8)
    file.write_bytes(content)
    return False


def write_over(chosen: random.Random, path: Path) -> bool:
    file = chosen.choice(files_of(path))
    content = file.read_bytes()
    start = chosen.randrange(len(content))
    put = chosen.choice([chosen.randbytes(chosen.randrange(1, 64)), bytes(8), b"[" * 10**5])
    file.write_bytes(content[:start] + put + content[start + len(put) :])
    return False


def change_length(chosen: random.Random, path: Path) -> bool:
    file = chosen.choice(files_of(path))
    size = file.stat().st_size
    os.truncate(file, chosen.choice([0, chosen.randrange(size), size - 1, size + 1, 2**33]))
    return False


def take_away(chosen: random.Random, path: Path) -> bool:
    found = chosen.choice(list(path.rglob("*")))
    shutil.rmtree(found) if found.is_dir() else found.unlink()
    return False


def swap(chosen: random.Random, path: Path) -> bool:
    first, second = chosen.sample(files_of(path), 2)
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    return False


def take_from_another(chosen: random.Random, path: Path) -> bool:
    others = [other for other in path.parent.iterdir() if other.is_dir() and other != path]
    other = chosen.choice(others)
    chosen.choice(files_of(path)).write_bytes(chosen.choice(files_of(other)).read_bytes())
    return False


def put_no_file(chosen: random.Random, path: Path) -> bool:
    file = chosen.choice(files_of(path))
    file.unlink()
    kind = chosen.randrange(5)
    if kind == 0:
        os.mkfifo(file)
    elif kind == 1:
        file.mkdir()
    else:
        same = path.with_name("ckpt-1") / file.relative_to(path)
        file.symlink_to(chosen.choice([Path("/dev/zero"), Path("/proc/self/mem"), same]))
    return False


def put_beside(chosen: random.Random, path: Path) -> bool:
    """Put a link, a pipe or a folder where a writer of checkpoints has files of its own."""
    stem = path.name.partition("-")[0]
    names = [f".{stem}.writer", f".{stem}-9.writer", f"{path.name}/kept", f"{stem}-9"]
    names += [f"{stem}-9.replaced", f"{stem}-9.partial", f"{stem}-9.01ab.partial", f"{stem}-8"]
    file, outside = path.parent / chosen.choice(names), path.parent.parent / "outside"
    kind = chosen.randrange(8)
    if kind == 0:
        os.mkfifo(file)
    elif kind == 1:
        file.mkdir()
    elif kind == 2:
        file.hardlink_to(outside / "file")
    else:
        file.symlink_to(
            chosen.choice([outside, outside / "file", outside / "new", Path("/dev/zero")])
        )
    return False


def rename(chosen: random.Random, path: Path) -> bool:
    found = chosen.choice(list(path.rglob("*")))
    other = found.with_name(chosen.choice(["part-1", "99", "0.0.0", INDEX + "x"]))
    if not other.exists():
        found.rename(other)
    return False


def change_json(chosen: random.Random, path: Path) -> bool:
    """Drop a field of the index or of an array's metadata, or replace it; seal the index or not."""
    named = [file for file in files_of(path) if file.name in (INDEX, ".zarray")]
    index = next(file for file in named if file.name == INDEX)
    file = index if chosen.random() < 0.75 else chosen.choice(named)
    content = json.loads(file.read_text())
    for _ in range(chosen.choice([1, 1, 2, 3])):
        change_field(chosen, content)
    is_sealed = file == index and chosen.random() < 0.8
    try:
        file.write_bytes(sealed(content) if is_sealed else json.dumps(content).encode())
    except RecursionError:  # a deep value in another is too deep to be written
        return False
    return is_sealed


def change_field(chosen: random.Random, content: Any) -> None:
    """Change one field somewhere in JSON."""
    holders = [content] if isinstance(content, dict | list) and content else []
    for outer in holders:
        inner = outer.values() if isinstance(outer, dict) else outer
        holders += [value for value in inner if isinstance(value, dict | list) and value]
    if not holders:
        return
    holder = chosen.choice(holders)
    place: Any = chosen.choice(list(holder)) if isinstance(holder, dict) else 0
    act = chosen.random()
    if act < 0.25:
        del holder[place]
    elif act < 0.35 and isinstance(holder, dict):
        name = chosen.choice([value for value in HOSTILE if isinstance(value, str)])
        holder[name] = holder.pop(place)
    else:
        holder[place] = json.loads(json.dumps(chosen.choice(HOSTILE)))  # a later change may go in


KINDS: list[Callable[[random.Random, Path], bool]] = [
    *(turn_bits, write_over, change_length, take_away, swap, take_from_another, put_no_file),
    *(put_beside, rename, change_json, change_json, change_json, change_json),
]


# What reads it.


def attempt(act: Callable[[], Any]) -> Any:
    """Return what a function returns; None if it refuses in words of ours."""
    try:
        return act()
    except gd.GraphdistError:
        return None


def read_all(folder: Path, name: str, is_sealed: bool) -> None:
    """Do all that reads a changed checkpoint, and save beside it."""
    path, original = folder / name, int(name.rpartition("-")[2])
    attempt(lambda: gd.train.latest_checkpoint(folder))
    listed = attempt(lambda: gd.train.list_variables(path)) or []
    for variable, shape in listed:
        array = attempt(partial(gd.train.load_variable, path, variable))
        assert array is None or variable == "key" or list(array.shape) == shape
    checkpoint = gd.train.Checkpoint(**objects())
    is_restored = attempt(lambda: checkpoint.restore(path).expect_partial()) is not None
    if is_restored and not is_sealed and name.startswith("ckpt"):
        expected = contents(gd.train.Checkpoint(**objects(original)))
        assert contents(checkpoint) == expected, "what was restored was never saved"
    again = gd.train.Checkpoint(**objects())
    manager = gd.train.CheckpointManager(again, folder, 2, checkpoint_name=name.partition("-")[0])
    attempt(manager.restore_or_initialize)
    attempt(lambda: manager.save(checkpoint_number=9))
    attempt(manager.sync)


def tree(folder: Path) -> Any:
    """Return all there is in a folder, and what it holds."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return sorted((str(file), file.stat().st_mtime_ns, file.read_bytes()) for file in files)


def mutate(number: int, originals: Path, sandbox: Path) -> None:
    """Make one mutation and read it; raise where that does what it must not."""
    chosen = random.Random(number)
    folder = sandbox / "checkpoints"
    shutil.copytree(originals, folder)
    name = chosen.choice(["ckpt-2", "ckpt-2", "ckpt-2", "old-1"])
    before = tree(sandbox / "outside")
    is_sealed = chosen.choice(KINDS)(chosen, folder / name)
    signal.alarm(_SECONDS_EACH)
    read_all(folder, name, is_sealed)
    signal.alarm(0)
    assert tree(sandbox / "outside") == before, "a file outside was changed"
    assert {entry.name for entry in sandbox.iterdir()} == {"outside", "checkpoints"}
    most = peak_bytes() / 2**20
    assert most < MOST_MEBIBYTES, f"{most:.0f} MiB"
    shutil.rmtree(folder)


def read_numbers(first: int, count: int) -> None:
    """Read so many mutations, and say the number of each before it."""
    memory = Path("/dev/shm")  # where nothing waits for a disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        originals, sandbox = Path(folder, "originals"), Path(folder, "sandbox")
        (sandbox / "outside").mkdir(parents=True)
        (sandbox / "outside" / "file").write_text("not ours")
        make_originals(originals)
        for number in range(first, first + count):
            print(number, flush=True)
            mutate(number, originals, sandbox)
    print(f"{peak_bytes() / 2**20:.0f} MiB")


def run(count: int, seed: int = 0, a_process: int = 200) -> float:
    """Read so many mutations in child processes; return the most memory one took, in MiB."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "JAX_PLATFORMS": "cpu"}
    most = 0.0
    for first in range(seed, seed + count, a_process):
        numbers = [str(first), str(min(a_process, seed + count - first))]
        command = [sys.executable, "-W", "ignore", "-m", "tests.mutations.checkpoints"]
        done = subprocess.run(
            [*command, "--read", *numbers],
            env=environment,
            capture_output=True,
            text=True,
            cwd=_ROOT,
            timeout=600,
            check=False,
        )
        lines = done.stdout.splitlines() or ["none"]
        assert done.returncode == 0, f"mutation {lines[-1]}: {done.returncode}\n{done.stderr}"
        most = max(most, float(lines[-1].split()[0]))
    return most


def main() -> None:
    """Read mutations, here or in child processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--read", type=int, nargs=2, metavar=("FIRST", "COUNT"))
    given = parser.parse_args()
    if given.read:
        read_numbers(*given.read)
        return
    start = time.monotonic()
    most = run(given.count, given.seed)
    print(f"{given.count} mutations in {time.monotonic() - start:.0f} s, at most {most:.0f} MiB")


if __name__ == "__main__":
    main()
