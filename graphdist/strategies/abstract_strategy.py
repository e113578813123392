"""The methods of strategies that the other modules of this package call.

`base.py` defines strategies, and imports replica contexts, `strategy.extended`, TF1's loops and the
user's reductions. These modules call strategies. They import the class declared here, since they
cannot import `base.py`.
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
    """The methods of `CrossDeviceOps` that a strategy calls."""

    @property
    def replaces_all_reduce(self) -> bool:
        """Return whether the user's code does the reduction."""

    def batch_reduce(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Return the reduced values of pairs of a value and its destinations."""


class AbstractStrategy(StrategyBase, InputMethods):
    """The methods of strategies that this package calls; `CommonStrategy` defines them."""

    cross_device_ops: ReductionAlgorithm | None = None
    """The reductions that the user gave the strategy."""

    @property
    def extended(self) -> StrategyExtended:
        """Return the strategy's methods for libraries."""
        raise NotImplementedError

    def scope(self) -> Scope[Self]:
        """Return a context manager. Variables made inside it belong to this strategy."""
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
        """Return a compiled function of (args, kwargs) that returns `call(fn, args, kwargs)`."""
        raise NotImplementedError
