"""Opens regular files, and refuses pipes, devices, folders and sockets.

Reading a pipe or a terminal may wait for ever, and `/dev/zero` has no end. So the kind of a file is
checked before it is opened, since opening a device can have effects, and again when it is open,
since it may have been replaced. Opening does not wait for the other end of a pipe. Links are
followed to a file that a user names, but not inside a folder of somebody else.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFileError(OSError):
    """A path is no regular file."""


def open_regular(
    path: str | os.PathLike[str], flags: int = os.O_RDONLY, *, follows_links: bool = False
) -> int:
    """Return the descriptor of a regular file.

    Raises `NotAFileError` for another kind of file, and OSError.
    """
    names = (
        ("O_NONBLOCK", "O_BINARY") if follows_links else ("O_NONBLOCK", "O_BINARY", "O_NOFOLLOW")
    )
    flags |= sum(getattr(os, name, 0) for name in names)
    with suppress(FileNotFoundError):  # the flags may create it
        _require_regular(path, os.stat(path, follow_symlinks=follows_links))
    descriptor = os.open(path, flags, 0o666)
    try:
        _require_regular(path, os.fstat(descriptor))
    except NotAFileError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise NotAFileError(errno.ELOOP, "it is a symbolic link", os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "of another kind")
        raise NotAFileError(errno.EINVAL, f"it is {kind}, and no file", os.fspath(path))
