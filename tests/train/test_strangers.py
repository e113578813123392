"""Links, pipes and devices that strangers put in a folder: not followed, not waited for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import graphdist as gd
from graphdist.runtime.files.checkpoint_disk import DiskFolder
from graphdist.runtime.files.checkpoint_index import MOST, sealed
from graphdist.runtime.files.checkpoint_lock import check_free
from graphdist.runtime.files.checkpoint_owner import OwnerProcess

Put = Callable[[Path, Path], None]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """Return a folder of somebody else's, which must stay as it is."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "file").write_text("precious" * 200)
    checkpoint = gd.train.Checkpoint(**objects(9))
    checkpoint.write(place / "ckpt-9")
    checkpoint.sync()
    before = contents(place)
    yield place
    assert contents(place) == before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "checkpoints"
    place.mkdir()
    return place


def objects(step: int) -> dict[str, object]:
    return {"step": step, "w": np.full((3, 2), step)}


def contents(place: Path) -> list[tuple[str, int, bytes]]:
    files = [file for file in place.rglob("*") if file.is_file()]
    return sorted((str(file), file.stat().st_mtime_ns, file.read_bytes()) for file in files)


def manager_of(folder: Path, step: int = 1) -> gd.train.CheckpointManager:
    checkpoint = gd.train.Checkpoint(**objects(step))
    return gd.train.CheckpointManager(checkpoint, folder, 1, keep_every_n_hours=0)


def linked(file: Path, outside: Path) -> None:
    file.symlink_to(outside / "file")


def lost(file: Path, outside: Path) -> None:
    file.symlink_to(outside / "new")


def hard_linked(file: Path, outside: Path) -> None:
    file.hardlink_to(outside / "file")


def endless(file: Path, outside: Path) -> None:
    file.symlink_to("/dev/zero")


def pipe(file: Path, outside: Path) -> None:
    os.mkfifo(file)


def a_folder(file: Path, outside: Path) -> None:
    file.mkdir()


PUT: list[Put] = [linked, lost, hard_linked, endless, pipe, a_folder]


@pytest.mark.parametrize("name", [".ckpt.writer", ".ckpt-1.writer"])
@pytest.mark.parametrize("put", PUT)
def test_in_the_place_of_a_writers_file(folder: Path, outside: Path, put: Put, name: str) -> None:
    put(folder / name, outside)
    manager = manager_of(folder)
    with pytest.raises(
        gd.CheckpointError, match=r"it is (a symbolic|a hard|a pipe, and no|a folder, and no)"
    ) as caught:
        manager.save()
    assert "test_strangers.py" in str(caught.value)
    manager.sync()
    assert gd.train.latest_checkpoint(folder) is None
    with pytest.raises(
        gd.CheckpointError, match=r"it is (a symbolic|a hard|a pipe, and no|a folder, and no)"
    ):
        check_free(DiskFolder(folder), name[1:].removesuffix(".writer"))
    assert os.listdir(folder) == [name]


def test_in_its_place_while_it_is_held(folder: Path, outside: Path) -> None:
    manager = manager_of(folder)
    manager.save()
    manager.sync()
    (folder / ".ckpt.writer").unlink()
    linked(folder / ".ckpt.writer", outside)
    with pytest.raises(gd.CheckpointError, match="it is a symbolic link"):
        manager.save()


def test_a_long_file_that_is_no_record_is_taken(folder: Path) -> None:
    (folder / ".ckpt.writer").write_text("x" * 9000)
    manager = manager_of(folder)
    manager.save()
    manager.sync()
    assert OwnerProcess.of((folder / ".ckpt.writer").read_bytes()) is not None


@pytest.mark.parametrize("name", ["ckpt-1.0123abcd.partial", "ckpt-1.replaced"])
@pytest.mark.parametrize("put", [*PUT[:3], pipe])
def test_in_the_place_of_remains(folder: Path, outside: Path, put: Put, name: str) -> None:
    put(folder / name, outside)
    manager = manager_of(folder)
    manager.save()
    manager.checkpoint.write(folder / "ckpt-1")  # is replaced
    manager.sync()
    assert sorted(os.listdir(folder)) == [".ckpt.writer", "ckpt-1"]


