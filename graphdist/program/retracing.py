"""Warns of retracing: a function is compiled again and again. The warning names what changed.

A function is compiled once for each signature (`argument_keys`) and for each combination of JAX's
settings (`jax_settings`). A user who passes arrays of new shapes compiles in every call, which
costs far more than the call. The warning comes only at the counts in `WARN_AT`, and names the first
argument or setting that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias  # Any: users' functions and arguments

import jax

from graphdist.ir.types import dtype_name
from graphdist.program.argument_keys import (
    LeafKey,
    is_components,
    is_number,
    is_per_replica,
    is_static,
)
from graphdist.program.jax_settings import Settings, all_settings, changed_setting
from graphdist.program.kept_programs import KeptPrograms
from graphdist.user_warnings import warn_user
from graphdist.values.pytrees import argument_name

Signature: TypeAlias = tuple[Any, tuple[LeafKey, ...], Any, Settings]
"""The structure of the arguments, the keys of their leaves, the strategy, JAX's settings."""

WARN_AT = (8, 32, 128, 512)
"""The counts of compilations at which to warn."""


class RetraceWarning(UserWarning):
    """A function is compiled again and again, which costs more than running it."""


class Retracing:
    """The count of a function's compilations, and its last signature."""

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        """Start before the first compilation."""
        self._fn, self._name = fn, name
        self._last_signature: Signature | None = None
        self._last_settings: dict[str, Any] = {}
        self.num_compiled = 0

    def compiled(
        self, signature: Signature, args: Any, kwargs: Any, kept: KeptPrograms, drops_first: bool
    ) -> None:
        """Count a compilation; warn after many, and when `kept` drops its first program."""
        self.num_compiled += 1
        if self._last_signature and (drops_first or self.num_compiled in WARN_AT):
            reason, advice = self._change(self._last_signature, signature, args, kwargs)
            if kept.num_dropped:
                advice += (
                    f" It keeps {kept.limit} programs (max_programs): the least recently called "
                    f"are dropped, {kept.num_dropped} so far, and compiled again when they are "
                    f"called."
                )
            warn_user(
                f"{self._name} was compiled {self.num_compiled} times, now because {reason}. "
                f"{advice}",
                RetraceWarning,
            )
        self._last_signature, self._last_settings = signature, all_settings()

    def reason(self, signature: Signature, args: Any, kwargs: Any) -> str:
        """Return the reason for a compilation, "" for the first one."""
        last = self._last_signature
        return "" if last is None else self._change(last, signature, args, kwargs)[0]

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
