"""The default strategy, and the functions that return or set the current strategy and context.

Outside every scope the default strategy is current. The default strategy has one replica on JAX's
default device, and distributes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Self, cast  # Any: users' functions and pytrees

import jax
import jax.numpy as jnp

from graphdist.context import (
    Entry,
    current_entry,
    current_strategy,
    in_cross_replica_context,
    set_default_strategy,
    set_entry,
)
from graphdist.errors import ContextError
from graphdist.runtime.devices import Devices
from graphdist.strategies.base import CommonStrategy, Strategy
from graphdist.strategies.extended import StrategyExtended
from graphdist.strategies.replica_context import ReplicaContext
from graphdist.strategies.workers_of_job import require_all_processes
from graphdist.tracing.axis_name import on_one_replica, run_by_default_strategy
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.values.copying import is_part_of_a_copy
from graphdist.values.distributed import wrong_type


class DefaultStrategy(Strategy):
    """Runs a program as if there were no strategy.

    >>> import graphdist as gd
    >>> gd.get_strategy().run(lambda x: x + 1, args=(2,))
    3
    """

    is_default = True
    makes_plain_variables = True

    def __init__(self) -> None:
        """Use JAX's default device; raises `ContextError` for a second default strategy."""
        if default_strategy.cache_info().currsize:
            raise _second_default_strategy()
        with jax.ensure_compile_time_eval():  # JAX may be tracing
            (device,) = jnp.zeros(()).devices()
        super().__init__(StrategyExtended(Devices((device,))))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if is_part_of_a_copy(memo):
            return self
        raise _second_default_strategy()

    def program_of(self, traced: Any, compiled: Callable[[Any], Any]) -> Any:
        """Return the compiled program; raises `ContextError` if JAX has several processes."""
        what = "a function outside of a strategy's scope"
        require_all_processes(what, 'call it inside gd.OneDeviceStrategy("cpu:0").scope()')
        return super().program_of(traced, compiled)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = partial(fn, *args, **kwargs)
        trace = current_trace()
        if trace is None:
            return on_one_replica(self.axis_name, call)
        return trace.bound(self.axis_name, 1, lambda: run_by_default_strategy(call))


@cache
def default_strategy() -> DefaultStrategy:
    """Return the one default strategy of the process."""
    return DefaultStrategy()


def _second_default_strategy() -> ContextError:
    return ContextError(
        "a process has 1 default strategy, and a second one would be made",
        hint="get it by gd.get_strategy(), outside every scope",
    )


set_default_strategy(default_strategy)


def experimental_set_strategy(strategy: CommonStrategy | None) -> None:
    """Make `strategy` the current strategy of this thread, without a scope; None unsets it.

    A strategy that was set before is replaced. Afterwards only scopes of this strategy can be
    entered. Raises `ContextError` inside a scope or a function, `ArgumentTypeError` for a value of
    another type.

    >>> import graphdist as gd
    >>> experimental_set_strategy(gd.OneDeviceStrategy("cpu:0"))
    >>> gd.has_strategy(), gd.in_cross_replica_context()
    (True, True)
    >>> experimental_set_strategy(None)
    """
    if not isinstance(strategy, CommonStrategy | None):
        hint = "set a strategy such as gd.MirroredStrategy(), or None"
        raise wrong_type("the strategy set", strategy, "a strategy", hint)
    if current_trace() is not None:
        raise ContextError(
            "experimental_set_strategy is called inside a function, which would call it only when "
            "it is traced",
            hint="call it outside",
        )
    entry = current_entry()
    if entry is not None and not entry.is_set and not entry.strategy.is_default:
        raise ContextError(
            f"experimental_set_strategy is called inside the scope of {entry.strategy}",
            hint="leave it out, or call it before: the scope has set the strategy",
        )
    set_entry(None if strategy is None else Entry(strategy, is_set=True))


def get_strategy() -> Strategy:
    """Return the current strategy. Outside every scope it is the default strategy.

    The annotation leaves out the strategies of `graphdist.compat.v1`, which have fewer methods.

    >>> import graphdist as gd
    >>> gd.get_strategy().num_replicas_in_sync
    1
    """
    return cast("Strategy", current_strategy())


def get_replica_context() -> ReplicaContext:
    """Return the replica's context; None in cross-replica context, as in `tf.distribute`.

    The annotation leaves None out, since a replica function never gets None.

    >>> get_replica_context().num_replicas_in_sync
    1
    """
    entry = current_entry()
    if not in_cross_replica_context() and (entry is None or entry.replica_context is None):
        return ReplicaContext(default_strategy())
    return cast("ReplicaContext", None if entry is None else entry.replica_context)


def is_first_replica() -> jax.Array | bool:
    """Return whether this is replica 0, if only replica 0 adds a value to a sum.

    If there is one replica, the replica id is not read. A program that reads the id counts as
    dependent on the id, although the sum is the same on several replicas.
    """
    context = get_replica_context()
    return context.num_replicas_in_sync == 1 or context.replica_id_in_sync_group == 0
