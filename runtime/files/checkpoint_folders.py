"""Lists the checkpoints of a folder, in the order of their saving, and checks their files.

Readers change nothing and take no lock. So a checkpoint may disappear while it is read, and a
missing file is damage only if the checkpoint still exists.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass

from graphdist.runtime.files.checkpoint_arrays import missing_file
from graphdist.runtime.files.checkpoint_files import CheckpointError, UnreadableCheckpointError
from graphdist.runtime.files.checkpoint_index import Index, read_index
from graphdist.runtime.files.checkpoint_storage import CheckpointFiles, CheckpointFolder

_MAX_LISTINGS = 20
"""How often a folder is listed again because a checkpoint disappeared during the listing."""
_log = logging.getLogger("graphdist")
_named_in_the_log: set[str] = set()


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint: its folder and name, its files, and its index."""

    folder: CheckpointFolder
    name: str
    files: CheckpointFiles
    index: Index

    @property
    def order(self) -> tuple[int, int]:
        """Return a key that orders checkpoints by their saving."""
        return self.index.sequence, int(self.name.rpartition("-")[2])


def checkpoints_in(folder: CheckpointFolder, stem: str = "") -> list[FoundCheckpoint]:
    """Return the checkpoints `<stem>-<number>` of a folder, in the order of their saving.

    Without a stem, the checkpoints of all stems. A checkpoint with a damaged index is skipped, with
    a line in the log.
    """
    return _listed(folder, stem).readable


def complete_in(folder: CheckpointFolder, stem: str) -> list[FoundCheckpoint]:
    """Return the checkpoints of a folder that have all their files."""
    return [checkpoint for checkpoint in checkpoints_in(folder, stem) if _is_complete(checkpoint)]


def latest_in(
    folder: CheckpointFolder, stem: str = "", without: Collection[str] = ()
) -> str | None:
    """Return the name of the latest checkpoint that has all its files; None without one.

    Damaged checkpoints are skipped with a line in the log. Those named in `without` are skipped,
    too.
    """
    for _ in range(_MAX_LISTINGS):
        listing = _listed(folder, stem)
        is_unchanged = listing.is_unchanged
        for checkpoint in reversed(listing.readable):
            if checkpoint.name not in without:
                is_complete = _is_complete(checkpoint)
                if is_complete:
                    return checkpoint.name
                is_unchanged &= is_complete is not None
        if is_unchanged:
            break
    return None


def damaged_in(folder: CheckpointFolder, stem: str) -> list[str]:
    """Return the names of the incomplete checkpoints of a folder."""
    listing = _listed(folder, stem)
    incomplete = [each.name for each in listing.readable if _is_complete(each) is False]
    return sorted([*listing.damaged, *incomplete])


def remove_all(folder: CheckpointFolder, stem: str) -> None:
    """Remove the checkpoints `<stem>-<number>`, also damaged ones, and what killed writers left."""
    listing = _listed(folder, stem)
    for name in (*listing.damaged, *(checkpoint.name for checkpoint in listing.readable)):
        folder.remove(name)
    folder.remove_remains(stem)


def is_changed(folder: CheckpointFolder, name: str, index: Index) -> bool:
    """Return whether a checkpoint was removed or replaced since it was read."""
    files = folder.find(name)
    try:
        now = None if files is None else read_index(files)
        return now is None or (now.saved_at, now.seal) != (index.saved_at, index.seal)
    except CheckpointError:
        return folder.find(name) is None


@dataclass
class _Listing:
    """The checkpoints of a folder."""

    readable: list[FoundCheckpoint]
    """The checkpoints that have an index, in the order of their saving."""
    damaged: list[str]
    """The names of the checkpoints without a readable index."""
    is_unchanged: bool = True
    """Whether no checkpoint was removed during the listing."""


def _listed(folder: CheckpointFolder, stem: str) -> _Listing:
    """Return the checkpoints of a folder; the damaged ones are named in the log."""
    listing = _Listing([], [])
    pattern = re.compile(rf"{re.escape(stem) if stem else '.+'}-\d+", re.ASCII | re.DOTALL)
    for name in folder.names():
        if not pattern.fullmatch(name):
            continue
        files, damage = folder.find(name), folder.damage_of(name)
        try:
            if files is None and not damage:
                listing.is_unchanged &= folder.has(name)
            elif files is not None and not damage:
                listing.readable.append(FoundCheckpoint(folder, name, files, read_index(files)))
        except UnreadableCheckpointError as error:
            if folder.find(name) is None:
                listing.is_unchanged = False
            else:
                damage = error.what
        if damage:
            _log_once(folder.path_of(name), damage)
            listing.damaged.append(name)
    listing.readable.sort(key=lambda checkpoint: checkpoint.order)
    return listing


def _is_complete(checkpoint: FoundCheckpoint) -> bool | None:
    """Return whether all files exist; None if the checkpoint itself was removed."""
    what = missing_file(checkpoint.files, checkpoint.index)
    if what is None:
        return True
    if is_changed(checkpoint.folder, checkpoint.name, checkpoint.index):
        return None
    _log_once(checkpoint.folder.path_of(checkpoint.name), what)
    return False


def _log_once(path: str, what: str) -> None:
    """Log a damaged checkpoint only once, since some programs list the folder every second."""
    if path not in _named_in_the_log:
        _named_in_the_log.add(path)
        _log.warning("checkpoint %s is damaged and is passed over: %s", path, what)
