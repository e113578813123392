"""Files that somebody else may have put there: what is opened, read, and said of a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from graphdist.runtime.files.checkpoint_files import (
    full_disk,
    open_regular_file,
    read_small,
    size_of,
    write_synced,
)


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file"
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)  # without O_NONBLOCK it would be waited for
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(OSError, match=r"it is no file|Is a directory"), open_regular_file(file):
        pass
    assert size_of(file) is None


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_synced(file, b"abc")
    assert read_small(file, 3) == b"abc"
    assert size_of(file) == 3
    with pytest.raises(ValueError, match="it has 3 bytes, and may have 2"):
        read_small(file, 2)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "none", 1)
    assert size_of(tmp_path / "none") is size_of(tmp_path / "\0") is None


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "no room"), True),
        (OSError(errno.EDQUOT, "no room"), True),
        (OSError(errno.EACCES, "not allowed"), False),
        (ValueError("RESOURCE_EXHAUSTED: [os_error_code='28']"), True),  # as tensorstore says it
        (ValueError("PERMISSION_DENIED: [os_error_code='13']"), False),
        (ValueError("nothing of the kind"), False),
    ],
)
def test_a_full_disk_is_told_from_other_errors(
    tmp_path: Path, error: Exception, is_full: bool
) -> None:
    found = full_disk(error, tmp_path)
    assert (found is not None) is is_full
    if found is not None:
        assert "MiB are free" in str(found)
        assert str(tmp_path) in str(found)
