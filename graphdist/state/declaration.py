"""The declaration of a variable: its name, type, synchronization and aggregation."""

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
    """The declared properties of a variable. `Variable` adds its value, reads and writes."""

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
    core: int | None = None
    """The dimension along which the cores of a replica hold shards of a new variable."""
    chooses_core: bool = False
    """Whether the compiler chooses the dimension."""
    layout: Layout
    """MIRRORED or PER_REPLICA: whether replicas hold the same value or different ones."""

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
        """Return whether the variable has one copy, which programs of all strategies share.

        Replicas write to this copy one after the other.
        """
        return self.strategy.makes_plain_variables

    @property
    def may_be_sharded(self) -> bool:
        """Return whether the variable is sharded from its creation on, if its shape allows it.

        True for strategies with `shard_parameters`, unless the replicas have different values.
        """
        on_read = self.synchronization is VariableSynchronization.ON_READ
        return self.strategy.shard_parameters and not on_read

    def spec(self, name: str) -> GraphVariable:
        """Return the graph's description of this variable, under the name `name`."""
        return GraphVariable(
            name,
            Type(dtype_name(self.dtype), self.shape, self.layout),
            synchronization="on_write" if self.layout is MIRRORED else "on_read",
            aggregation=self.aggregation.name.lower(),
            trainable=self.trainable,
            chooses_core=self.chooses_core,
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
