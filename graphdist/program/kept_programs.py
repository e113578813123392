"""The programs that a function keeps. Beyond a limit, the least recently called are dropped.

The key of a program is its signature and JAX's trace context. Reading the context costs a
microsecond. So a call first looks up the signature alone, in `current`, which has the program of
the latest context for each signature. If the context has changed since, this program raises
`OtherSettings`, and the call looks up the full key.

All calls are numbered, and a program stores the number of its last call. This costs less than a
list in order of use, and programs are sorted only when one is dropped. A dropped program frees its
executable, unless a call is running or the user holds one of its stages.

A function is compiled once for each signature (`argument_keys`) and for each combination of JAX's
settings (`jax_settings`). A user who passes arrays of new shapes compiles in every call, which
costs far more than the call. So there is a warning when the number of compilations reaches a number
in `WARN_AT`. It names the first argument or setting that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Any, TypeAlias  # Any: users' functions, arguments and limits

import jax

from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.ir.types import dtype_name
from graphdist.program.argument_keys import (
    LeafKey,
    is_components,
    is_number,
    is_per_replica,
    is_static,
)
from graphdist.program.program import RunnableProgram
from graphdist.tracing.jax_settings import Settings, all_settings, changed_setting, trace_context
from graphdist.user_warnings import warn_user
from graphdist.values.pytrees import argument_name

DEFAULT_MAX_PROGRAMS = 128
"""The largest number of programs that a function keeps by default.

A small program takes 2 or 3 MiB, a large one tens. The limit allows texts of lengths up to 1,024 in
steps of 8, and a function that gets new shapes for ever does not fill the memory.
"""

next_call = count(1).__next__
"""Return the number of the next call, counted over all functions of the process."""

Signature: TypeAlias = tuple[Any, tuple[LeafKey, ...], Any, Settings]
"""The structure of the arguments, the keys of their leaves, the strategy, JAX's settings."""

WARN_AT = (8, 32, 128, 512)
"""The numbers of compilations at which to warn."""


class RetraceWarning(UserWarning):
    """A function is compiled again and again, which costs more than running it."""


