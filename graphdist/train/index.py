"""The part of a checkpoint that a worker saves, and the reader of a saved checkpoint.

`graphdist.runtime.files.checkpoint_index` describes the index on disk. Arrays are assigned to the
workers by size: the largest first, each to the worker with the fewest bytes. Every worker computes
the same assignment, so the workers exchange no messages about the assignment. Of an array that is
sharded over the workers, each worker writes the shards that it holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any  # Any: JSON

from graphdist.data.dataset_parts import joined_states
from graphdist.quoted import quoted
from graphdist.runtime.files.checkpoint_arrays import read_arrays
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.files.checkpoint_folders import checkpoints_in
from graphdist.runtime.files.checkpoint_index import MOST, read_index, stored_value
from graphdist.runtime.files.checkpoint_storage import CheckpointFiles, CheckpointFolder
from graphdist.runtime.processes.workers import Workers
from graphdist.runtime.spans import Span
from graphdist.train.entries import Entries
from graphdist.train.leaves import (
    Array,
    ArrayEntry,
    CheckpointEntry,
    StateEntry,
    ValueEntry,
)
from graphdist.train.matched_entries import SavedEntries

MOST_BYTES_IN_A_FILE = 2**28
"""The size in bytes above which an array is saved in several files: they are written and read side
by side, and an object of a bucket has a largest size."""


@dataclass
class Snapshot:
    """A worker's part of a checkpoint: copies of its arrays by file, and a report on them."""

    files: dict[str, Array]
    report: dict[str, Any]
    values: dict[str, Any]
    aliases: dict[str, str]

    def index(
        self,
        reports: list[Any],
        checksums: list[dict[str, str]],
        folder: CheckpointFolder,
        save_counter: int,
    ) -> dict[str, Any]:
        """Return the index, from the reports of all workers and the checksums of their files."""
        last = max((each.index.sequence for each in checkpoints_in(folder)), default=0)
        written: dict[str, list[dict[str, Any]]] = {}
        for part, (report, of_files) in enumerate(zip(reports, checksums, strict=True)):
            for name, records in report["arrays"].items():
                for record in records:
                    file = {**record, "part": part, "crc32": of_files.get(record["file"])}
                    written.setdefault(name, []).append(file)
        own_states = self.report["states"]
        states = {name: [report["states"][name] for report in reports] for name in own_states}
        return {
            "sequence": min(last + 1, MOST),
            "save_counter": min(save_counter, MOST),
            "saved_at": time.time(),
            "workers": len(reports),
            "arrays": {name: _record(files) for name, files in written.items()},
            "values": self.values,
            "states": states,
            "aliases": self.aliases,
        }


