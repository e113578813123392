"""A folder of checkpoints on a disk.

    ckpt-3/                     a checkpoint
    ckpt-4.1f0c9a2e.partial/    a checkpoint that its writer is writing or removing
    ckpt-3.replaced/            a checkpoint that is being replaced, between two renames
    .ckpt.writer                the writer of these; see `disk_lock`

A checkpoint is written under another name. Everything is synced to the disk before the rename,
since a file system may persist the rename first: then a crash would leave the name without the
contents. An older checkpoint of the same name is renamed first, and is found under that name if the
process dies between the two renames.

A folder's content may be damaged, truncated, or written by somebody else. So only regular files are
read, since a pipe or a device may never end, and the size is checked before memory is allocated.
Links are not followed: neither out of the folder of a checkpoint when it is read, nor out of the
folder of checkpoints when one is written or removed. A link in a folder of checkpoints is no
checkpoint, and is skipped with a line in the log. But a user may name the path of a link to a
checkpoint, to read it.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from graphdist.runtime.files.checkpoint_files import (
    BYTES_AT_ONCE,
    CheckpointError,
    erase,
    refusing_writes,
    sync,
    sync_folders,
    write_synced,
)
from graphdist.runtime.files.checkpoint_index import INDEX
from graphdist.runtime.files.checkpoint_lock import check_free
from graphdist.runtime.files.disk_lock import FileLock, file_of, require_file_free, take_file
from graphdist.runtime.files.regular_files import NotAFileError, open_regular

PARTIAL, REPLACED = ".partial", ".replaced"
_MARK = "kept"
"""A file of this name marks a checkpoint as one to keep."""


@dataclass(frozen=True)
class DiskFiles:
    """The files of a checkpoint on a disk; `CheckpointFiles` explains the methods."""

    folder: Path
    parts = ""

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.folder.name

    def read_small(self, file: PurePosixPath, most: int) -> bytes:
        """Return the content of a regular file."""
        with self._opened(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            if size > most:
                raise ValueError(f"it has {size:,} bytes, and may have {most:,}")
            return opened.read()

    def read_into(self, file: PurePosixPath, memory: memoryview) -> str:
        """Fill memory from a regular file, whose size is compared first."""
        crc = 0
        with self._opened(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            if size != len(memory):
                raise ValueError(f"it has {size:,} bytes, its index says {len(memory):,}")
            for start in range(0, size, BYTES_AT_ONCE):
                block = memory[start : start + BYTES_AT_ONCE]
                if opened.readinto(block) != len(block):
                    raise ValueError("it was cut short while it was read")
                crc = zlib.crc32(block, crc)
        return f"{crc:08x}"

    def _opened(self, file: PurePosixPath) -> io.FileIO:
        """Open a file for reading; raises the errors of `_path_of`, and `NotAFileError`."""
        return io.FileIO(open_regular(self._path_of(file)))

    def _path_of(self, file: PurePosixPath) -> Path:
        """Return the path of a file; raises `NotAFileError` if it is in a linked folder."""
        path = self.folder / file
        for folder in itertools.takewhile(lambda folder: folder != self.folder, path.parents):
            if folder.is_symlink():
                raise NotAFileError(errno.ELOOP, "it is a symbolic link", str(folder))
        return path

    def size_of(self, file: PurePosixPath) -> int | None:
        """Return the size of a regular file that may be opened; None if there is none."""
        try:
            status = self._path_of(file).lstat()
        except (OSError, ValueError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def first_wrong(self, files: Iterable[tuple[PurePosixPath, int | None]]) -> tuple[int, str]:
        """Return the position of the first file that is missing or has another size."""
        for position, (file, expected) in enumerate(files):
            size = self.size_of(file)
            if size is None or (expected is not None and size != expected):
                actual = "it is not there" if size is None else f"it has {size:,} bytes"
                wanted = "" if expected is None else f", its index says {expected:,}"
                return position, actual + wanted
        return -1, ""

    def write(self, file: PurePosixPath, content: bytes | memoryview) -> str:
        """Write a new file and sync it; make the folders that it is in."""
        for folder in reversed(file.parents[:-1]):
            (self.folder / folder).mkdir(exist_ok=True)
        return write_synced(self.folder / file, content)

    def remove(self, file: PurePosixPath) -> None:
        """Remove a file."""
        (self.folder / file).unlink()

    def sync(self, folder: PurePosixPath) -> None:
        """Sync a folder and the folders in it."""
        sync_folders(self.folder / folder)


@dataclass(frozen=True)
class DiskFolder:
    """A folder of checkpoints on a disk; `CheckpointFolder` explains the methods."""

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def path_of(self, name: str) -> str:
        """Return the path of a checkpoint."""
        return str(self.folder / name)

    def names(self) -> Iterator[str]:
        """Yield the names of folders and of links to folders."""
        try:
            entries = [entry for entry in self.folder.iterdir() if entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._not_listed(error) from error
        yield from {entry.name.removesuffix(REPLACED) for entry in entries}

    def has(self, name: str) -> bool:
        """Return whether a file or folder has this name."""
        return (self.folder / name).exists()

    def find(self, name: str) -> DiskFiles | None:
        """Return the files of a checkpoint, also of one that is being replaced."""
        try:
            for folder in (self.folder / name, self._replaced(name)):
                if (folder / INDEX).is_file():
                    return DiskFiles(folder)
        except OSError as error:
            raise self._not_listed(error) from error
        return None

    def damage_of(self, name: str) -> str:
        """Return why an entry is no checkpoint: it is a link, or has parts and no index."""
        files = self.find(name)
        if files is not None:
            return "it is a symbolic link" if files.folder.is_symlink() else ""
        return f"{INDEX} is not there" if any((self.folder / name).glob("part-*")) else ""

    def obstacle_to_writing(self) -> str:
        """Return why the folder cannot be written; it need not exist."""
        for path in (self.folder, *self.folder.parents):
            if os.path.lexists(path):
                if not path.is_dir():
                    return f"{path} is no folder"
                may_write = os.access(path, os.W_OK | os.X_OK)
                return "" if may_write else f"this process may not write to {path}"
        return ""

    def is_marked(self, name: str) -> bool:
        """Return whether a checkpoint has the mark."""
        return os.path.lexists(self.folder / name / _MARK)

    def _replaced(self, name: str) -> Path:
        """Return the path that a checkpoint has while it is replaced."""
        return self.folder / (name + REPLACED)

    def _not_listed(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"the checkpoints in {self.folder} cannot be read: {error.strerror}",
            hint="give a folder that this process may read",
        )

    # For the writer.

    def prepare(self, name: str) -> None:
        """Create the folder; raise `CheckpointError` unless a checkpoint can have the name."""
        with refusing_writes(self.folder):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except FileExistsError:
                raise NotADirectoryError(errno.ENOTDIR, "", str(self.folder)) from None
            with suppress(FileNotFoundError):
                os.lstat(self._partial(name))  # raises if this name, the longest, is too long
        self.require_replaceable(name)

    def require_replaceable(self, name: str) -> None:
        """Raise `CheckpointError` if an entry is no checkpoint, since its content would be lost."""
        path = self.folder / name
        if name.endswith((PARTIAL, REPLACED)):
            raise CheckpointError(
                f"{name!r} is a name of checkpoints that are being written, which are removed if "
                f"their writer is killed",
                hint=f"give a name that ends neither in {PARTIAL} nor in {REPLACED}",
            )
        if path.is_symlink():
            raise CheckpointError(
                f"{name!r} is a symbolic link, which a checkpoint would replace",
                hint="give the path that it leads to, or a path that does not exist",
            )
        is_empty = path.is_dir() and not any(path.iterdir())
        if path.exists() and not is_empty and not (path / INDEX).is_file():
            raise CheckpointError(
                f"{name!r} exists and is no checkpoint, but a checkpoint would replace it",
                hint=f"give a path in it, such as {name}/checkpoint, or one that does not exist",
            )

    def begin(self, name: str) -> str:
        """Create a folder with a unique name; return that name."""
        partial = self._partial(name)
        partial.mkdir()
        return partial.name

    def unfinished(self, name: str, token: str) -> DiskFiles:
        """Return the files in a folder that `begin` created."""
        return DiskFiles(self.folder / token)

    def give_name(self, name: str, token: str, index: bytes, confirm: Callable[[], None]) -> None:
        """Write the index, sync everything, and rename the folder."""
        partial, path, replaced = self.folder / token, self.folder / name, self._replaced(name)
        write_synced(partial / INDEX, index)
        for folder in (*partial.glob("part-*"), partial):
            sync(folder)  # parts again: the reports were removed
        confirm()
        if path.exists():
            erase(replaced)
            path.rename(replaced)
        partial.rename(path)
        sync(self.folder)
        erase(replaced)

    def abandon(self, name: str, token: str) -> None:
        """Remove a folder that `begin` created."""
        erase(self.folder / token)

    def remove(self, name: str) -> None:
        """Rename a checkpoint, and then remove it."""
        for folder in (self.folder / name, self._replaced(name)):
            if os.path.lexists(folder):
                renamed = self._partial(name)
                folder.rename(renamed)
                erase(renamed)

    def remove_remains(self, stem: str) -> None:
        """Remove partial checkpoints, and replaced ones whose replacement has their name."""
        remains = re.compile(
            rf"(?P<name>{re.escape(stem)}(-\d+)?)"
            rf"((\.[0-9a-f]+)?{re.escape(PARTIAL)}|(?P<replaced>{re.escape(REPLACED)}))",
            re.ASCII,
        )
        for path in list(self.folder.iterdir()):
            match = remains.fullmatch(path.name)
            if match is None:
                continue
            if match["replaced"] and not (self.folder / match["name"] / INDEX).is_file():
                continue
            try:
                check_free(self, match["name"])
            except CheckpointError:
                continue
            erase(path)

    def _partial(self, name: str) -> Path:
        """Return a unique path for a checkpoint that is being written or removed."""
        return self.folder / f"{name}.{secrets.token_hex(4)}{PARTIAL}"

    def mark(self, name: str) -> None:
        """Create the file of the mark, which must be new, so that no link is followed."""
        (self.folder / name / _MARK).open("xb").close()

    def lock(self, stem: str) -> FileLock:
        """Lock the writer's file of a name."""
        return take_file(file_of(self.folder, stem), stem)

    def lock_key(self, stem: str) -> Path:
        """Return the writer's file of a name."""
        return file_of(self.folder, stem)

    def require_free(self, stem: str) -> None:
        """Raise `CheckpointError` if another process has locked the writer's file of a name."""
        require_file_free(file_of(self.folder, stem), stem)
