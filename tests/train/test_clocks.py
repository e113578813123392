"""Clocks that go back or are wrong: checkpoints are saved, found and kept all the same."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import graphdist as gd

HOUR = 3600.0
SetClock = Callable[[float], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return lambda now: monkeypatch.setattr(time, "time", lambda: now)


def numbers(folder: Path) -> list[int]:
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("ckpt-*"))


@pytest.mark.parametrize("times", [[1e9, 5e8, 0.0, -5.0, -1e10, 1e15, 1e9], [-1.0], [2.0**53]])
def test_the_order_is_that_of_saving(
    tmp_path: Path, set_clock: SetClock, times: list[float]
) -> None:
    checkpoint = gd.train.Checkpoint(step=0)
    set_clock(1e9)
    manager = gd.train.CheckpointManager(checkpoint, tmp_path, 3)
    for step, now in enumerate(times):
        set_clock(now)
        checkpoint.step = step
        path = manager.save()
        assert manager.latest_checkpoint == gd.train.latest_checkpoint(tmp_path) == path
        assert json.loads(Path(str(path), "index.json").read_text())["saved_at"] == now
        again = gd.train.Checkpoint(step=-1)
        again.restore(path).assert_consumed()
        assert again.step == step
    assert numbers(tmp_path) == [step + 1 for step in range(len(times))][-3:]


KEPT: dict[str, tuple[list[float], list[int]]] = {
    "even": ([0, 1, 2, 3, 4, 5], [2, 4]),
    "back by years": ([0, 1, 2, -20_000, -19_999, -19_998, -19_997], [2, 3, 5]),
    "before 1970": ([0, -(10**6), -(10**6) + 1, -(10**6) + 2], [1, 3]),
    "ahead by years, and back": ([0, 10**6, 1, 2, 3, 4], [1, 2, 4]),
    "back by less": ([0, 2, 1.5, 2.5, 3.5, 4.5], [1]),
}


@pytest.mark.parametrize("kind", KEPT)
def test_a_checkpoint_of_every_two_hours(tmp_path: Path, set_clock: SetClock, kind: str) -> None:
    hours, kept = KEPT[kind]
    set_clock(1e9)
    manager = gd.train.CheckpointManager(gd.train.Checkpoint(step=0), tmp_path, 1, 2)
    for hour in hours:
        set_clock(1e9 + hour * HOUR)
        manager.save()
        manager.sync()
    last = len(hours)
    assert numbers(tmp_path) == [*[number + 1 for number in kept if number + 1 < last], last]
    marked = [path.parent.name for path in tmp_path.glob("ckpt-*/kept")]
    assert len(marked) == len(numbers(tmp_path)) - 1


@pytest.mark.parametrize("hours", [0, 1e-300, 10**400, float("inf")])
def test_any_number_of_hours(tmp_path: Path, hours: float) -> None:
    manager = gd.train.CheckpointManager(gd.train.Checkpoint(step=0), tmp_path, 10**400, hours)
    few = gd.train.CheckpointManager(manager.checkpoint, tmp_path, 1, hours)
    for each in (manager, few):
        each.save()
        each.save()
        each.sync()
    assert numbers(tmp_path) == ([1, 2, 3, 4] if hours < 1 else [4])


def test_another_time_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = gd.train.Checkpoint(step=0)
    for zone in ("Pacific/Kiritimati", "Pacific/Niue", "UTC"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        path = checkpoint.save(tmp_path / "ckpt")
        assert gd.train.latest_checkpoint(tmp_path) == path
    monkeypatch.undo()
    time.tzset()
