"""The folders of checkpoints: lists them, checks that they are complete, renames and removes them.

    ckpt-3/                     a checkpoint
    ckpt-4.1f0c9a2e.partial/    a checkpoint that its writer is writing or removing
    ckpt-3.replaced/            a checkpoint that is being replaced, between two renames
    .ckpt.writer                the writer of these; see `checkpoint_lock`

A link in a folder is no checkpoint: it is skipped with a line in the log, and a writer does not
follow it. But a user may name the path of a link to a checkpoint, to read it.

Readers change nothing. The next writer removes the remains of killed processes. Readers take no
lock either: a checkpoint may disappear while it is read, so a missing file is damage only if the
checkpoint still exists.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from graphdist.runtime.files.checkpoint_arrays import missing_file
from graphdist.runtime.files.checkpoint_files import (
    CheckpointError,
    UnreadableCheckpointError,
    erase,
    sync,
)
from graphdist.runtime.files.checkpoint_index import INDEX, Index, read_index
from graphdist.runtime.files.checkpoint_lock import check_free

PARTIAL, REPLACED = ".partial", ".replaced"
_MAX_LISTINGS = 20
"""How often a folder is listed, if a checkpoint disappears meanwhile."""
_log = logging.getLogger("graphdist")
_named_in_the_log: set[Path] = set()


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint: its path, the folder that holds it at the moment, and its index."""

    path: Path
    place: Path
    index: Index

    @property
    def order(self) -> tuple[int, int]:
        """Return a key that orders checkpoints by their saving."""
        return self.index.sequence, int(self.path.name.rpartition("-")[2])


def existing(path: Path) -> Path | None:
    """Return the folder that holds a checkpoint; None if there is no such checkpoint."""
    try:
        for folder in (path, _replaced_name(path)):
            if (folder / INDEX).is_file():
                return folder
    except OSError as error:
        raise _not_listed(path.parent, error) from error
    return None


def _replaced_name(path: Path) -> Path:
    """Return the name of a checkpoint that is being replaced."""
    return path.parent / (path.name + REPLACED)


def checkpoints_in(folder: Path, stem: str = "") -> list[FoundCheckpoint]:
    """Return the checkpoints `<stem>-<number>` of a folder, in the order of their saving.

    Without a stem, the checkpoints of all stems. A checkpoint with a damaged index is skipped, with
    a line in the log.
    """
    return _listed(folder, stem).readable


def complete_in(folder: Path, stem: str) -> list[FoundCheckpoint]:
    """Return the checkpoints that have all their files, by name and size."""
    return [checkpoint for checkpoint in checkpoints_in(folder, stem) if _is_complete(checkpoint)]


def latest_in(folder: Path, stem: str = "", without: Collection[Path] = ()) -> Path | None:
    """Return the latest checkpoint that has all its files, by name and size; None without one.

    Damaged checkpoints are skipped with a line in the log; those in `without` are skipped, too.
    """
    for _ in range(_MAX_LISTINGS):
        listing = _listed(folder, stem)
        is_unchanged = listing.is_unchanged
        for checkpoint in reversed(listing.readable):
            if checkpoint.path not in without:
                is_complete = _is_complete(checkpoint)
                if is_complete:
                    return checkpoint.path
                is_unchanged &= is_complete is not None
        if is_unchanged:
            break
    return None


@dataclass
class _Listing:
    """The checkpoints of a folder."""

    readable: list[FoundCheckpoint]
    """Those with an index, in the order of their saving."""
    damaged: list[Path]
    """The paths of the others."""
    is_unchanged: bool = True
    """Whether none was removed meanwhile."""


