"""What the user declared of a variable: name, type, how copies relate, how writes are combined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any  # Any: dtypes, those of random keys included

from graphdist.context import require_same_strategy
from graphdist.ir.graph import Variable as GraphVariable
from graphdist.ir.source import Source
from graphdist.ir.types import MIRRORED, Distribution, Type, dtype_name
from graphdist.options import VariableAggregation, VariableSynchronization

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase


class Declaration:
    """The declared part of a variable; `Variable` adds the value, and reads and writes of it."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    strategy: StrategyBase
    """The strategy that was current when the variable was made."""
    synchronization: VariableSynchronization
    aggregation: VariableAggregation
    trainable: bool
    made_at: Source
    is_mirrored: bool
    """Whether all replicas hold the same value."""
    distribution: Distribution
    """What the replicas know of the value."""

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Return the number of elements of one copy."""
        return Type(dtype_name(self.dtype), self.shape).size

    @property
    def is_plain(self) -> bool:
        """Whether it has one copy, which programs of all strategies share.

        In a replica function of several replicas it is written by one after the other.
        """
        return self.strategy.makes_plain_variables

    def spec(self, name: str) -> GraphVariable:
        """Return the variable as a graph knows it, under this name."""
        return GraphVariable(
            name,
            Type(dtype_name(self.dtype), self.shape, self.distribution),
            synchronization="on_write" if self.distribution is MIRRORED else "on_read",
            aggregation=self.aggregation.name.lower(),
            trainable=self.trainable,
        )

    def require_same_strategy(self) -> None:
        """Raise `ContextError` inside another strategy's scope, unless the variable is plain."""
        if self.is_plain:
            return
        require_same_strategy(
            self.strategy,
            f"variable {self.name!r}",
            hint="make the variable inside that scope, or use it outside",
        )
