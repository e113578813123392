"""The index of a checkpoint: what is in it, by name, and which worker wrote what.

    {"format": 1, "sequence": 7, "save_counter": 3, "saved_at": 1767225600.0, "workers": 2,
     "arrays": {"params/w": {"dtype": "float32", "shape": [784, 128],
                             "part": 0, "file": "0", "stored": ["float32", [784, 128]]}},
     "values": {"step": 300},
     "states": {"iterator": [{..}, {..}]},
     "aliases": {"optimizer/params/w": "params/w"}}

`sequence` orders the checkpoints of a folder by when they were saved, whatever clocks say. `stored`
differs from dtype and shape for random keys, whose numbers are stored. `states` has one for each
worker.

Arrays are shared out among the workers by size, the largest first, each to the one that has least;
so that all know who writes what without a word.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: JSON

from graphdist.ir.source import Source
from graphdist.runtime.checkpoints import (
    CheckpointError,
    checkpoints_in,
    existing,
    read_arrays,
    read_index,
)
from graphdist.runtime.workers import Workers
from graphdist.train.entries import Array, ArrayEntry, Entries, Entry, StateEntry, ValueEntry

FORMAT = 1


@dataclass
class Snapshot:
    """What a worker writes: copies of its arrays by file, and what it reports of them."""

    files: dict[str, Array]
    report: dict[str, Any]
    values: dict[str, Any]
    aliases: dict[str, str]

    def index(self, reports: list[Any], path: Path, save_counter: int) -> dict[str, Any]:
        """Return the index of what all workers report."""
        last = sequence_number(checkpoints_in(path.parent))
        arrays = {
            name: {**record, "part": part}
            for part, report in enumerate(reports)
            for name, record in report["arrays"].items()
        }
        states = {name: [report["states"][name] for report in reports] for name in self.states}
        return {
            "format": FORMAT,
            "sequence": last + 1,
            "save_counter": save_counter,
            "saved_at": time.time(),
            "workers": len(reports),
            "arrays": arrays,
            "values": self.values,
            "states": states,
            "aliases": self.aliases,
        }

    @property
    def states(self) -> dict[str, Any]:
        """Return this worker's states."""
        states: dict[str, Any] = self.report["states"]
        return states


def sequence_number(paths: list[Path]) -> int:
    """Return the number in the sequence of the last of some checkpoints; 0 of none."""
    for path in reversed(paths):
        place = existing(path)
        if place is not None:
            return int(read_index(place)["sequence"])
    return 0


def owners(entries: Iterable[ArrayEntry], count: int) -> dict[str, int]:
    """Return which of `count` workers writes each array."""
    loads = [0] * count
    found: dict[str, int] = {}
    for entry in sorted(entries, key=lambda entry: (-entry.num_bytes, entry.name)):
        found[entry.name] = owner = loads.index(min(loads))
        loads[owner] += entry.num_bytes
    return found


def snapshot(entries: Entries, workers: Workers) -> Snapshot:
    """Copy what this worker writes; all workers call it, since some reading takes all."""
    arrays = [entry for entry in entries.by_name.values() if isinstance(entry, ArrayEntry)]
    owner = owners(arrays, workers.count)
    files: dict[str, Array] = {}
    records: dict[str, Any] = {}
    for entry in arrays:
        is_mine = owner[entry.name] == workers.index
        array = entry.read() if is_mine or entry.is_read_by_all else None
        if array is not None and is_mine:
            file = str(len(files))
            files[file] = array
            records[entry.name] = {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "file": file,
                "stored": [array.dtype.name, list(array.shape)],
            }
    others = entries.by_name.values()
    values = {entry.name: entry.value for entry in others if isinstance(entry, ValueEntry)}
    states = {entry.name: entry.read() for entry in others if isinstance(entry, StateEntry)}
    return Snapshot(files, {"arrays": records, "states": states}, values, dict(entries.aliases))


class Saved:
    """A checkpoint that is there, to be read."""

    def __init__(self, path: str, place: Path, at: Source) -> None:
        """Read the index; raises `CheckpointError` for one of another format.

        `path` is what the user calls the checkpoint, `place` the folder it is in.
        """
        self.path, self._place, self._at = path, place, at
        index = read_index(place, at)
        if index.get("format") != FORMAT:
            raise CheckpointError(
                f"checkpoint {path} is of format {index.get('format')}, this version reads "
                f"{FORMAT}",
                source=at,
                hint="read it with the version of graphdist that wrote it, or a newer one",
            )
        self.arrays: dict[str, Any] = index["arrays"]
        self.values: dict[str, Any] = index["values"]
        self.states: dict[str, list[Any]] = index["states"]
        self._aliases: dict[str, str] = index["aliases"]
        self.save_counter: int = index["save_counter"]

    @property
    def names(self) -> set[str]:
        """Return the names of all that was saved, without aliases."""
        return {*self.arrays, *self.values, *self.states}

    def name_of(self, name: str) -> str | None:
        """Return the name under which something was saved; None if it was not."""
        name = self._aliases.get(name, name)
        return name if name in self.names else None

    def disagreement(self, entry: Entry, name: str) -> str | None:
        """Return why an entry cannot have what was saved under a name; None if it can."""
        if isinstance(entry, ArrayEntry) and name in self.arrays:
            record = self.arrays[name]
            if entry.takes(record["dtype"], record["shape"]):
                return None
        elif isinstance(entry, ValueEntry) and name in self.values:
            if can_take(entry.value, self.values[name]):
                return None
        elif isinstance(entry, StateEntry) and name in self.states:
            return None
        return f"{entry.name!r} is {entry}, saved was {self._description(name)}"

    def _description(self, name: str) -> str:
        if name in self.arrays:
            return f"{self.arrays[name]['dtype']}{self.arrays[name]['shape']}"
        if name in self.values:
            return f"{self.values[name]!r}"
        return "an iterator"

    def read(self, names: Iterable[str]) -> Iterator[Array]:
        """Yield the arrays of these names."""
        for name in names:
            record = self.arrays[name]
            dtype, shape = record["stored"]
            folder = self._place / f"part-{int(record['part'])}"
            yield from read_arrays(
                folder, [(str(int(record["file"])), tuple(shape), dtype)], self._at
            )

    def state(self, name: str, workers: Workers) -> Any:
        """Return the state for this worker; raises `CheckpointError` if it was another's."""
        states = self.states[name]
        if len(states) == workers.count:
            return states[workers.index]
        if any(state != states[0] for state in states):
            raise CheckpointError(
                f"{name!r} of checkpoint {self.path} was saved by {len(states)} workers at "
                f"different positions, and is restored on {workers.count}",
                source=self._at,
                hint=f"restore on {len(states)} workers, or leave {name!r} out",
            )
        return states[0]


def can_take(value: Any, saved: Any) -> bool:
    """Return whether a saved value can take the place of one.

    >>> can_take(1.0, 3), can_take(1, 3.5), can_take(1, "3")
    (True, False, False)
    """
    return type(value) is type(saved) or (type(value) is float and type(saved) is int)
