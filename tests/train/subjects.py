"""Checkpoints to be damaged: what is in them, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import graphdist as gd

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
