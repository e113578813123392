"""The result of a restore: the entries restored, and those that only the file or objects have."""

from __future__ import annotations

import itertools
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast  # Any: restored objects

from graphdist.data.elements import at_the_users_line
from graphdist.errors import GraphdistError, UnmatchedError
from graphdist.runtime.files.checkpoint import SECONDS_TO_WRITE
from graphdist.runtime.files.checkpoint_files import CheckpointError, UnreadableCheckpointError
from graphdist.runtime.processes.workers import exchange, worker_group
from graphdist.tracing.user_lines import here
from graphdist.train.entries import Entries, entries_of, outside_scopes
from graphdist.train.leaves import ArrayEntry, CheckpointEntry, StateEntry

if TYPE_CHECKING:
    from graphdist.train.checkpoint import Checkpoint
    from graphdist.train.index import SavedCheckpoint

_log = logging.getLogger("graphdist")
_T = TypeVar("_T")
_NAMES_SHOWN = 20
_reads = itertools.count()
"""Numbers the reads of shards by this process. All workers read in the same order."""


class LoadStatus:
    """The result of `Checkpoint.restore` and `read`.

    If saved entries have not been restored when this object is garbage-collected, the log names
    them, unless `expect_partial` was called or `assert_consumed` has passed. If the path was None,
    everything counts as matched.
    """

    def __init__(self, checkpoint: Checkpoint, saved: SavedCheckpoint | None) -> None:
        """Take a saved checkpoint; nothing is restored yet."""
        self.checkpoint, self.saved = checkpoint, saved
        self._restored: set[str] = set()
        """The names of the saved entries that were restored."""
        self._written: set[str] = set()
        """The names of the objects' entries to which values were restored."""
        self._holders: dict[int, Callable[[], Any]] = {}
        """The objects to which values were restored, by `id`."""
        self._is_begun = self._is_expected = False
        self._put_back = _nothing

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
        self._is_begun, self._put_back = True, _nothing

    def _read(self, saved: SavedCheckpoint, names: Iterable[str] | None) -> None:
        entries = entries_of(self.checkpoint, names)
        pairs = self._pairs(saved, entries)
        _refuse_disagreements(saved, pairs)
        # All values are read before any is written, so that an error restores nothing.
        values = read_by_all(saved, pairs, lambda: list(_values(saved, pairs)))
        self._put_back = partial(self._write, entries, pairs, values)

    def _pairs(self, saved: SavedCheckpoint, entries: Entries) -> list[tuple[CheckpointEntry, str]]:
        """Return the entries to restore, with the names of their saved values."""
        saved_names = saved.names_of(entries)
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
        self._restored |= {name for _, name in pairs}
        self._written |= {entry.name for entry, _ in pairs}
        for entry, _ in pairs:
            self._holders[id(entry.holder)] = _reference(entry.holder)
        for inner in entries.inner:
            inner.follow(self)

    def _has(self, holder: Any) -> bool:
        """Return whether an object was restored, under any name."""
        return holder is not None and self._holders.get(id(holder), _nothing)() is holder

    def assert_consumed(self) -> Self:
        """Raise `UnmatchedError` unless all objects were saved, and all saved entries restored."""
        missing, extra = self._missing(), sorted({*self._extra(), *self._passed_over()})
        if missing or extra:
            raise self._unmatched(missing, extra)
        self._is_expected = True
        return self

    def assert_existing_objects_matched(self) -> Self:
        """Raise `UnmatchedError` unless all objects were saved; there may be more saved entries."""
        missing, others = self._missing(), self._passed_over()
        if missing or others:
            raise self._unmatched(missing, others)
        return self

    def assert_nontrivial_match(self) -> Self:
        """Raise `UnmatchedError` if nothing at all was restored."""
        if self.saved is not None and not self._restored:
            raise self._unmatched(self._missing(), self._extra())
        return self

    def expect_partial(self) -> Self:
        """Accept that some saved entries are not restored: nothing is logged."""
        self._is_expected = True
        return self

    def _missing(self) -> list[str]:
        """Return the names of the objects' entries that the checkpoint does not have."""
        if self.saved is None:
            return []
        saved_names = self.saved.names_of(entries_of(self.checkpoint))
        return [name for name, saved_name in saved_names.items() if saved_name is None]

    def _passed_over(self) -> list[str]:
        """Return the names of objects that have replaced objects after these were restored."""
        return [
            entry.name
            for entry in entries_of(self.checkpoint).by_name.values()
            if entry.name in self._written
            and entry.holder is not None
            and not self._has(entry.holder)
        ]

    def _extra(self) -> list[str]:
        """Return the names of saved entries that were not restored."""
        return [] if self.saved is None else sorted(self.saved.names - self._restored)

    def _unmatched(self, missing: list[str], extra: list[str]) -> UnmatchedError:
        assert self.saved is not None
        counts = [(missing, "not saved"), (extra, "not restored")]
        summary = ", ".join(f"{len(names)} {what}" for names, what in counts if names)
        lines = [f"not saved: {name}" for name in missing]
        lines += [f"not restored: {name}" for name in extra]
        return UnmatchedError(
            f"checkpoint {self.saved.path} does not match the objects: {summary or 'no entries'}",
            source=here(),
            where="entries",
            node="\n".join(_shown(lines)),
            hint="expect_partial() accepts it" if extra and not missing else "",
        )

    def __del__(self) -> None:
        try:
            if self._is_begun and not self._is_expected and (extra := self._extra()):
                _log.warning(
                    "checkpoint %s: not restored, since no object has them: %s. "
                    "expect_partial() accepts it",
                    self.saved and self.saved.path,
                    ", ".join(_shown(extra)),
                )
        except Exception:  # Python may be ending, and modules may be gone
            return