def _record(files: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the record of an array in the index, from the records of its files."""
    (first, *others) = sorted(files, key=lambda file: file.get("start", 0))
    if "start" not in first:
        return first
    described = {name: first[name] for name in ("dtype", "shape", "stored", "sliced_along")}
    of_slice = ("size", "part", "file", "crc32")
    slices = [{name: file[name] for name in of_slice} for file in (first, *others)]
    return {**described, "slices": slices}


def owners(entries: Iterable[ArrayEntry], count: int) -> dict[str, int]:
    """Return which of `count` workers writes each array, by the array's name."""
    loads = [0] * count
    owner_of: dict[str, int] = {}
    for entry in sorted(entries, key=lambda entry: (-entry.num_bytes, entry.name)):
        owner_of[entry.name] = owner = loads.index(min(loads))
        loads[owner] += entry.num_bytes
    return owner_of


def snapshot(entries: Entries, workers: Workers) -> Snapshot:
    """Copy this worker's part to the host.

    All workers call this function, because some reads are collective.

    The copies are complete on return: the next step donates the variables' buffers.
    """
    arrays = [entry for entry in entries.by_name.values() if isinstance(entry, ArrayEntry)]
    owner = owners((entry for entry in arrays if entry.slices is None), workers.count)
    files: dict[str, Array] = {}
    records: dict[str, Any] = {}
    for entry in arrays:
        for array, where in _own_parts(entry, owner.get(entry.name) == workers.index):
            file = str(len(files))
            files[file] = array
            stored = [array.dtype.name, [*entry.shape, *entry.key_shape]]
            described = {"dtype": entry.dtype, "shape": list(entry.shape), "stored": stored}
            records.setdefault(entry.name, []).append({**described, "file": file, **where})
    others = entries.by_name.values()
    values = {
        entry.name: stored_value(entry.value) for entry in others if isinstance(entry, ValueEntry)
    }
    states = {entry.name: entry.read() for entry in others if isinstance(entry, StateEntry)}
    return Snapshot(files, {"arrays": records, "states": states}, values, dict(entries.aliases))


def _own_parts(entry: ArrayEntry, is_mine: bool) -> Iterator[tuple[Array, dict[str, int]]]:
    """Yield this worker's parts of an array, each with its position unless it is the full array.

    An array of more than `MOST_BYTES_IN_A_FILE` is divided along the dimension that it is sharded
    along, or else the first dimension that is long enough.
    """
    if entry.slices is None:
        array = entry.read() if is_mine or entry.is_read_by_all else None
        if array is None or not is_mine:
            return
        span = None
    else:
        own = entry.slices.copy_of_own_shards()
        if own is None:
            return
        span, array = own
    count = -(-array.nbytes // MOST_BYTES_IN_A_FILE)
    least = min(count, max(array.shape, default=1))
    if span is None and least <= 1:
        yield array, {}
        return
    if span is None:
        dimension = next(each for each, size in enumerate(array.shape) if size >= least)
        span = Span(dimension, 0, array.shape[dimension])
    bytes_of_each = max(1, array.nbytes // max(1, span.stop - span.start))
    size = max(1, MOST_BYTES_IN_A_FILE // bytes_of_each)
    for start in range(span.start, span.stop, size):
        part = Span(span.dimension, start, min(start + size, span.stop))
        where = {"sliced_along": part.dimension, "start": start, "size": part.stop - start}
        yield array[part.within(span).index], where


class SavedCheckpoint(SavedEntries):
    """Reads a saved checkpoint."""

    def __init__(self, path: str, files: CheckpointFiles) -> None:
        """Read the index; raises the errors of `read_index`.

        `path` is the user's name of the checkpoint.
        """
        self.path, self._files = path, files
        index = self.index = read_index(files)
        self.arrays, self.values, self.states = index.arrays, index.values, index.states
        self.names = {*self.arrays, *self.values, *self.states}

    def saved_as(self, name: str) -> str | None:
        """Return the name under which an entry was saved; None if it was not saved."""
        name = self.index.aliases.get(name, name)
        return name if name in self.names else None

    def disagreement(self, entry: CheckpointEntry, name: str) -> str | None:
        """Return why an entry cannot be restored from the saved entry `name`; None if it can."""
        if isinstance(entry, ArrayEntry) and name in self.arrays:
            record = self.arrays[name]
            if entry.takes(record.dtype, record.shape, record.stored_shape):
                return None
        elif isinstance(entry, ValueEntry) and name in self.values:
            if can_take(entry.value, self.values[name]):
                return None
        elif isinstance(entry, StateEntry) and name in self.states:
            return None
        return f"{entry.name!r} is {entry}, saved was {self._description(name)}"

    def _description(self, name: str) -> str:
        if name in self.arrays:
            return f"{self.arrays[name].dtype}{list(self.arrays[name].shape)}"
        if name in self.values:
            return quoted(self.values[name])
        return "an iterator"

    def read(self, names: Iterable[str], spans: Iterable[Span | None] = ()) -> Iterator[Array]:
        """Yield the arrays with these names; `spans` are the parts to read, None for all of one."""
        arrays = [(self.arrays[name], span) for name, span in zip_longest(names, spans)]
        return read_arrays(self._files, self.path, arrays)

    def state(self, name: str, workers: Workers) -> Any:
        """Return this worker's state; raises `CheckpointError` if no saved state is for it."""
        states = self.states[name]
        if len(states) == workers.count:
            return states[workers.index]
        try:
            return joined_states(states)
        except ValueError:
            raise CheckpointError(
                f"{name!r} of checkpoint {self.path} was saved by {len(states)} workers at "
                f"different positions, and is restored on {workers.count}",
                hint=f"restore on {len(states)} workers, or leave {name!r} out",
            ) from None


def can_take(value: Any, saved: Any) -> bool:
    """Return whether a saved value can replace a value.

    >>> can_take(1.0, 3), can_take(1, 3.5), can_take(1, "3")
    (True, False, False)
    """
    is_widened = type(value) is float and type(saved) is int and abs(saved) <= 2**1023
    return type(value) is type(saved) or is_widened
