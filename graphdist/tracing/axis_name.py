"""The name of the replicas' axis, for collectives of JAX such as `lax.psum(x, "replica")`.

* The name is bound while a replica function is traced, and while its trace is transformed later.
  JAX has one public way to bind a name in the middle of a trace: a `jax.vmap` without arguments.
  The current trace stays current inside the `vmap`, so nothing is mapped.
* JAX cannot unbind a name. So the name is also bound in a `merge_call`, which runs within `run` in
  cross-replica context. The traceback of an equation says who runs the equation: the innermost
  frame of `run_by_each_replica`, `run_in_cross_replica_context` or `run_by_default_strategy`
  decides. An equation that JAX derives, for example in the loop of a gradient, may have no such
  frame.
* The default strategy has one replica. Outside a trace its collectives are over an axis of size 1,
  and change nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar  # Any: tracebacks of jaxlib and pytrees have no public type

import jax
from jax.extend import core as jex
from jax.extend import source_info_util

Result = TypeVar("Result")


class RunBy(enum.Enum):
    """Who runs a line of a program."""

    EACH_REPLICA = "each replica"
    CROSS_REPLICA_CONTEXT = "cross-replica context, once for all replicas"
    DEFAULT_STRATEGY = "the one replica of the default strategy"


def bound(name: str, size: int, call: Callable[[], Result]) -> Result:
    """Call a function with the axis name bound, in the current trace."""
    results: list[Result] = []
    stack = source_info_util.current_name_stack()
    with jex.take_current_trace() as trace:
        pass

    def in_current_trace() -> None:
        with jex.set_current_trace(trace), source_info_util.set_name_stack(stack):
            results.append(call())

    jax.vmap(in_current_trace, axis_name=name, axis_size=size)()
    return results[0]


def on_one_replica(name: str, call: Callable[[], Any]) -> Any:
    """Call a function with `name` bound to an axis of size 1, so JAX evaluates its collectives."""
    results: list[Any] = []

    def mapped() -> list[Any]:
        leaves, structure = jax.tree.flatten(call())
        results[:] = [structure, leaves]
        return [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]

    traced = iter(jax.vmap(mapped, axis_name=name, axis_size=1)())
    structure, leaves = results
    own = [next(traced)[0] if isinstance(leaf, jax.core.Tracer) else leaf for leaf in leaves]
    return jax.tree.unflatten(structure, own)


def run_by_each_replica(call: Callable[[], Result]) -> Result:
    """Call a function that every replica executes. This frame marks the equations made inside."""
    return call()


def run_in_cross_replica_context(call: Callable[[], Result]) -> Result:
    """Call a function once for all replicas. This frame marks the equations made inside."""
    return call()


def run_by_default_strategy(call: Callable[[], Result]) -> Result:
    """Call the default strategy's replica function. This frame marks the equations made inside."""
    return call()


_MARKS = {
    run_by_each_replica.__name__: RunBy.EACH_REPLICA,
    run_in_cross_replica_context.__name__: RunBy.CROSS_REPLICA_CONTEXT,
    run_by_default_strategy.__name__: RunBy.DEFAULT_STRATEGY,
}


def who_runs(source_info: Any) -> RunBy | None:
    """Return who runs an equation; None if its traceback does not say."""
    return _runner_in(source_info.traceback) if source_info.traceback else None


@lru_cache(maxsize=4096)  # equations of one call have equal tracebacks
def _runner_in(calls: Any) -> RunBy | None:
    for frame in calls.frames:
        if frame.file_name == __file__ and frame.function_name in _MARKS:
            return _MARKS[frame.function_name]
    return None


def unbound_name(error: NameError) -> str | None:
    """Return the axis name that JAX reports as unbound; None for any other error."""
    _, prefix, rest = str(error).partition("unbound axis name: ")
    return rest.partition(". To fix this")[0] if prefix else None
