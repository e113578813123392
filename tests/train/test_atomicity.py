"""A write that is broken off anywhere leaves one checkpoint whole: the old one, or the new one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdist as gd
from graphdist.runtime.files import checkpoint as checkpoints

CALLS: list[tuple[Any, str]] = [
    (os, "fsync"),
    (Path, "rename"),
    (Path, "mkdir"),
    (shutil, "rmtree"),
    (checkpoints, "write_arrays"),
]
"""What a write changes the file system with."""


class BrokenOff(BaseException):
    """Stands for the end of the process: no code of ours handles it."""


class Breaker:
    """Breaks off in place of the call of a number."""

    def __init__(self, point: int) -> None:
        self.left = point

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self.left == 0:
                raise BrokenOff
            self.left -= 1
            return call(*args, **kwargs)

        return counted


def write(path: Path, step: int) -> None:
    checkpoint = gd.train.Checkpoint(step=step, array=np.full(10, step))
    checkpoint.write(path)
    checkpoint.sync()


def restored(path: Path) -> int:
    checkpoint = gd.train.Checkpoint(step=0, array=np.zeros(10, int))
    checkpoint.restore(path).assert_consumed()
    assert (checkpoint.array == checkpoint.step).all()
    return int(checkpoint.step)


def broken_off(path: Path, step: int, point: int) -> bool:
    """Write, up to a point; return whether that was before the end."""
    breaker = Breaker(point)
    with pytest.MonkeyPatch.context() as patch:
        for holder, name in CALLS:
            patch.setattr(holder, name, breaker.around(getattr(holder, name)))
        try:
            write(path, step)
        except BrokenOff:
            return True
    return False


def test_every_point_of_a_write_in_place_of_another(tmp_path: Path) -> None:
    found = []
    for point in range(60):
        path = tmp_path / f"at-{point}"
        write(path, 1)
        is_broken_off = broken_off(path, 2, point)
        found.append(restored(path))
        write(path, 3)
        assert restored(path) == 3
        assert [one for one in os.listdir(tmp_path) if one.startswith(f"{path.name}.")] == []
        if not is_broken_off:
            break
    assert found == sorted(found)
    assert found.count(1) > 3
    assert found.count(2) > 1


def test_every_point_of_a_new_one(tmp_path: Path) -> None:
    for point in range(60):
        folder = tmp_path / str(point)
        manager = gd.train.CheckpointManager(gd.train.Checkpoint(step=1), folder, max_to_keep=1)
        manager.save()
        manager.sync()
        breaker = Breaker(point)
        manager.checkpoint.step = 2
        with pytest.MonkeyPatch.context() as patch:
            for holder, name in CALLS:
                patch.setattr(holder, name, breaker.around(getattr(holder, name)))
            try:
                manager.save()
                manager.sync()
                is_broken_off = False
            except BrokenOff:
                is_broken_off = True
        again = gd.train.CheckpointManager(gd.train.Checkpoint(step=0), folder, max_to_keep=1)
        latest = again.restore_or_initialize()
        assert latest is not None
        assert again.checkpoint.step == int(latest.rpartition("-")[2])
        again.save()
        again.sync()
        assert not [name for name in os.listdir(folder) if name.endswith(".partial")]
        if not is_broken_off:
            return
    pytest.fail("the write has more points than were tried")
