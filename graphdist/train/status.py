"""The result of a restore: the entries restored, and those that only the file or objects have."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar  # Any: restored objects

from graphdist.data.elements import at_the_users_line
from graphdist.errors import GraphdistError
from graphdist.runtime.files.checkpoint import done_by_all
from graphdist.runtime.files.checkpoint_files import CheckpointError, UnreadableCheckpointError
from graphdist.runtime.processes.workers import worker_group
from graphdist.train.entries import Entries, entries_of, outside_scopes
from graphdist.train.leaves import ArrayEntry, CheckpointEntry, StateEntry
from graphdist.train.matched_entries import MatchStatus, nothing, refuse_disagreements

if TYPE_CHECKING:
    from graphdist.train.index import SavedCheckpoint

_T = TypeVar("_T")
_reads = itertools.count()
"""Numbers the reads of shards by this process. All workers read in the same order."""


class LoadStatus(MatchStatus["SavedCheckpoint"]):
    """The result of `Checkpoint.restore` and `read`.

    If saved entries have not been restored when this object is garbage-collected, the log names
    them, unless `expect_partial` was called or `assert_consumed` has passed. If the path was None,
    everything counts as matched.
    """

    _put_back: Callable[[], None] = staticmethod(nothing)
    """Writes the values that `prepared` has read."""

    @at_the_users_line()
    def prepared(self, names: Iterable[str] | None = None) -> Self:
        """Read the saved values of the objects with these names. `restore` writes the values.

        None reads the values of all objects. Raises `CheckpointError` if a saved value does not fit
        its object, such as by its shape or dtype. Then nothing is restored.
        """
        saved = self.saved
        if saved is not None:
            outside_scopes(lambda: self._read(saved, names))
        return self

    @at_the_users_line()
    def restore(self) -> None:
        """Write the values, which `prepared` has read, to their objects."""
        outside_scopes(self._put_back)
        self._is_begun, self._put_back = True, nothing

    def _read(self, saved: SavedCheckpoint, names: Iterable[str] | None) -> None:
        entries = entries_of(self.objects, names)
        pairs = self._pairs(saved, entries)
        reasons = [text for entry, name in pairs if (text := saved.disagreement(entry, name))]
        hint = "make the objects as they were when they were saved"
        refuse_disagreements(f"checkpoint {saved.path}", reasons, hint)
        # All values are read before any is written, so that an error restores nothing.
        values = read_by_all(saved, pairs, lambda: list(_values(saved, pairs)))
        self._put_back = partial(self._write, entries, pairs, values)

    def _pairs(self, saved: SavedCheckpoint, entries: Entries) -> list[tuple[CheckpointEntry, str]]:
        """Return the entries to restore, with the names of their saved values."""
        saved_names = saved.of_entries(entries)
        return [
            (entry, name)
            for entry in entries.by_name.values()
            if (name := saved_names[entry.name]) is not None
            and entry.name not in self._written
            and not self._has(entry.holder)
        ]

    def _write(
        self,
        entries: Entries,
        pairs: list[tuple[CheckpointEntry, str]],
        values: list[tuple[Callable[[Any], None], Any]],
    ) -> None:
        while values:
            write, value = values.pop(0)  # popped, so that its memory is freed once written
            write(value)
        entries.finish()
        self.note((entry for entry, _ in pairs), (name for _, name in pairs))
        for inner in entries.inner:
            inner.follow(self)


def _values(
    saved: SavedCheckpoint, pairs: list[tuple[CheckpointEntry, str]]
) -> Iterator[tuple[Callable[[Any], None], Any]]:
    """Yield each entry's writer and value. States come first, because setting a state may fail."""
    for entry, name in pairs:
        if isinstance(entry, StateEntry):
            yield _state_setter(entry, saved.path), saved.state(name, worker_group())
        elif not isinstance(entry, ArrayEntry):
            yield entry.write, type(entry.value)(saved.values[name])
    arrays = [(entry, name) for entry, name in pairs if isinstance(entry, ArrayEntry)]
    contents = saved.read((name for _, name in arrays), (entry.span for entry, _ in arrays))
    for (entry, _), array in zip(arrays, contents, strict=True):
        yield entry.write, array


def read_by_all(
    saved: SavedCheckpoint, pairs: list[tuple[CheckpointEntry, str]], read: Callable[[], _T]
) -> _T:
    """Return the result of `read`, once all workers have read their part of the same checkpoint.

    Only for sharded variables do workers read different files. Without a sharded variable no worker
    waits for another. Raises `UnreadableCheckpointError` if another worker could not read its part.
    """
    if all(not isinstance(entry, ArrayEntry) or entry.slices is None for entry, _ in pairs):
        return read()
    result: list[_T] = []

    def read_one() -> str:
        result.append(read())
        return saved.index.seal

    name = os.path.basename(saved.path)
    call, doing = f"checkpoint/slices/{next(_reads)}", f"{name} is read"
    for worker, seal in enumerate(done_by_all(worker_group(), call, read_one, doing)):
        if seal != saved.index.seal:
            raise UnreadableCheckpointError(
                f"worker {worker}: its checkpoint {name} is another save"
            )
    return result.pop()


def _state_setter(entry: StateEntry, path: str) -> Callable[[Any], None]:
    """Return a function that sets an object's state, and raises `CheckpointError` on failure."""

    def write(state: Any) -> None:
        try:
            entry.write(state)
        except GraphdistError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"the state of {entry.name!r} in checkpoint {path} cannot be restored: "
                f"{type(error).__name__}: {error}",
                hint="it is of another kind of object, or the checkpoint was changed",
            ) from error

    return write