def _nothing() -> None:
    return None


def _reference(holder: Any) -> Callable[[], Any]:
    """Return a reference to `holder`, weak if possible: the status must not keep it alive."""
    try:
        return weakref.ref(holder)
    except TypeError:  # some classes have no weak references
        return lambda: holder


def _refuse_disagreements(saved: SavedCheckpoint, pairs: list[tuple[CheckpointEntry, str]]) -> None:
    reasons = [text for entry, name in pairs if (text := saved.disagreement(entry, name))]
    if reasons:
        more = f", and {len(reasons) - 1} more" if reasons[1:] else ""
        raise CheckpointError(
            f"checkpoint {saved.path} does not fit: {reasons[0]}{more}",
            where="entries" if more else "",
            node="\n".join(_shown(reasons)) if more else "",
            hint="make the objects as they were when they were saved",
        )


def _values(
    saved: SavedCheckpoint, pairs: list[tuple[CheckpointEntry, str]]
) -> Iterator[tuple[Callable[[Any], None], Any]]:
    """Yield each entry's writer and value. States come first, as setting a state may fail."""
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

    Workers read different files only for sharded variables; without any, no worker waits.
    Raises `UnreadableCheckpointError` if another worker could not read its part.
    """
    if all(not isinstance(entry, ArrayEntry) or entry.slices is None for entry, _ in pairs):
        return read()
    failure, result, name = None, None, os.path.basename(saved.path)
    try:
        result = read()
    except UnreadableCheckpointError as error:
        failure = error
    outcome = [saved.index.seal, "" if failure is None else failure.what]
    call, doing = f"checkpoint/slices/{next(_reads)}", f"{name} is read"
    answers = exchange(worker_group(), call, outcome, SECONDS_TO_WRITE, doing)
    if failure is not None:
        raise failure
    for worker, (seal, what) in enumerate(answers):
        if what or seal != saved.index.seal:
            raise UnreadableCheckpointError(
                f"worker {worker}: {what or f'its checkpoint {name} is another save'}"
            )
    return cast("_T", result)


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


def _shown(lines: list[str]) -> list[str]:
    rest = len(lines) - _NAMES_SHOWN
    return [*lines[:_NAMES_SHOWN], f"and {rest} more"] if rest > 0 else lines
