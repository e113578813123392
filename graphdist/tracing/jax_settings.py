"""Settings of JAX that a traced function depends on, and that select the program of a call.

A traced function depends on more than its arguments: on `jax_enable_x64`,
`jax_default_matmul_precision` and some forty other settings, of the process (`jax.config.update`)
or of a thread (a context manager); on the current mesh; on user contexts. Together they are JAX's
trace context. JAX caches its traces by this context, and so does graphdist. The context has no
public name, but it is part of the key of a public cache, `jax.extend.linear_util.cache`. So the
object that such a cache returns identifies the context.

Reading the context costs a microsecond, less than reading a few settings. Calls do not even read
the context but rely on `jax.jit`. A step is a jitted function. Under other settings JAX traces the
step again, and this second trace raises `OtherSettings`.

Three settings are not in the trace context, and are part of a signature instead. `jax_debug_nans`
and `jax_debug_infs` need another executable, which keeps the variables' values from before the
step. `jax_default_prng_impl` selects the kind of key that a seed becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias  # Any: settings, and JAX's wrapped functions without public type
from weakref import ref

import jax
import jax.numpy as jnp
from jax.api_util import debug_info
from jax.extend import linear_util
from jax.extend.core import get_opaque_trace_state


class TraceContext:
    """One trace context. It exists until JAX drops it, as `jax.clear_caches()` drops all."""

    __slots__ = ("__weakref__", "reference")

    def __init__(self) -> None:
        """Represent the current context."""
        self.reference = ref(self)
        """A hashable weak reference, for keys. It returns None once JAX has dropped the context."""


def _made(wrapped: Any) -> TraceContext:
    return TraceContext()


trace_context: Callable[[], TraceContext] = partial(
    linear_util.cache(_made),
    linear_util.wrap_init(
        TraceContext, debug_info=debug_info("trace_context", TraceContext, (), {})
    ),
)
"""Return the current trace context: the same object for the same settings.

>>> import jax
>>> before = trace_context()
>>> with jax.default_matmul_precision("float32"):
...     trace_context() is before
False
>>> trace_context() is before
True
"""

_outside_traces = get_opaque_trace_state()


def is_jax_tracing() -> bool:
    """Return whether an operation of JAX would be traced here.

    >>> import jax
    >>> is_jax_tracing(), jax.eval_shape(lambda: [] if is_jax_tracing() else 0)
    (False, [])
    """
    if get_opaque_trace_state() == _outside_traces:  # nearly always, and quicker than an operation
        return False
    return isinstance(jnp.zeros(()), jax.core.Tracer)


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
    graphdist.tracing.jax_settings.OtherSettings
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
