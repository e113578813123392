"""Checkpoints to be damaged: what is in them, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import numpy as np
import pytest

import graphdist as gd
from graphdist.runtime.files.checkpoint_arrays import write_arrays
from graphdist.runtime.files.checkpoint_disk import DiskFiles
from graphdist.runtime.files.checkpoint_index import INDEX, sealed

FORMAT_1 = Path(__file__).parent / "format_1" / "ckpt-1"
"""A checkpoint that an earlier version wrote, without checksums."""


def objects(step: int = 0) -> dict[str, Any]:
    """Return objects of every kind, which hold the number."""
    return {
        "w": np.full((4, 3), step, np.float32),
        "others": [np.full((4, 3), -step, np.float32), np.full(9, step, np.int8)],
        "key": jax.random.key(step),
        "empty": np.zeros((0, 2)),
        "step": step,
        "iterator": iter(gd.data.Dataset.range(10)),
    }


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def refusal(path: Path) -> str:
    """Return what is said of a checkpoint that is not restored, and change nothing."""
    checkpoint = gd.train.Checkpoint(**objects())
    with pytest.raises(gd.UnreadableCheckpointError) as caught:
        checkpoint.restore(path)
    assert checkpoint.step == 0
    assert not checkpoint.w.any()
    return caught.value.what


def nested(depth: int) -> Any:
    """Return a list in a list in a list."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def put_in_slices(path: Path, name: str, along: int, sizes: list[int]) -> None:
    """Store an array of a checkpoint as workers do that hold slices of it, one worker a slice."""
    index = json.loads((path / INDEX).read_text())
    array = gd.train.load_variable(path, name)
    slices, start = [], 0
    for part, size in enumerate(sizes):
        taken = (*[slice(None)] * along, slice(start, start + size))
        written = {"100": np.ascontiguousarray(array[taken])}
        (path / f"part-{part}").mkdir(exist_ok=True)
        checksums = write_arrays(DiskFiles(path), PurePosixPath(f"part-{part}"), written)
        slices.append({"size": size, "part": part, "file": "100", "crc32": checksums["100"]})
        start += size
    record = {key: index["arrays"][name][key] for key in ("dtype", "shape", "stored")}
    index["arrays"][name] = {**record, "sliced_along": along, "slices": slices}
    count = max(index["workers"], len(sizes))
    states = {name: [states[0]] * count for name, states in index["states"].items()}
    (path / INDEX).write_bytes(sealed({**index, "workers": count, "states": states}))