def test_a_linked_folder_in_the_place_of_remains(folder: Path, outside: Path) -> None:
    for name in ("ckpt-1.0123abcd.partial", "ckpt-1.replaced"):
        (folder / name).symlink_to(outside)
    manager = manager_of(folder)
    manager.save()
    manager.checkpoint.write(folder / "ckpt-1")
    manager.sync()
    assert sorted(os.listdir(folder)) == [".ckpt.writer", "ckpt-1"]


def test_a_link_to_a_checkpoint_is_none_of_its_folder(
    folder: Path, outside: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "ckpt-9").symlink_to(outside / "ckpt-9")
    assert gd.train.latest_checkpoint(folder) is None
    assert "ckpt-9 is damaged and is passed over: it is a symbolic link" in caplog.text
    manager = manager_of(folder)
    with pytest.raises(gd.UnreadableCheckpointError, match="ckpt-9 is damaged"):
        manager.restore_or_initialize()
    with pytest.raises(gd.CheckpointError, match="'ckpt-9' is a symbolic link, which"):
        manager.checkpoint.write(folder / "ckpt-9")
    for _ in range(3):
        manager.save()
    manager.sync()
    assert (folder / "ckpt-9").is_symlink()
    manager.checkpoint.restore(folder / "ckpt-9").assert_consumed()  # who names it, reads it
    assert manager.checkpoint.step == 9


def test_a_backup_removes_links_and_nothing_else(folder: Path, outside: Path) -> None:
    backup = gd.train.BackupAndRestore(gd.train.Checkpoint(**objects(1)), folder)
    (folder / "backup-9").symlink_to(outside / "ckpt-9")
    (folder / "backup-8.partial").symlink_to(outside)
    assert list(backup.epochs(0)) == []
    assert os.listdir(folder) == []


def test_the_mark_of_a_kept_checkpoint_is_no_link(folder: Path, outside: Path) -> None:
    manager = manager_of(folder)
    manager.save()
    manager.sync()
    (folder / "ckpt-1" / "kept").symlink_to(outside / "new")
    manager.save()
    manager.save()
    manager.sync()
    assert not (outside / "new").exists()
    assert sorted(os.listdir(folder)) == [".ckpt.writer", "ckpt-1", "ckpt-2", "ckpt-3"]


PARTS = ["index.json", "part-0", "part-0/0", "part-0/0/0.0", "part-0/0/.zarray"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", ["link", "pipe", "link in it"])
def test_in_the_place_of_a_part(folder: Path, outside: Path, part: str, kind: str) -> None:
    path = folder / "ckpt-1"
    shutil.copytree(outside / "ckpt-9", path)
    if kind == "link in it":
        (path / part).rename(path / "moved")
        (path / part).symlink_to(path / "moved")
    else:
        shutil.rmtree(path / part) if (path / part).is_dir() else (path / part).unlink()
        if kind == "pipe":
            os.mkfifo(path / part)
        else:
            (path / part).symlink_to(outside / "ckpt-9" / part)
    assert gd.train.latest_checkpoint(folder) is None
    checkpoint = gd.train.Checkpoint(**objects(1))
    for read in (checkpoint.restore, lambda path: gd.train.load_variable(path, "w")):
        with pytest.raises(gd.UnreadableCheckpointError, match=r"it is|Not a dir|is no checkpoint"):
            read(path)
    assert checkpoint.step == 1


@pytest.mark.parametrize("field", ["sequence", "save_counter"])
def test_checkpoints_that_strangers_number(folder: Path, field: str) -> None:
    """No number of an index is larger than 2^53, which the next save would have to exceed."""
    manager = manager_of(folder)
    manager.save()
    manager.sync()
    index = folder / "ckpt-1" / "index.json"
    index.write_bytes(sealed({**json.loads(index.read_text()), field: MOST}))
    manager.restore_or_initialize()
    path = manager.save()
    assert manager.latest_checkpoint == path
