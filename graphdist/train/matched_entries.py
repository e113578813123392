"""Which entries of files were restored to which objects, and which entries only one side has."""

from __future__ import annotations

import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Self, TypeVar  # Any: restored objects

from graphdist.errors import UnmatchedError
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.tracing.user_lines import here
from graphdist.train.entries import Entries, Objects, entries_of
from graphdist.train.leaves import CheckpointEntry

_log = logging.getLogger("graphdist")
_NAMES_SHOWN = 20


class SavedEntries(ABC):
    """Entries in files: `path` is the user's name of the files, `names` are the entries' names."""

    path: str
    names: set[str]

    @abstractmethod
    def saved_as(self, name: str) -> Any:
        """Return what the files have for an object of this name; None if they have nothing."""

    def of_entries(self, entries: Entries) -> dict[str, Any]:
        """Return for each entry what the files have for the entry or for an alias of the entry."""
        found = {name: self.saved_as(name) for name in entries.by_name}
        for alias, name in entries.aliases.items():
            found[name] = found[name] or self.saved_as(alias)
        return found


_Saved = TypeVar("_Saved", bound=SavedEntries)


class MatchStatus(Generic[_Saved]):
    """Which entries of files were restored to which objects, and which entries only one side has.

    If `saved` is None, there are no files, and everything counts as matched.
    """

    def __init__(self, objects: Objects, saved: _Saved | None) -> None:
        """Take objects and saved entries; nothing is restored yet."""
        self.objects, self.saved = objects, saved
        self._restored: set[str] = set()
        """The names of the saved entries that were restored."""
        self._written: set[str] = set()
        """The names of the objects' entries that were written to."""
        self._holders: dict[int, Callable[[], Any]] = {}
        """References to the objects that were written to, by the identity of the object."""
        self._is_begun = self._is_expected = False

    def entries(self) -> Entries:
        """Return the entries of the objects as they are now."""
        return entries_of(self.objects)

    def note(self, entries: Iterable[CheckpointEntry], names: Iterable[str]) -> None:
        """Record that saved entries with these names were restored to entries of the objects."""
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
        self._require_none(self._missing(), sorted({*self._extra(), *self._passed_over()}))
        self._is_expected = True
        return self

    def assert_existing_objects_matched(self) -> Self:
        """Raise `UnmatchedError` unless all objects were saved; there may be more saved entries."""
        self._require_none(self._missing(), self._passed_over())
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
        found = {} if self.saved is None else self.saved.of_entries(self.entries())
        return [name for name, saved_as in found.items() if saved_as is None]

    def _passed_over(self) -> list[str]:
        """Return the names of objects that have taken the place of restored objects."""
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

    def _require_none(self, missing: list[str], extra: list[str]) -> None:
        if missing or extra:
            raise self._unmatched(missing, extra)

    def _unmatched(self, missing: list[str], extra: list[str]) -> UnmatchedError:
        counts = [(missing, "not saved"), (extra, "not restored")]
        summary = ", ".join(f"{len(names)} {what}" for names, what in counts if names)
        lines = [f"{what}: {name}" for names, what in counts for name in names]
        return UnmatchedError(
            f"checkpoint {self._path} does not match the objects: {summary or 'no entries'}",
            source=here(),
            where="entries",
            node="\n".join(_shown(lines)),
            hint="expect_partial() accepts it" if extra and not missing else "",
        )

    @property
    def _path(self) -> str:
        return "" if self.saved is None else self.saved.path

    def __del__(self) -> None:
        try:
            if self._is_begun and not self._is_expected and (extra := self._extra()):
                _log.warning(
                    "checkpoint %s: not restored, since no object has them: %s. "
                    "expect_partial() accepts it",
                    self._path,
                    ", ".join(_shown(extra)),
                )
        except Exception:  # the interpreter may be going down
            return


def nothing() -> None:
    """Do nothing and return None; as a reference, it leads to no object."""
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
    """Return the first lines, and the number of the lines after them."""
    rest = len(lines) - _NAMES_SHOWN
    return [*lines[:_NAMES_SHOWN], f"and {rest} more"] if rest > 0 else lines
