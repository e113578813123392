"""Settings of JAX's, as far as they decide which program runs.

Which settings a traced function depends on is JAX's to say: its trace context. It costs a
microsecond to ask, so that calls do not ask: a step is a `jax.jit` function, which JAX traces again
under other settings, and that is where a program finds out that it was not made for them
(`OtherSettings`). Three settings that JAX does not go by are part of a signature instead.
`jax_debug_nans` and `jax_debug_infs` make another executable, which keeps what the variables held
before the step. `jax_default_prng_impl` is the kind of key that a seed becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: settings are of any type

import jax

from graphdist.tracing.trace_context import trace_context

Settings: TypeAlias = tuple[bool, bool, str]
"""`jax_debug_nans`, `jax_debug_infs` and `jax_default_prng_impl`."""


class OtherSettings(BaseException):
    """A program is called under other settings of JAX's than it was made for: take another.

    Not an `Exception`: JAX spends milliseconds on the tracebacks of these.
    """


def settings_of_calls() -> Settings:
    """Return the settings that are part of a signature; they are read at every call."""
    return jax.debug_nans.value, jax.debug_infs.value, jax.default_prng_impl.value


def require_same_settings() -> Callable[[], None]:
    """Return a function that raises `OtherSettings` where JAX is not set as it is now.

    >>> require = require_same_settings()
    >>> require()
    >>> with jax.default_matmul_precision("float32"):
    ...     require()
    Traceback (most recent call last):
    ...
    graphdist.program.jax_settings.OtherSettings
    """
    made_for = trace_context().reference

    def require() -> None:
        if trace_context().reference is not made_for:
            raise OtherSettings

    return require


def checked_numbers() -> frozenset[str]:
    """Return which numbers no step may give, as JAX is set: of "nan" and "inf".

    >>> with jax.debug_nans(True):
    ...     checked_numbers()
    frozenset({'nan'})
    """
    checks = {"nan": jax.debug_nans.value, "inf": jax.debug_infs.value}
    return frozenset(name for name, is_checked in checks.items() if is_checked)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What JAX reads while a traced program is folded, emitted and lowered.

    A program means what it was traced to mean, also where its stages are made one by one, some of
    them under other settings.
    """

    enable_x64: bool
    threefry_partitionable: bool

    @staticmethod
    def current() -> Arithmetic:
        """Return how JAX is set."""
        return Arithmetic(jax.enable_x64.value, jax.threefry_partitionable.value)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Set JAX so again, in this thread.

        >>> with jax.enable_x64(True):
        ...     was = Arithmetic.current()
        >>> with was.restored():
        ...     jax.numpy.ones(()).dtype
        dtype('float64')
        """
        with (
            jax.enable_x64(self.enable_x64),
            jax.threefry_partitionable(self.threefry_partitionable),
        ):
            yield


def all_settings() -> dict[str, Any]:
    """Return all settings that have a name, as they are for this thread."""
    return dict(jax.config.values)


def changed_setting(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in words the first setting that differs, or that it is one without a name.

    >>> changed_setting({"jax_enable_x64": False}, {"jax_enable_x64": True})
    'jax_enable_x64 was False, is True'
    """
    for name, value in now.items():
        if before.get(name) != value:
            return f"{name} was {before.get(name)!r}, is {value!r}"
    return "JAX is in another context: another mesh, say, or its caches were cleared"
