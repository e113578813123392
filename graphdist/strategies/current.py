"""The public functions that return or set the current strategy and replica context."""

from __future__ import annotations

from typing import cast

import jax

from graphdist.context import (
    Entry,
    current_entry,
    current_strategy,
    has_strategy,
    in_cross_replica_context,
    set_entry,
)
from graphdist.errors import ContextError
from graphdist.strategies.base import CommonStrategy, Strategy
from graphdist.strategies.default import default_strategy
from graphdist.strategies.replica_context import ReplicaContext
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import wrong_type

__all__ = [
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]


def experimental_set_strategy(strategy: CommonStrategy | None) -> None:
    """Make `strategy` the current strategy of this thread, without a scope; None unsets it.

    It replaces a strategy that was set before. Afterwards only scopes of this strategy can be
    entered. Raises `ContextError` inside a scope or a function, `ArgumentTypeError` for a value of
    another type.

    >>> import graphdist as gd
    >>> experimental_set_strategy(gd.OneDeviceStrategy("cpu:0"))
    >>> has_strategy(), in_cross_replica_context()
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
            source=here(),
            hint="call it outside",
        )
    entry = current_entry()
    if entry is not None and not entry.is_set and not entry.strategy.is_default:
        raise ContextError(
            f"experimental_set_strategy is called inside the scope of {entry.strategy}",
            source=here(),
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
        return default_strategy().replica_context
    return cast("ReplicaContext", None if entry is None else entry.replica_context)


def is_first_replica() -> jax.Array | bool:
    """Return whether this is replica 0, the only replica that adds its value to a sum.

    If there is one replica, its id is not read. Otherwise the program would count as dependent on
    the id, although the sum is the same on several replicas.
    """
    context = get_replica_context()
    return context.num_replicas_in_sync == 1 or context.replica_id_in_sync_group == 0
