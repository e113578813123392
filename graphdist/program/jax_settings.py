"""Settings of JAX that select the program of a call.

JAX's trace context has the settings that a traced function depends on. Reading the context costs a
microsecond, so calls do not read it but rely on `jax.jit`. A step is a jitted function. Under other
settings JAX traces it again, and this second trace raises `OtherSettings`.

Three settings are not in the trace context, and are part of a signature instead. `jax_debug_nans`
and `jax_debug_infs` need another executable, which keeps the variables' values from before the
step. `jax_default_prng_impl` selects the kind of key that a seed becomes.
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
    """A program is called under other settings of JAX than it was compiled for.

    It is no `Exception`, since JAX spends milliseconds on filtering tracebacks of exceptions.
    """


def settings_of_calls() -> Settings:
    """Return the settings that are part of a signature; every call reads them."""
    return jax.debug_nans.value, jax.debug_infs.value, jax.default_prng_impl.value


def require_same_settings() -> Callable[[], None]:
    """Return a function that raises `OtherSettings` if JAX's settings differ from those of now.

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
    """Return the values for which JAX is set to raise an error: "nan", "inf", both or none.

    >>> with jax.debug_nans(True):
    ...     checked_numbers()
    frozenset({'nan'})
    """
    checks = {"nan": jax.debug_nans.value, "inf": jax.debug_infs.value}
    return frozenset(name for name, is_checked in checks.items() if is_checked)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The settings that JAX reads while constants are folded, and while a graph is lowered.

    They are stored at the trace and restored for every later stage. So if the user makes a stage
    under other settings, the program's results do not change.
    """

    enable_x64: bool
    threefry_partitionable: bool

    @staticmethod
    def current() -> Arithmetic:
        """Return the current settings."""
        return Arithmetic(jax.enable_x64.value, jax.threefry_partitionable.value)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore these settings in this thread within a `with` block.

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
    """Return all settings that have a name, with their values in this thread."""
    return dict(jax.config.values)


def changed_setting(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the first setting that differs, or the context if no setting with a name differs.

    >>> changed_setting({"jax_enable_x64": False}, {"jax_enable_x64": True})
    'jax_enable_x64 was False, is True'
    """
    for name, value in now.items():
        if before.get(name) != value:
            return f"{name} was {before.get(name)!r}, is {value!r}"
    return "JAX is in another context: another mesh, say, or its caches were cleared"