class KeptPrograms:
    """The programs of one function, at most `limit` (None: no limit).

    `num_dropped` counts the programs that were dropped because of the limit, `num_compiled` all
    programs that were compiled.
    """

    def __init__(self, fn: Callable[..., Any], name: str, limit: int | None) -> None:
        """Start before the first compilation."""
        self._fn, self._name, self._limit = fn, name, limit
        self._last_signature: Signature | None = None
        self._last_settings: dict[str, Any] = {}
        self.num_dropped = self.num_compiled = 0
        self.current: dict[Hashable, RunnableProgram] = {}
        self._of_contexts: dict[tuple[Hashable, Any], RunnableProgram] = {}

    @property
    def latest(self) -> RunnableProgram | None:
        """Return the program that was called last, or None."""
        return max(self._programs(), key=lambda kept: kept.last_call, default=None)

    def for_context(self, signature: Hashable) -> RunnableProgram | None:
        """Return the program for JAX's current settings and set it in `current`, or return None."""
        program = self._of_contexts.get((signature, trace_context().reference))
        if program is not None:
            program.last_call = next_call()
            self.current[signature] = program
        return program

    def keep(self, signature: Signature, program: RunnableProgram, args: Any, kwargs: Any) -> None:
        """Keep a new program for the current settings, and drop programs beyond the limit.

        Warns the first time that the limit drops a program, and after many compilations. The key
        refers to the context weakly. When JAX has cleared a context, its programs cannot be found
        again, and are dropped.
        """
        programs = list(self._of_contexts.items())
        self._drop({program for (_, context), program in programs if context() is None})
        program.last_call = next_call()
        self._of_contexts[signature, trace_context().reference] = program
        self.current[signature] = program
        dropped = self._dropped_oldest()
        self.num_compiled += 1
        drops_first = 0 < self.num_dropped == dropped
        if self._last_signature and (drops_first or self.num_compiled in WARN_AT):
            self._warn(*self._change(self._last_signature, signature, args, kwargs))
        self._last_signature, self._last_settings = signature, all_settings()

    def _dropped_oldest(self) -> int:
        """Drop the least recently called programs beyond the limit; return their number."""
        by_age = sorted(self._programs(), key=lambda kept: kept.last_call)
        most = len(by_age) if self._limit is None else self._limit
        oldest = by_age[: max(0, len(by_age) - most)]
        self._drop(set(oldest))
        self.num_dropped += len(oldest)
        return len(oldest)

    def _warn(self, reason: str, advice: str) -> None:
        if self.num_dropped:
            advice += (
                f" It keeps {self._limit} programs (max_programs): the least recently called "
                f"are dropped, {self.num_dropped} so far, and compiled again when they are "
                f"called."
            )
        warn_user(
            f"{self._name} was compiled {self.num_compiled} times, now because {reason}. {advice}",
            RetraceWarning,
        )

    def reason(self, signature: Signature, args: Any, kwargs: Any) -> str:
        """Return the reason for a compilation, "" for the first one."""
        last = self._last_signature
        return "" if last is None else self._change(last, signature, args, kwargs)[0]

    def _programs(self) -> set[RunnableProgram]:
        return {*self._of_contexts.values(), *self.current.values()}

    def _drop(self, programs: set[RunnableProgram]) -> None:
        """Drop programs. The dicts are copied for this, since another thread may add to them."""
        dicts: tuple[dict[Any, RunnableProgram], ...] = (self.current, self._of_contexts)
        for kept in dicts if programs else ():
            for key, program in list(kept.items()):
                if program in programs:
                    kept.pop(key, None)

    def _change(
        self, last: Signature, signature: Signature, args: Any, kwargs: Any
    ) -> tuple[str, str]:
        """Return the difference between two signatures, and advice, as text."""
        if last[:3] == signature[:3]:  # only JAX's settings differ
            reason = changed_setting(self._last_settings, all_settings())
            return reason, "Set it once, before the first call."
        paths = jax.tree_util.tree_flatten_with_path((args, kwargs))[0]
        names = [argument_name(self._fn, path) for path, _ in paths]
        reason = signature_difference(names, last[1], signature[1])
        return reason, "Pass what changes as an array of one shape."


def signature_difference(
    names: Sequence[str], old: Sequence[LeafKey], new: Sequence[LeafKey]
) -> str:
    """Return the first difference between two signatures, as text."""
    if len(old) != len(new):
        return f"{len(old)} leaves before, {len(new)} now"
    for name, before, now in zip(names, old, new, strict=False):
        if before != now:
            return f"{name} was {_key_text(before)}, is {_key_text(now)}"
    return "the structure of the arguments, or the strategy, changed"


def _key_text(key: LeafKey) -> str:
    if is_static(key):
        return repr(key[1])
    if is_number(key):
        return f"a Python {key[1].__name__}"
    if is_components(key):
        return f"components {key[1]}"
    if is_per_replica(key):
        return str(key[2])
    return f"{dtype_name(key[2])}{list(key[1])}" + (" (weak)" if key[3] else "")


def require_limit(max_programs: Any) -> None:
    """Raise `ArgumentError` for a limit below 1, `ArgumentTypeError` for other types."""
    hint = "give the number of programs to keep, such as 32, or None to keep all"
    if max_programs is None:
        return
    if isinstance(max_programs, bool) or not isinstance(max_programs, int):
        raise ArgumentTypeError(
            f"max_programs is {max_programs!r}, not a number of programs", hint=hint
        )
    if max_programs < 1:
        raise ArgumentError(
            f"max_programs is {max_programs}: a function keeps at least 1 program, which it runs",
            hint=hint,
        )
