"""Files that somebody else may have put there: what is opened, read, and said of a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath

import pytest

from graphdist.runtime.files.checkpoint_disk import DiskFiles, DiskFolder
from graphdist.runtime.files.checkpoint_files import not_written

FILE = PurePosixPath("file")


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file"
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)  # without O_NONBLOCK it would be waited for
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(
        OSError, match=r"it is (a folder, and no file|a pipe, and no file|a symbolic link)"
    ):
        DiskFiles(tmp_path).read_small(FILE, 1)
    assert DiskFiles(tmp_path).size_of(FILE) is None


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path)
    files.write(FILE, b"abc")
    assert files.read_small(FILE, 3) == b"abc"
    assert files.size_of(FILE) == 3
    with pytest.raises(ValueError, match="it has 3 bytes, and may have 2"):
        files.read_small(FILE, 2)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DiskFiles(tmp_path).read_small(FILE, 1)
    assert all(DiskFiles(tmp_path).size_of(PurePosixPath(name)) is None for name in ("none", "\0"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "no room"), "MiB are free"),
        (OSError(errno.EDQUOT, "no room"), "MiB are free"),
        (OSError(errno.EACCES, "not allowed", "/some/file"), "Permission denied: /some/file"),
        (OSError(errno.ENAMETOOLONG, "too long", "x"), "give a shorter name"),
    ],
)
def test_a_full_disk_is_told_from_other_errors(tmp_path: Path, error: Exception, said: str) -> None:
    found = not_written(error, tmp_path)
    assert said in str(found)
    assert str(tmp_path) in str(found)


@pytest.mark.parametrize("error", [ValueError("nothing of the kind"), OSError("no number")])
def test_an_error_that_is_not_the_systems_stays(tmp_path: Path, error: Exception) -> None:
    assert not_written(error, tmp_path) is None


def obstacle_to_writing(folder: Path) -> str:
    return DiskFolder(folder).obstacle_to_writing()


def test_what_forbids_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "lost").symlink_to("nowhere")
    assert obstacle_to_writing(tmp_path) == obstacle_to_writing(tmp_path / "a" / "b") == ""
    for name in ("file", "lost"):
        said = f"{tmp_path / name} is no folder"
        assert obstacle_to_writing(tmp_path / name / "a") == obstacle_to_writing(tmp_path / name)
        assert obstacle_to_writing(tmp_path / name) == said
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # root may write anywhere
    assert obstacle_to_writing(tmp_path / "a") == f"this process may not write to {tmp_path}"
