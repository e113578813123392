"""Warns of a function that is traced and compiled again and again, and says what changed.

A function is compiled once for each signature (`argument_keys`) and for each setting of JAX that
decides a result (`jax_settings`). A user who passes arrays of ever new shapes compiles at every
call, which costs far more than the call. The warning comes at the counts of `WARN_AT`, so that it
does not repeat itself, and names the first argument or setting that changed.
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
"""The numbers of compilations that warn."""


class RetraceWarning(UserWarning):
    """A function is compiled again and again, which costs more than running it."""


class Retracing:
    """How often one function was compiled, and for which signature last."""

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        """Start with a function that was never compiled."""
        self._fn, self._name = fn, name
        self._last_signature: Signature | None = None
        self._last_settings: dict[str, Any] = {}
        self.num_compiled = 0

    def compiled(
        self, signature: Signature, args: Any, kwargs: Any, kept: KeptPrograms, drops_first: bool
    ) -> None:
        """Count a compilation; warn if there were many, or if `kept` drops its first program."""
        self.num_compiled += 1
        if self._last_signature and (drops_first or self.num_compiled in WARN_AT):
            reason, advice = self._change(self._last_signature, signature, args, kwargs)
            if kept.num_dropped:
                advice += (
                    f" It keeps {kept.most} programs (max_programs): those not called for "
                    f"longest are dropped, {kept.num_dropped} so far, and compiled again when "
                    f"they are called."
                )
            warn_user(
                f"{self._name} was compiled {self.num_compiled} times, now because {reason}. "
                f"{advice}",
                RetraceWarning,
            )
        self._last_signature, self._last_settings = signature, all_settings()

    def reason(self, signature: Signature, args: Any, kwargs: Any) -> str:
        """Return why a function is compiled for this signature, "" if it never was before."""
        last = self._last_signature
        return "" if last is None else self._change(last, signature, args, kwargs)[0]

    def _change(
        self, last: Signature, signature: Signature, args: Any, kwargs: Any
    ) -> tuple[str, str]:
        """Return the difference between two signatures, and advice on it."""
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
    """Return the first difference between two signatures, in words."""
    if len(old) != len(new):
        return f"{len(old)} leaves before, {len(new)} now"
    for name, before, now in zip(names, old, new, strict=False):
        if before != now:
            return f"{name} was {_words(before)}, is {_words(now)}"
    return "the structure of the arguments, or the strategy, changed"


def _words(key: LeafKey) -> str:
    if is_static(key):
        return repr(key[1])
    if is_number(key):
        return f"a Python {key[1].__name__}"
    if is_components(key):
        return f"components {key[1]}"
    if is_per_replica(key):
        return str(key[2])
    return f"{dtype_name(key[2])}{list(key[1])}" + (" (weak)" if key[3] else "")
