"""Folders that checkpoints cannot be written to, or read from: said in the call, and of which."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import graphdist as gd
from graphdist.runtime.files import checkpoint as checkpoints


def test_a_write_that_fails_is_an_error_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise PermissionError(errno.EACCES, "not allowed", "some file")

    checkpoint = gd.train.Checkpoint(step=1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_arrays", fail)
        checkpoint.save(tmp_path / "ckpt")
        with pytest.raises(gd.CheckpointError, match="Permission denied: some file"):
            checkpoint.save(tmp_path / "ckpt")
    assert Path(checkpoint.save(tmp_path / "ckpt")).name == "ckpt-2"
    checkpoint.sync()


@pytest.mark.parametrize("place", ["file", "file/in/it"])
def test_a_folder_that_cannot_be_is_an_error_of_the_save_itself(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    manager = gd.train.CheckpointManager(gd.train.Checkpoint(step=1), tmp_path / place, 2)
    assert manager.restore_or_initialize() is None
    assert f"{tmp_path / 'file'} is no folder; a program that only" in caplog.text
    with pytest.raises(gd.CheckpointError, match=r"(?i)not a directory") as caught:
        manager.save()
    assert "test_folders.py" in str(caught.value)
    manager.sync()  # nothing was begun


def test_a_folder_that_may_not_be_read_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    manager = gd.train.CheckpointManager(gd.train.Checkpoint(step=1), tmp_path, 2)
    path = manager.save()
    manager.sync()
    monkeypatch.setattr(Path, "iterdir", refuse)  # root may read anything
    monkeypatch.setattr(Path, "is_file", refuse)
    for read in (
        manager.restore_or_initialize,
        lambda: gd.train.latest_checkpoint(tmp_path),
        lambda: manager.checkpoint.restore(path),
    ):
        with pytest.raises(gd.CheckpointError, match="cannot be read: Permission") as caught:
            read()
        assert "test_folders.py" in str(caught.value)
