"""Which folders are checkpoints, in what order, and what is removed of them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from graphdist.errors import CheckpointError
from graphdist.runtime.files import checkpoint_folders as folders
from graphdist.runtime.files.checkpoint_disk import DiskFiles, DiskFolder
from graphdist.runtime.files.checkpoint_index import FORMAT, INDEX, sealed


def make(folder: Path, name: str, sequence: int) -> Path:
    """Write a checkpoint that holds one value."""
    path = folder / name
    path.mkdir()
    content = {
        "format": FORMAT,
        "sequence": sequence,
        "save_counter": sequence,
        "saved_at": 1e9 - sequence,  # the clock goes backwards
        "workers": 1,
        "arrays": {},
        "values": {"step": sequence},
        "states": {},
        "aliases": {},
    }
    (path / INDEX).write_bytes(sealed(content))
    return path


def names(folder: Path, stem: str = "") -> list[str]:
    return [found.name for found in folders.checkpoints_in(DiskFolder(folder), stem)]


def test_checkpoints_are_ordered_by_their_saving(tmp_path: Path) -> None:
    for name, sequence in (("ckpt-10", 1), ("ckpt-9", 2), ("other-1", 3)):
        make(tmp_path, name, sequence)
    assert names(tmp_path) == ["ckpt-10", "ckpt-9", "other-1"]
    assert names(tmp_path, "ckpt") == ["ckpt-10", "ckpt-9"]
    assert folders.latest_in(DiskFolder(tmp_path), "ckpt") == "ckpt-9"
    assert folders.latest_in(DiskFolder(tmp_path), "ckpt", {"ckpt-9"}) == "ckpt-10"


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    (tmp_path / "notes-1").mkdir()
    assert names(tmp_path) == names(tmp_path / "none") == []
    assert folders.latest_in(DiskFolder(tmp_path)) is None
    assert DiskFolder(tmp_path).find("notes-1") is None


def test_a_damaged_one_is_passed_over_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = DiskFolder(tmp_path)
    make(tmp_path, "ckpt-1", 1)
    bad = make(tmp_path, "ckpt-2", 2)
    (bad / INDEX).write_text("{")
    with caplog.at_level(logging.WARNING):
        assert folders.latest_in(folder) == folders.latest_in(folder) == "ckpt-1"
    assert folders.damaged_in(folder, "ckpt") == ["ckpt-2"]
    assert sum("ckpt-2 is damaged" in record.getMessage() for record in caplog.records) == 1


def test_one_that_is_being_replaced_is_found(tmp_path: Path) -> None:
    aside = make(tmp_path, "ckpt-1", 1).rename(tmp_path / "ckpt-1.replaced")
    assert DiskFolder(tmp_path).find("ckpt-1") == DiskFiles(aside)
    assert names(tmp_path) == ["ckpt-1"]


def test_a_checkpoint_takes_the_place_of_another(tmp_path: Path) -> None:
    make(tmp_path, "ckpt-1", 1)
    index = (make(tmp_path, "new", 2) / INDEX).read_bytes()
    (tmp_path / "new" / INDEX).unlink()
    DiskFolder(tmp_path).give_name("ckpt-1", "new", index, lambda: None)
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-1"]
    assert folders.checkpoints_in(DiskFolder(tmp_path))[0].index.sequence == 2


def test_remains_are_removed_and_what_is_needed_stays(tmp_path: Path) -> None:
    make(tmp_path, "ckpt-1", 1)
    make(tmp_path, "ckpt-1.replaced", 1)  # its successor has the name already
    make(tmp_path, "ckpt-2.replaced", 2)  # the only copy of ckpt-2
    for name in ("ckpt-3.0a1b2c3d.partial", "other-1.0a1b2c3d.partial", "ckpt-x.partial"):
        (tmp_path / name).mkdir()
    DiskFolder(tmp_path).remove_remains("ckpt")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"ckpt-1", "ckpt-2.replaced", "other-1.0a1b2c3d.partial", "ckpt-x.partial"}


def test_all_of_a_name_are_removed(tmp_path: Path) -> None:
    make(tmp_path, "ckpt-1", 1)
    (make(tmp_path, "ckpt-2", 2) / INDEX).write_text("{")
    make(tmp_path, "best-1", 3)
    folders.remove_all(DiskFolder(tmp_path), "ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["best-1"]


def test_what_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    folder = DiskFolder(tmp_path)
    folder.require_replaceable("notes")  # empty: nothing is lost
    make(tmp_path, "ckpt-1", 1)
    folder.require_replaceable("ckpt-1")
    (tmp_path / "notes" / "file").touch()
    with pytest.raises(CheckpointError, match="'notes' exists and is no checkpoint"):
        folder.require_replaceable("notes")
