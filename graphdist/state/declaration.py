"""The declaration of a variable: name, type, how copies relate, how writes are combined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any  # Any: dtypes, also of random keys

from graphdist.context import require_same_strategy
from graphdist.ir.graph import GraphVariable
from graphdist.ir.source import Source
from graphdist.ir.types import MIRRORED, Layout, Type, dtype_name
from graphdist.options import VariableAggregation, VariableSynchronization

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase


class Declaration:
    """The declared properties of a variable; `Variable` adds its value, with reads and writes."""

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
    layout: Layout
    """MIRRORED or PER_REPLICA: whether the replicas hold the same value or values of their own."""

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

        Replicas write to it one after the other.
        """
        return self.strategy.makes_plain_variables

    @property
    def may_be_sharded(self) -> bool:
        """Whether it is stored in shards from its creation, if its shape allows it.

        It is for a strategy with `shard_parameters`, unless the replicas have values of their own.
        """
        on_read = self.synchronization is VariableSynchronization.ON_READ
        return self.strategy.shard_parameters and not on_read

    def spec(self, name: str) -> GraphVariable:
        """Return the variable of a graph that stands for this one, under a name."""
        return GraphVariable(
            name,
            Type(dtype_name(self.dtype), self.shape, self.layout),
            synchronization="on_write" if self.layout is MIRRORED else "on_read",
            aggregation=self.aggregation.name.lower(),
            trainable=self.trainable,
            num_copies=self.strategy.devices.num_groups,
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