def _listed(folder: Path, stem: str) -> _Listing:
    """Return the checkpoints of a folder; the damaged ones are named in the log."""
    listing = _Listing([], [])
    name = re.compile(rf"{re.escape(stem) if stem else '.+'}-\d+", re.ASCII | re.DOTALL)
    try:
        entries = [entry for entry in folder.iterdir() if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return listing
    except OSError as error:
        raise _not_listed(folder, error) from error
    for path in {entry.with_name(entry.name.removesuffix(REPLACED)) for entry in entries}:
        if not name.fullmatch(path.name):
            continue
        place, damage = existing(path), ""
        try:
            if place is not None and place.is_symlink():
                damage = "it is a symbolic link"
            elif place is not None:
                listing.readable.append(FoundCheckpoint(path, place, read_index(place)))
            elif any(path.glob("part-*")):
                damage = f"{INDEX} is not there"
            else:
                listing.is_unchanged &= path.exists()
        except UnreadableCheckpointError as error:
            if existing(path) is None:
                listing.is_unchanged = False
            else:
                damage = error.what
        if damage:
            _log_once(path, damage)
            listing.damaged.append(path)
    listing.readable.sort(key=lambda checkpoint: checkpoint.order)
    return listing


def _not_listed(folder: Path, error: OSError) -> CheckpointError:
    """Return the error for a folder that cannot be listed."""
    return CheckpointError(
        f"the checkpoints in {folder} cannot be read: {error.strerror}",
        hint="give a folder that this process may read",
    )


def damaged_in(folder: Path, stem: str) -> list[Path]:
    """Return the incomplete checkpoints of a folder, by names and sizes of files."""
    listing = _listed(folder, stem)
    incomplete = [each.path for each in listing.readable if _is_complete(each) is False]
    return sorted([*listing.damaged, *incomplete])


def _is_complete(checkpoint: FoundCheckpoint) -> bool | None:
    """Return whether all files exist; None if the checkpoint itself was removed."""
    what = missing_file(checkpoint.place, checkpoint.index)
    if what is None:
        return True
    if is_changed(checkpoint.path, checkpoint.index):
        return None
    _log_once(checkpoint.path, what)
    return False


def is_changed(path: Path, index: Index) -> bool:
    """Return whether a checkpoint was removed or replaced since it was read."""
    place = existing(path)
    try:
        now = None if place is None else read_index(place)
        return now is None or (now.saved_at, now.seal) != (index.saved_at, index.seal)
    except CheckpointError:
        return existing(path) is None


def _log_once(path: Path, what: str) -> None:
    """Log a damaged checkpoint, once: some programs list the folder every second."""
    if path not in _named_in_the_log:
        _named_in_the_log.add(path)
        _log.warning("checkpoint %s is damaged and is passed over: %s", path, what)


# For the writer.


def partial_name(path: Path) -> Path:
    """Return a unique name for a checkpoint that is being written or removed."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")


def remove(path: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that no reader sees it without some files."""
    for folder in (path, _replaced_name(path)):
        if os.path.lexists(folder):
            renamed = partial_name(path)
            folder.rename(renamed)
            erase(renamed)


def remove_all(folder: Path, stem: str) -> None:
    """Remove the checkpoints `<stem>-<number>` of a folder, also damaged ones, and remains."""
    listing = _listed(folder, stem)
    for path in (*listing.damaged, *(checkpoint.path for checkpoint in listing.readable)):
        remove(path)
    remove_remains(folder, stem)


def remove_remains(folder: Path, stem: str) -> None:
    """Remove partial checkpoints of a name that killed writers have left; only its writer may.

    It keeps a numbered checkpoint that another process is writing.
    """
    remains = re.compile(
        rf"(?P<name>{re.escape(stem)}(-\d+)?)"
        rf"((\.[0-9a-f]+)?{re.escape(PARTIAL)}|(?P<replaced>{re.escape(REPLACED)}))",
        re.ASCII,
    )
    for path in list(folder.iterdir()):
        match = remains.fullmatch(path.name)
        if match is None or (match["replaced"] and not (folder / match["name"] / INDEX).is_file()):
            continue
        try:
            check_free(folder, match["name"])
        except CheckpointError:
            continue
        erase(path)


def check_replaceable(path: Path) -> None:
    """Raise `CheckpointError` if a path is no checkpoint: its content would be lost."""
    if path.name.endswith((PARTIAL, REPLACED)):
        raise CheckpointError(
            f"{path.name!r} is a name of checkpoints that are being written, which are removed if "
            f"their writer is killed",
            hint=f"give a name that ends neither in {PARTIAL} nor in {REPLACED}",
        )
    if path.is_symlink():
        raise CheckpointError(
            f"{path.name!r} is a symbolic link, which a checkpoint would replace",
            hint="give the path that it leads to, or a path that does not exist",
        )
    is_empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty and not (path / INDEX).is_file():
        raise CheckpointError(
            f"{path.name!r} exists and is no checkpoint, but a checkpoint would replace it",
            hint=f"give a path in it, such as {path.name}/checkpoint, or one that does not exist",
        )


def give_name(partial: Path, path: Path) -> None:
    """Give a complete checkpoint its name; replace the checkpoint that has the name."""
    replaced = _replaced_name(path)
    if path.exists():
        erase(replaced)
        path.rename(replaced)
    partial.rename(path)
    sync(path.parent)
    erase(replaced)
