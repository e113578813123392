"""Where the program stands: which strategy is current, and in which context.

One entry is current at a time. `Strategy.scope()` enters cross-replica context; the tracing of a
replica function enters replica context; `merge_call` enters cross-replica context again. Outside
all of them the default strategy is current, whose context counts as replica context, as in
`tf.distribute`. A new thread starts outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphdist.errors import ContextError
from graphdist.tracing.sources import here

if TYPE_CHECKING:
    from graphdist.replica_context import ReplicaContext
    from graphdist.strategies.base import Strategy


@dataclass(frozen=True, slots=True)
class Entry:
    """A strategy and, in replica context, the replica's view of it."""

    strategy: Strategy
    replica_context: ReplicaContext | None = None


_entry: ContextVar[Entry | None] = ContextVar("graphdist_entry", default=None)


def current_entry() -> Entry | None:
    """Return the innermost entry, or None outside every scope."""
    return _entry.get()


@contextmanager
def entered(entry: Entry) -> Iterator[None]:
    """Make an entry the current one for the duration of a `with` block."""
    token = _entry.set(entry)
    try:
        yield
    finally:
        _entry.reset(token)


def get_strategy() -> Strategy:
    """Return the current strategy, which is the default one outside every scope.

    >>> import graphdist as gd
    >>> gd.get_strategy().num_replicas_in_sync
    1
    """
    entry = current_entry()
    if entry is not None:
        return entry.strategy
    from graphdist.strategies.default import default_strategy

    return default_strategy()


def has_strategy() -> bool:
    """Return whether the current strategy is another than the default one.

    >>> has_strategy()
    False
    """
    entry = current_entry()
    return entry is not None and not entry.strategy.is_default


def in_cross_replica_context() -> bool:
    """Return whether code runs once for the whole strategy: inside `scope()`, outside `run`.

    >>> import graphdist as gd
    >>> with gd.OneDeviceStrategy("cpu:0").scope():
    ...     in_cross_replica_context()
    True
    """
    entry = current_entry()
    return entry is not None and entry.replica_context is None and not entry.strategy.is_default


def get_replica_context() -> ReplicaContext:
    """Return the replica's context; None in cross-replica context, as in `tf.distribute`.

    The annotation leaves the None out: a replica function, where this is called, never gets it.

    >>> get_replica_context().num_replicas_in_sync
    1
    """
    entry = current_entry()
    if entry is None or (entry.replica_context is None and entry.strategy.is_default):
        from graphdist.strategies.default import default_strategy

        return default_strategy().replica_context
    return entry.replica_context  # type: ignore[return-value]


def in_replica_context_of_a_run() -> bool:
    """Return whether code runs inside a replica function given to `run`."""
    entry = current_entry()
    return entry is not None and entry.replica_context is not None


_INSTEAD = {
    "run": "call the function itself: this code runs on every replica already",
    "scope": "leave it out: a replica function is inside the scope of its strategy already",
    "reduce": "use gd.get_replica_context().all_reduce(reduce_op, value)",
    "gather": "use gd.get_replica_context().all_gather(value, axis)",
}


def require_cross_replica(what: str) -> None:
    """Raise `ContextError` when `what` is called inside a replica function."""
    if in_replica_context_of_a_run():
        raise ContextError(
            f"{what} is called in replica context, inside the function given to run",
            source=here(),
            hint=_INSTEAD.get(what, "call it before run, and pass run what it returns"),
        )


def require_same_strategy(strategy: Strategy, what: str, hint: str = "") -> None:
    """Raise `ContextError` when another strategy's scope is current."""
    entry = current_entry()
    if entry is not None and entry.strategy is not strategy and not entry.strategy.is_default:
        raise ContextError(
            f"{what} of {strategy} inside the scope of {entry.strategy}: strategies do not mix",
            source=here(),
            hint=hint or "call it outside that scope",
        )
