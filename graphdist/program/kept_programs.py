"""Which programs a function keeps, up to a limit: what is called for the longest not at all goes.

One program is kept for each signature and each of JAX's trace contexts. `current` has those of the
contexts of the last calls, and is all that a call looks at. A call notes its number in the program,
which costs less than an order of programs would, so that the oldest are looked for when there are
too many. A program that goes takes its executable with it: nothing else holds it, but for calls
that are under way and stages that the user has asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import count
from typing import Any  # Any: limits that users give

from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.program.program import Program
from graphdist.tracing.sources import here
from graphdist.tracing.trace_context import trace_context

MOST = 128
"""How many programs a function keeps, if it is not told.

A small one takes 2 or 3 MiB, a large one tens: the lengths of texts up to 1,024 in steps of 8 have
room, and a function that is given other shapes for ever does not fill the memory.
"""

next_call = count(1).__next__
"""Return the number of a call, in the order of all calls of the process."""


class KeptPrograms:
    """The programs of one function; `most` is how many at once, None for all.

    `num_dropped` is how many have gone since, to make room.
    """

    def __init__(self, most: int | None) -> None:
        """Start empty."""
        self.most = most
        self.num_dropped = 0
        self.current: dict[Hashable, Program] = {}
        self._of_contexts: dict[tuple[Hashable, Any], Program] = {}

    def __len__(self) -> int:
        return len(self._programs())

    def for_context(self, signature: Hashable) -> Program | None:
        """Return the program for how JAX is set, and make it current; None if there is none."""
        program = self._of_contexts.get((signature, trace_context().reference))
        if program is not None:
            program.last_call = next_call()
            self.current[signature] = program
        return program

    def keep(self, signature: Hashable, program: Program) -> bool:
        """Keep a program for how JAX is set; return whether the oldest has gone for the first time.

        Those go first for whose settings JAX has no context any more: they are not found again.
        """
        forgotten = {one for key, one in list(self._of_contexts.items()) if key[1]() is None}
        self._drop(forgotten)
        program.last_call = next_call()
        self._of_contexts[signature, trace_context().reference] = program
        self.current[signature] = program
        if self.most is None:
            return False
        by_age = sorted(self._programs(), key=lambda one: one.last_call)
        oldest = by_age[: max(0, len(by_age) - self.most)]
        self._drop(set(oldest))
        self.num_dropped += len(oldest)
        return 0 < self.num_dropped == len(oldest)

    def _programs(self) -> set[Program]:
        return {*self._of_contexts.values(), *self.current.values()}

    def _drop(self, programs: set[Program]) -> None:
        """Let go of programs; another thread may be adding some."""
        if not programs:
            return
        for kept in self._dicts():
            for key, one in list(kept.items()):
                if one in programs:
                    kept.pop(key, None)

    def _dicts(self) -> Iterator[dict[Any, Program]]:
        yield self.current
        yield self._of_contexts


def checked_limit(max_programs: Any) -> int | None:
    """Return how many programs a function keeps; raises `ArgumentError` for less than one.

    >>> checked_limit(8), checked_limit(None)
    (8, None)
    """
    hint = "write how many programs to keep, such as 32, or None to keep all"
    if max_programs is None:
        return None
    if isinstance(max_programs, bool) or not isinstance(max_programs, int):
        raise ArgumentTypeError(
            f"max_programs is {max_programs!r}, not a number of programs", source=here(), hint=hint
        )
    if max_programs < 1:
        raise ArgumentError(
            f"max_programs is {max_programs}: a function keeps at least the program it runs",
            source=here(),
            hint=hint,
        )
    return max_programs
