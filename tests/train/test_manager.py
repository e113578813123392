"""Which checkpoints a manager keeps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import graphdist as gd
from graphdist.runtime.files.checkpoint_index import sealed


def names(paths: list[str]) -> list[str]:
    return [os.path.basename(path) for path in paths]


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    checkpoint = gd.train.Checkpoint(step=0)
    manager = gd.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=3)
    assert manager.latest_checkpoint is None
    assert manager.restore_or_initialize() is None
    for step in range(5):
        checkpoint.step = step
        assert manager.save() == str(tmp_path / f"ckpt-{step + 1}")
    assert names(manager.checkpoints) == ["ckpt-3", "ckpt-4", "ckpt-5"]
    assert sorted(os.listdir(tmp_path)) == [".ckpt.writer", "ckpt-3", "ckpt-4", "ckpt-5"]
    assert gd.train.latest_checkpoint(tmp_path) == manager.latest_checkpoint

    again = gd.train.CheckpointManager(gd.train.Checkpoint(step=0), tmp_path, max_to_keep=3)
    assert again.restore_or_initialize() == manager.latest_checkpoint
    assert again.checkpoint.step == 4
    assert again.save() == str(tmp_path / "ckpt-6")
    assert names(again.checkpoints) == ["ckpt-4", "ckpt-5", "ckpt-6"]


def test_numbers_of_the_users_and_the_order_of_saving(tmp_path: Path) -> None:
    manager = gd.train.CheckpointManager(gd.train.Checkpoint(step=0), tmp_path, max_to_keep=2)
    for number in (100, 20, gd.Variable(3)):
        manager.save(checkpoint_number=number)
    assert names(manager.checkpoints) == ["ckpt-20", "ckpt-3"]
    assert manager.checkpoint.save_counter == 3


def test_one_of_each_few_hours_stays(tmp_path: Path) -> None:
    manager = gd.train.CheckpointManager(
        gd.train.Checkpoint(step=0), tmp_path, max_to_keep=1, keep_every_n_hours=2
    )

    def save(hour: float) -> None:
        path = Path(manager.save() or "", "index.json")
        manager.sync()
        index = json.loads(path.read_text())
        path.write_bytes(sealed({**index, "saved_at": manager._made_at + hour * 3600}))

    for hour in (1, 2.5, 3, 5, 6):
        save(hour)
    assert names(manager.checkpoints) == ["ckpt-5"]
    assert sorted(os.listdir(tmp_path)) == [".ckpt.writer", "ckpt-2", "ckpt-4", "ckpt-5"]
    again = gd.train.CheckpointManager(manager.checkpoint, tmp_path, max_to_keep=1)
    again.save()
    assert names(again.checkpoints) == ["ckpt-6"]
    assert sorted(os.listdir(tmp_path)) == [".ckpt.writer", "ckpt-2", "ckpt-4", "ckpt-6"]


def test_an_interval(tmp_path: Path) -> None:
    checkpoint = gd.train.Checkpoint(step=0)
    manager = gd.train.CheckpointManager(
        checkpoint,
        tmp_path,
        max_to_keep=None,
        step_counter=lambda: checkpoint.step,
        checkpoint_interval=10,
    )
    saved = []
    for step in range(0, 31, 5):
        checkpoint.step = step
        if manager.save() is not None:
            saved.append(step)
    assert saved == [0, 10, 20, 30]
    assert manager.save() is None
    assert manager.save(check_interval=False) is not None


def test_init_fn(tmp_path: Path) -> None:
    called: list[bool] = []
    manager = gd.train.CheckpointManager(
        gd.train.Checkpoint(step=0), tmp_path, None, init_fn=lambda: called.append(True)
    )
    manager.restore_or_initialize()
    manager.save()
    manager.restore_or_initialize()
    assert called == [True]


def test_other_names_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes-1").mkdir()
    other = gd.train.Checkpoint(step=0)
    other.save(tmp_path / "other")
    other.sync()
    for left in ("ckpt-7.partial", "other-9.partial"):
        (tmp_path / left).mkdir()
    manager = gd.train.CheckpointManager(other, tmp_path, max_to_keep=1)
    manager.save()
    manager.save()
    assert names(manager.checkpoints) == ["ckpt-3"]
    alone = ["notes-1", "other-1", "other-9.partial"]
    assert sorted(os.listdir(tmp_path)) == [".ckpt.writer", ".other.writer", "ckpt-3", *alone]


@pytest.mark.parametrize(
    "options", [{"max_to_keep": 0}, {"max_to_keep": None, "checkpoint_interval": 3}]
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, int | None]) -> None:
    with pytest.raises(ValueError, match=r"max_to_keep is 0|no step_counter"):
        gd.train.CheckpointManager(gd.train.Checkpoint(step=0), tmp_path, **options)  # type: ignore[arg-type]
