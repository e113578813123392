"""Which strategy is current, and whether code runs in replica or in cross-replica context.

One entry is current at a time. `Strategy.scope()` enters cross-replica context, the tracing of a
replica function enters replica context, and `merge_call` enters cross-replica context again.
Without an entry the default strategy is current, whose context counts as replica context, as in
`tf.distribute`. A new thread starts without an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar  # Any: users' objects

from graphdist.errors import ContextError, MissingContextError
from graphdist.tracing.user_lines import where_raised

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase

Entered = TypeVar("Entered", bound="StrategyBase")
Made = TypeVar("Made")


class RunningReplica(Protocol):
    """The part of a `ReplicaContext` that packages below the strategies use."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Return the number of replicas that run together."""

    def known_replica_id(self) -> int:
        """Return the replica id as a Python value, for which each replica is traced separately."""

    def made_once(self, make: Callable[[], Made]) -> Made:
        """Call `make` once for all replicas, and return the same object to each."""

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function once for all replicas, in cross-replica context."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A strategy and, in replica context, the `ReplicaContext`."""

    strategy: StrategyBase
    replica_context: RunningReplica | None = None
    is_set: bool = False
    """Whether `experimental_set_strategy` made the entry, so that no `with` ends it."""
    is_merging: bool = False
    """Whether `merge_call` of the default strategy made the entry. This strategy has no scope."""


_entry: ContextVar[Entry | None] = ContextVar("graphdist_entry", default=None)


def current_entry() -> Entry | None:
    """Return the innermost entry, or None outside every scope."""
    return _entry.get()


def running_replica() -> RunningReplica | None:
    """Return the replica context of the replica function that runs; None outside of `run`."""
    entry = current_entry()
    return None if entry is None else entry.replica_context


@contextmanager
def entered(entry: Entry) -> Iterator[None]:
    """Make `entry` the current entry for the duration of a `with` block."""
    token = _entry.set(entry)
    try:
        yield
    finally:
        _entry.reset(token)


class Scope(Generic[Entered]):
    """The context manager of `Strategy.scope()`: cross-replica context of a strategy.

    A scope may be entered again inside its own `with` block, but not after this block has ended.
    """

    def __init__(self, strategy: Entered, leaving: Callable[[], None] | None = None) -> None:
        """Store the strategy, and the function to call when a block ends."""
        self._strategy, self._leaving = strategy, leaving
        self._tokens: list[Token[Entry | None]] = []
        self._was_left = False

    def __repr__(self) -> str:
        return f"<scope of {self._strategy}>"

    def __enter__(self) -> Entered:
        """Enter and return the strategy."""
        require_cross_replica("scope")
        require_same_strategy(self._strategy, "scope")
        if self._was_left:
            raise ContextError(
                "a scope is entered a second time, after it was left",
                hint="make a new one: with strategy.scope()",
            )
        self._tokens.append(_entry.set(Entry(self._strategy)))
        return self._strategy

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Make the earlier entry current again."""
        _entry.reset(self._tokens.pop())
        self._was_left = not self._tokens
        if self._leaving is not None and error is None:
            self._leaving()
        if isinstance(error, AttributeError) and (missing := missing_context(error)):
            raise missing from error


def set_entry(entry: Entry | None) -> None:
    """Make an entry current in this thread until the next call; with None no entry is current."""
    _entry.set(entry)


def set_default_strategy(make: Callable[[], StrategyBase]) -> None:
    """Set the function that returns the strategy which is current outside every scope."""
    global _default
    _default = make


def current_strategy() -> StrategyBase:
    """Return the current strategy. Outside every scope it is the default strategy."""
    entry = current_entry()
    return strategy_outside() if entry is None else entry.strategy


def strategy_outside() -> StrategyBase:
    """Return the default strategy, which is current outside every scope."""
    assert _default is not None, "graphdist.strategies.current is not imported"
    return _default()


_default: Callable[[], StrategyBase] | None = None


def has_strategy() -> bool:
    """Return whether the current strategy is not the default strategy.

    >>> has_strategy()
    False
    """
    entry = current_entry()
    return entry is not None and not entry.strategy.is_default


def in_cross_replica_context() -> bool:
    """Return whether code runs once for all replicas: inside `scope()`, outside `run`.

    >>> import graphdist as gd
    >>> with gd.OneDeviceStrategy("cpu:0").scope():
    ...     in_cross_replica_context()
    True
    """
    entry = current_entry()
    if entry is None or entry.replica_context is not None:
        return False
    return entry.is_merging or not entry.strategy.is_default


def num_replicas_running() -> int:
    """Return the number of replicas of the current strategy; 1 outside every scope."""
    entry = current_entry()
    return 1 if entry is None else entry.strategy.num_replicas_in_sync


def missing_context(error: AttributeError) -> ContextError | None:
    """Return the error for an attribute of a replica context that is looked up on None.

    Returns None for any other `AttributeError`. `get_replica_context()` returns None in
    cross-replica context. An attribute that exists only in replica contexts was probably looked up
    on this None.
    """
    known = ("all_reduce", "all_gather", "merge_call", "num_replicas_in_sync", _NUMBER)
    if getattr(error, "obj", error) is not None or error.name not in known:
        return None
    return MissingContextError(
        f"{error.name} is looked up on None: gd.get_replica_context() is None in cross-replica "
        f"context, outside the function given to run",
        source=where_raised(error),
        hint=_OF_STRATEGY.get(error.name, "call it inside the function given to strategy.run"),
    )


_NUMBER = "replica_id_in_sync_group"
_OF_STRATEGY = {
    "all_reduce": "use strategy.reduce(reduce_op, value, axis=None), or call it inside the "
    "function given to strategy.run",
    "all_gather": "use strategy.gather(value, axis), or call it inside the function given to "
    "strategy.run",
    "merge_call": "call the function itself: this code is in cross-replica context already",
    "num_replicas_in_sync": "use strategy.num_replicas_in_sync",
}


def in_replica_context_of_a_run() -> bool:
    """Return whether code runs inside a replica function given to `run`."""
    return running_replica() is not None


_INSTEAD = {
    "run": "call the function itself: this code runs on every replica already",
    "scope": "leave it out: a replica function is inside the scope of its strategy already",
    "reduce": "use gd.get_replica_context().all_reduce(reduce_op, value)",
    "gather": "use gd.get_replica_context().all_gather(value, axis)",
    "reduce_to": "use gd.get_replica_context().all_reduce(reduce_op, value)",
    "broadcast_to": "leave it out: a replica has the value already",
}


def require_cross_replica(what: str) -> None:
    """Raise `ContextError` when `what` is called inside a replica function."""
    if in_replica_context_of_a_run():
        raise ContextError(
            f"{what} is called in replica context, inside the function given to run",
            hint=_INSTEAD.get(what, "call it before run, and pass its result to run"),
        )


def require_same_strategy(strategy: StrategyBase, what: str, hint: str = "") -> None:
    """Raise `ContextError` when another strategy's scope is current."""
    entry = current_entry()
    if entry is not None and entry.strategy is not strategy and not entry.strategy.is_default:
        raise ContextError(
            f"{what} of {strategy} inside the scope of {entry.strategy.beside(strategy)}: "
            f"strategies do not mix",
            hint=alike(strategy, entry.strategy) or hint or "call it outside that scope",
        )


def alike(strategy: StrategyBase, other: StrategyBase) -> str:
    """Return a hint if two different strategies have the same text, else ""."""
    if str(strategy) != str(other):
        return ""
    return "make the strategy once and share it: two strategies differ even on the same devices"
