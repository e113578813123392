"""Opens files that users name, and nothing else that has a name in a folder.

A pipe that nobody writes to and a terminal are waited for without end, and `/dev/zero` has no end.
So what is there is asked for before it is opened, since opening a device can have effects, and once
more when it is open, since it may have been replaced. Opening does not wait for the other end of a
pipe.
"""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NoRegularFileError(OSError):
    """What a path names is a folder, a pipe, a socket or a device."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading; raises `NoRegularFileError` for anything else, and OSError."""
    _require_regular(path, os.stat(path))
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    opened = os.open(path, flags)
    try:
        _require_regular(path, os.fstat(opened))
    except NoRegularFileError:
        os.close(opened)
        raise
    return os.fdopen(opened, "rb")


def _require_regular(path: str | os.PathLike[str], found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file of data")
        raise NoRegularFileError(f"{os.fspath(path)} is {kind}, and no file")
