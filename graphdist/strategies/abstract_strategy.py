"""What a strategy is to the modules of this package that it is made of.

Replica contexts, `strategy.extended`, loops over iterators and reductions of the user's own each
call a strategy, which is made of them. They know the methods declared here; `base.py` defines them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self  # Any: users' pytrees and functions

from graphdist.context import Scope
from graphdist.options import CommunicationOptions, ReduceOp
from graphdist.strategies.input import InputMethods
from graphdist.strategy_base import StrategyBase

if TYPE_CHECKING:
    from graphdist.strategies.extended import StrategyExtended


class ReductionAlgorithm(Protocol):
    """How a strategy reduces values where the user says how; `CrossDeviceOps` is more than that."""

    @property
    def replaces_all_reduce(self) -> bool:
        """Return whether it reduces in a way of the user's own."""

    def batch_reduce(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Return the reduced values of pairs of a value and its destinations."""


class AbstractStrategy(StrategyBase, InputMethods):
    """The methods of strategies that this package calls; `CommonStrategy` has them."""

    cross_device_ops: ReductionAlgorithm | None = None
    """The algorithms the user asked for."""

    @property
    def extended(self) -> StrategyExtended:
        """Return what libraries ask of the strategy."""
        raise NotImplementedError

    def scope(self) -> Scope[Self]:
        """Return a context manager: variables made inside belong to this strategy."""
        raise NotImplementedError

    def reduce(
        self, reduce_op: ReduceOp | str, value: Any, axis: int | tuple[int, ...] | None
    ) -> Any:
        """Return the sum or mean over the replicas of every `PerReplica` leaf of `value`."""
        raise NotImplementedError

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return this process's components of a value."""
        raise NotImplementedError

    def implicit_function(
        self, key: tuple[Any, ...], body: Callable[..., Any], name: str = ""
    ) -> Callable[..., Any]:
        """Return the function compiled for a key."""
        raise NotImplementedError

    def implicit_call(
        self, kind: str, fn: Callable[..., Any], call: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return `call(fn, args, kwargs)` compiled."""
        raise NotImplementedError
