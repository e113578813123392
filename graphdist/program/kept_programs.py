"""The programs that a function keeps, up to a limit; the least recently called are dropped.

The key of a program is its signature and JAX's trace context. To read the context costs a
microsecond, so a call first looks up the signature alone, in `current`, which has the program of
the latest context for each signature. If the context has changed since, that program raises
`OtherSettings`, and the full key is looked up.

All calls are counted, and a program stores the count of its last call. That costs less than a list
in order of use, and programs are sorted only when one is dropped. A dropped program frees its
executable, unless a call is running or the user holds one of its stages.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count
from typing import Any  # Any: limits that users give

from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.program.program import RunnableProgram
from graphdist.tracing.trace_context import trace_context

DEFAULT_MAX_PROGRAMS = 128
"""The most programs that a function keeps by default.

A small program takes 2 or 3 MiB, a large one tens. The limit allows texts of lengths up to 1,024 in
steps of 8, and a function that gets new shapes for ever does not fill the memory.
"""

next_call = count(1).__next__
"""Return the count of calls, of all functions of the process."""


class KeptPrograms:
    """The programs of one function: at most `limit`, with None all.

    `num_dropped` counts the programs that were dropped because of the limit.
    """

    def __init__(self, limit: int | None) -> None:
        """Start empty."""
        self.limit = limit
        self.num_dropped = 0
        self.current: dict[Hashable, RunnableProgram] = {}
        self._of_contexts: dict[tuple[Hashable, Any], RunnableProgram] = {}

    def __len__(self) -> int:
        return len(self._programs())

    @property
    def latest(self) -> RunnableProgram | None:
        """Return the program that was called last, or None."""
        return max(self._programs(), key=lambda kept: kept.last_call, default=None)

    def for_context(self, signature: Hashable) -> RunnableProgram | None:
        """Return the program for JAX's current settings, and make it current; None without one."""
        program = self._of_contexts.get((signature, trace_context().reference))
        if program is not None:
            program.last_call = next_call()
            self.current[signature] = program
        return program

    def keep(self, signature: Hashable, program: RunnableProgram) -> bool:
        """Keep a program for the current settings; return whether the limit drops a first program.

        The key refers to the context weakly: once JAX has cleared a context, its programs cannot be
        found again, and are dropped.
        """
        programs = list(self._of_contexts.items())
        self._drop({program for (_, context), program in programs if context() is None})
        program.last_call = next_call()
        self._of_contexts[signature, trace_context().reference] = program
        self.current[signature] = program
        if self.limit is None:
            return False
        by_age = sorted(self._programs(), key=lambda kept: kept.last_call)
        oldest = by_age[: max(0, len(by_age) - self.limit)]
        self._drop(set(oldest))
        self.num_dropped += len(oldest)
        return 0 < self.num_dropped == len(oldest)

    def _programs(self) -> set[RunnableProgram]:
        return {*self._of_contexts.values(), *self.current.values()}

    def _drop(self, programs: set[RunnableProgram]) -> None:
        """Drop programs; the dicts are copied first, since another thread may add to them."""
        dicts: tuple[dict[Any, RunnableProgram], ...] = (self.current, self._of_contexts)
        for kept in dicts if programs else ():
            for key, program in list(kept.items()):
                if program in programs:
                    kept.pop(key, None)


def checked_limit(max_programs: Any) -> int | None:
    """Return the limit; raises `ArgumentError` below 1, `ArgumentTypeError` for other types.

    >>> checked_limit(8), checked_limit(None)
    (8, None)
    """
    hint = "give the number of programs to keep, such as 32, or None to keep all"
    if max_programs is None:
        return None
    if isinstance(max_programs, bool) or not isinstance(max_programs, int):
        raise ArgumentTypeError(
            f"max_programs is {max_programs!r}, not a number of programs", hint=hint
        )
    if max_programs < 1:
        raise ArgumentError(
            f"max_programs is {max_programs}: a function keeps at least 1 program, which it runs",
            hint=hint,
        )
    return max_programs
