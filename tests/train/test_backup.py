"""A loop that goes on where it was stopped, with the batches it would have seen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdist as gd


class Stopped(Exception):
    """The program ends here."""


def shuffled() -> Any:
    return gd.data.Dataset.range(23).shuffle(8, seed=3).batch(4)


def distributed() -> Any:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"]).experimental_distribute_dataset(shuffled())


def listed() -> Iterable[Any]:
    return [np.arange(3) * i for i in range(6)]


def values(batch: Any) -> list[Any]:
    parts = batch.values if isinstance(batch, gd.PerReplica) else [batch]
    return [np.asarray(part).tolist() for part in parts]


def train(
    make: Callable[[], Iterable[Any]], folder: Path, save_freq: Any, stop_after: int
) -> Iterator[tuple[int, Any]]:
    """Yield what a program sees until it is stopped."""
    backup = gd.train.BackupAndRestore(gd.train.Checkpoint(), folder, save_freq=save_freq)
    dataset = make()
    for epoch in backup.epochs(3):
        for batch in backup.steps(dataset):
            yield epoch, values(batch)
            stop_after -= 1
            if stop_after < 0:
                raise Stopped


@pytest.mark.long
@pytest.mark.parametrize("make", [shuffled, distributed, listed])
@pytest.mark.parametrize("stop_after", [0, 3, 5, 6, 8, 17])
def test_every_batch_once_and_in_its_order(
    tmp_path: Path, make: Callable[[], Iterable[Any]], stop_after: int
) -> None:
    whole = list(train(make, tmp_path / "whole", "epoch", stop_after=10**6))
    seen: list[Any] = []
    with pytest.raises(Stopped):
        seen.extend(train(make, tmp_path / "stopped", 1, stop_after))
    rest = list(train(make, tmp_path / "stopped", 1, stop_after=10**6))
    assert seen[:-1] + rest == whole  # the step it was stopped in was not saved
    assert not list((tmp_path / "stopped").glob("backup*"))


def test_epochs_are_done_again_from_their_start(tmp_path: Path) -> None:
    whole = list(train(shuffled, tmp_path / "whole", "epoch", stop_after=10**6))
    with pytest.raises(Stopped):
        list(train(shuffled, tmp_path / "stopped", "epoch", stop_after=9))
    assert list(train(shuffled, tmp_path / "stopped", "epoch", stop_after=10**6)) == whole[6:]


def test_the_backup_stays_if_it_is_wanted(tmp_path: Path) -> None:
    for _ in range(2):
        backup = gd.train.BackupAndRestore(gd.train.Checkpoint(), tmp_path, delete_checkpoint=False)
        done = [epoch for epoch in backup.epochs(2) for _ in backup.steps([1])]
    assert done == []
    assert os.listdir(tmp_path) == ["backup-2"]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="save_freq is 0"):
        gd.train.BackupAndRestore(gd.train.Checkpoint(), tmp_path, save_freq=0)
    backup = gd.train.BackupAndRestore(gd.train.Checkpoint(), tmp_path)
    with pytest.raises(gd.ContextError, match="outside the loop over"):
        backup.steps([1])
