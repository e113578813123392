"""JAX's trace context: whether two calls are made under the same settings of JAX.

A traced function depends on more than its arguments: on `jax_enable_x64`,
`jax_default_matmul_precision` and some forty other settings, of the process (`jax.config.update`)
or of a thread (a context manager); on the current mesh; on user contexts. Together they are the
trace context. JAX caches its traces by this context, and so does graphdist. The context has no
public name, but it is part of the key of a public cache, `jax.extend.linear_util.cache`. So the
object that such a cache returns identifies the context. A call costs a microsecond, less than
reading a few settings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any  # Any: JAX's wrapped functions have no public type
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
