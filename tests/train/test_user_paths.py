"""Paths of any form work, or are refused with a sentence in the call that they are given to."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import graphdist as gd


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """Work in an empty folder."""
    with contextlib.chdir(tmp_path):
        yield tmp_path


def checkpoint_of(step: int) -> gd.train.Checkpoint:
    return gd.train.Checkpoint(step=step)


def restored(path: Any) -> int:
    checkpoint = checkpoint_of(0)
    checkpoint.restore(path).assert_consumed()
    return int(checkpoint.step)


NAMES = [
    *(
        "a",
        "./a",
        "a/../b",
        "in/a/folder",
        "~",
        "~/a",
        "new\nline-1",
        "-",
        "-1",
        "a-1",
        ". ",
        "...",
    ),
    *(
        "a\\b",
        "*?[x]",
        "\u00e9",
        "e\u0301",
        "a-\u0663",
        "n" * 200,
        os.fsdecode(b"\xfcber"),
        Path("p"),
    ),
]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_of_any_form_works(folder: Path, name: Any) -> None:
    checkpoint = checkpoint_of(1)
    path = checkpoint.write(name)
    assert restored(path) == 1
    paths = [checkpoint.save(name) for _ in range(2)]
    checkpoint.sync()
    assert [str(name) + "-1", str(name) + "-2"] == paths
    assert restored(paths[1]) == 1
    place = os.path.dirname(name)
    assert gd.train.latest_checkpoint(place) == os.path.join(place, os.path.basename(paths[1]))
    manager = gd.train.CheckpointManager(checkpoint, name, 1, checkpoint_name=Path(name).name)
    for _ in range(2):
        saved = manager.save()
    assert manager.checkpoints == [saved]
    assert manager.latest_checkpoint == saved
    assert not [left for left in folder.rglob("*") if left.name.endswith((".partial", ".replaced"))]


WITHOUT_A_NAME = ["", "/", ".", "..", "./", "a/", "a/.", "a/..", "//"]
NO_PATHS: list[tuple[Any, str]] = [
    ("a\0b", "no path has a NUL character"),
    ("\ud800", "names of files are encoded in utf-8 here"),
    (b"a", "is of type bytes, not a path"),
    (3, "is of type int, not a path"),
    (["a"], "is of type list, not a path"),
]


def calls_with(path: Any) -> dict[str, Callable[[], Any]]:
    """Return every call that takes the path of a checkpoint or of a folder of them."""
    return {
        "restore": lambda: checkpoint_of(1).restore(path),
        "read": lambda: checkpoint_of(1).read(path),
        "list": lambda: gd.train.list_variables(path),
        "load": lambda: gd.train.load_variable(path, "step"),
        "latest": lambda: gd.train.latest_checkpoint(path),
        "manager": lambda: gd.train.CheckpointManager(checkpoint_of(1), path, 1),
        "backup": lambda: gd.train.BackupAndRestore(checkpoint_of(1), path),
        "handler": lambda: gd.train.PreemptionCheckpointHandler(None, checkpoint_of(1), path),
    }


def saves_with(path: Any) -> dict[str, Callable[[], Any]]:
    """Return every call that takes a name to save under."""
    checkpoint = checkpoint_of(1)
    return {
        "write": lambda: checkpoint.write(path),
        "save": lambda: checkpoint.save(path),
        "name": lambda: gd.train.CheckpointManager(checkpoint, "a", 1, checkpoint_name=path),
    }


def refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(gd.GraphdistError, match=said) as caught:
        call()
    assert "test_user_paths.py" in str(caught.value), "the user's line"


@pytest.mark.parametrize("path", WITHOUT_A_NAME)
def test_a_checkpoint_has_a_name(folder: Path, path: str) -> None:
    for call in saves_with(path).values():
        refused(call, "does not end in a name")
    assert os.listdir(folder) == []


@pytest.mark.parametrize(("path", "said"), NO_PATHS)
def test_what_is_no_path(folder: Path, path: Any, said: str) -> None:
    for call in {**calls_with(path), **saves_with(path)}.values():
        refused(call, said)
    assert os.listdir(folder) == []


def test_a_root_is_a_folder_without_checkpoints() -> None:
    assert gd.train.latest_checkpoint("/") is None
    for name in ("restore", "read", "list", "load"):
        refused(calls_with("/")[name], "there is no checkpoint /")


@pytest.mark.parametrize("length", [240, 255, 300, 5000])
def test_a_name_that_is_too_long_is_refused_at_once(folder: Path, length: int) -> None:
    name = "n" * length
    for save in ("write", "save"):
        refused(saves_with(name)[save], "File name too long")
    manager = gd.train.CheckpointManager(checkpoint_of(1), folder / "a", 1, checkpoint_name=name)
    refused(manager.save, "File name too long")
    refused(calls_with(name)["restore"], "File name too long|there is no checkpoint")
    manager.sync()  # nothing was begun
    assert not list(folder.rglob("n*"))


def test_a_folder_too_far_down(folder: Path) -> None:
    path = "/".join(["n" * 200] * 40) + "/a"
    calls = {**calls_with(path), **saves_with(path)}
    manager = calls.pop("manager")()
    calls.pop("name")  # refused: it is a path
    for call in (*calls.values(), manager.save, manager.restore_or_initialize):
        refused(call, "File name too long")
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    "number",
    [-1, -(10**5000), 2**53 + 1, 10**5000],
    ids=lambda number: f"{number.bit_length()} bits",
)
def test_a_number_that_no_name_has(folder: Path, number: int) -> None:
    manager = gd.train.CheckpointManager(checkpoint_of(1), folder, 1)
    refused(lambda: manager.save(number), "checkpoint_number is .*: it must be at (most|least)")
    assert os.listdir(folder) == []


@pytest.mark.parametrize("name", ["a.partial", "a.replaced", "a.0123abcd.partial"])
def test_names_that_a_writer_removes(name: str) -> None:
    refused(saves_with(name)["write"], "a name of checkpoints that are being written")
    checkpoint_of(1).save(name)


@pytest.mark.parametrize("kind", ["file", "folder", "link", "lost"])
def test_what_is_there_stays(folder: Path, kind: str) -> None:
    (folder / "folder").mkdir()
    (folder / "folder" / "file").write_text("x")
    (folder / "file").write_text("x")
    (folder / "link").symlink_to("folder")
    (folder / "lost").symlink_to("nowhere")
    before = sorted(str(path) for path in folder.rglob("*"))
    refused(saves_with(kind)["write"], "exists and is no checkpoint|is a symbolic link")
    assert sorted(str(path) for path in folder.rglob("*")) == before


def test_a_current_folder_that_was_removed(folder: Path) -> None:
    (folder / "gone").mkdir()
    with contextlib.chdir(folder / "gone"):
        os.rmdir(folder / "gone")
        refused(saves_with("a")["write"], "in the current folder, which was removed")
        refused(calls_with("a")["latest"], "in the current folder, which was removed")
        assert restored(checkpoint_of(2).write(folder / "a")) == 2


def saved_in(folder: Path, times: int) -> list[str]:
    """Save in `run` of a folder, and return the names of the checkpoints."""
    with contextlib.chdir(folder):
        manager = gd.train.CheckpointManager(checkpoint_of(7), "run", None)
        for _ in range(times):
            manager.save()
        manager.sync()
    return names_in(folder)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("run/*-*"))


@pytest.fixture
def two(folder: Path) -> tuple[Path, Path]:
    """Return two folders to work in."""
    one, other = folder / "one", folder / "other"
    one.mkdir()
    other.mkdir()
    return one, other


def test_a_manager_stays_in_its_folder(two: tuple[Path, Path]) -> None:
    one, other = two
    of_another = saved_in(other, 3)
    with contextlib.chdir(one):
        manager = gd.train.CheckpointManager(checkpoint_of(1), "run", max_to_keep=1)
        assert manager.save() == "run/ckpt-1"
        manager.sync()
    with contextlib.chdir(other):
        assert manager.save() == str(one / "run" / "ckpt-2")
        manager.sync()
        assert manager.checkpoints == [manager.latest_checkpoint] == [str(one / "run" / "ckpt-2")]
        assert manager.restore_or_initialize() == manager.latest_checkpoint
    assert names_in(one) == ["ckpt-2"]
    assert names_in(other) == of_another == ["ckpt-1", "ckpt-2", "ckpt-3"]


def test_a_sweep_stays_in_its_folder(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    of_another = saved_in(other, 3)
    entered, left = threading.Event(), threading.Event()
    sweep = gd.train.CheckpointManager._sweep

    def swept_later(manager: gd.train.CheckpointManager) -> None:
        entered.set()
        assert left.wait(60)
        sweep(manager)

    monkeypatch.setattr(gd.train.CheckpointManager, "_sweep", swept_later)
    with contextlib.chdir(one):
        manager = gd.train.CheckpointManager(checkpoint_of(1), "run", max_to_keep=1)
        manager.save()
        assert entered.wait(60)
    with contextlib.chdir(other):
        left.set()
        manager.sync()
    assert names_in(other) == of_another


def test_a_backup_removes_its_own(two: tuple[Path, Path]) -> None:
    one, other = two
    with contextlib.chdir(other):
        gd.train.BackupAndRestore(checkpoint_of(1), "run").manager.save()
    with contextlib.chdir(one):
        backup = gd.train.BackupAndRestore(checkpoint_of(1), "run")
        for _ in backup.epochs(1):
            os.chdir(other)
    assert names_in(one) == []
    assert names_in(other) == ["backup-1"]
