"""Which entries of files were restored to which objects, and which only one side has."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar  # Any: restored objects

from graphdist.errors import UnmatchedError
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.tracing.user_lines import here
from graphdist.train.entries import Entries, Objects, entries_of
from graphdist.train.leaves import CheckpointEntry

_log = logging.getLogger("graphdist")
_NAMES_SHOWN = 20


class SavedEntries(Protocol):
    """Entries in files, which objects may have too."""

    @property
    def path(self) -> str:
        """Return the user's name of the files."""

    @property
    def names(self) -> set[str]:
        """Return the names of all saved entries."""

    def names_of(self, entries: Entries) -> Mapping[str, Any]:
        """Return for each entry of objects what was saved of it; None for nothing."""


_Saved = TypeVar("_Saved", bound=SavedEntries)


class MatchStatus(Generic[_Saved]):
    """Which entries of files were restored to which objects, and which only one side has."""

    def __init__(self, objects: Objects, saved: _Saved | None) -> None:
        """Take objects and saved entries; nothing is restored yet."""
        self.objects, self.saved = objects, saved
        self._restored: set[str] = set()
        """The names of the saved entries that were restored."""
        self._written: set[str] = set()
        """The names of the entries that they were restored to."""
        self._holders: dict[int, Callable[[], Any]] = {}
        """The objects of these entries, by identity."""
        self._is_begun = self._is_expected = False

    def entries(self) -> Entries:
        """Return the entries of the objects as they are now."""
        return entries_of(self.objects)

    def note(self, entries: Iterable[CheckpointEntry], names: Iterable[str]) -> None:
        """Note that entries of the objects were restored, from saved ones of these names."""
        self._restored |= {*names}
        for entry in entries:
            self._written.add(entry.name)
            self._holders[id(entry.holder)] = _reference(entry.holder)
        self._is_begun = True

    def _has(self, holder: Any) -> bool:
        """Return whether an object was restored, under any name."""
        return holder is not None and self._holders.get(id(holder), nothing)() is holder

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
        """Return the names of entries that were not saved."""
        if self.saved is None:
            return []
        saved_names = self.saved.names_of(self.entries())
        return [name for name, saved_name in saved_names.items() if saved_name is None]

    def _passed_over(self) -> list[str]:
        """Return the names of objects that replaced restored ones."""
        return [
            entry.name
            for entry in self.entries().by_name.values()
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
        except Exception:  # the interpreter may be going down
            return


def nothing() -> None:
    """Return None, as the reference to an object that is gone."""
    return None


def _reference(holder: Any) -> Callable[[], Any]:
    """Return a reference to an object, weak if possible: the status must not keep it alive."""
    try:
        return weakref.ref(holder)
    except TypeError:  # some classes have no weak references
        return lambda: holder


def refuse_disagreements(called: str, reasons: list[str], hint: str) -> None:
    """Raise `CheckpointError` if there are reasons why entries do not fit their objects."""
    if reasons:
        more = f", and {len(reasons) - 1} more" if reasons[1:] else ""
        raise CheckpointError(
            f"{called} does not fit: {reasons[0]}{more}",
            where="entries" if more else "",
            node="\n".join(_shown(reasons)) if more else "",
            hint=hint,
        )


def _shown(lines: list[str]) -> list[str]:
    rest = len(lines) - _NAMES_SHOWN
    return [*lines[:_NAMES_SHOWN], f"and {rest} more"] if rest > 0 else lines
