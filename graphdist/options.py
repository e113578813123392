"""Enums and option values of the public API, named as in `tf.distribute`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar  # Any: values that may be no member

from graphdist.errors import ArgumentError
from graphdist.tracing.sources import here

Member = TypeVar("Member", bound=Enum)


def member_of(kind: type[Member], value: Any, what: str) -> Member:
    """Return the member of an enum; `ArgumentError` for what is none."""
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(kind.__members__)
        is_name = isinstance(value, str) and value.upper() in kind.__members__
        raise ArgumentError(
            f"{what} is {value!r}, not one of {names} of {kind.__name__}",
            source=here(),
            hint=f"write gd.{kind.__name__}.{value.upper()}" if is_name else "",
        ) from None


class ReduceOp(Enum):
    """How values of several replicas become one.

    >>> ReduceOp.of("mean")
    <ReduceOp.MEAN: 'MEAN'>
    """

    SUM = "SUM"
    MEAN = "MEAN"

    @staticmethod
    def of(op: ReduceOp | str) -> ReduceOp:
        """Return the member of a name in any case; `ArgumentError` for anything else."""
        if isinstance(op, ReduceOp):
            return op
        if isinstance(op, str) and op.upper() in ReduceOp.__members__:
            return ReduceOp[op.upper()]
        what = repr(op) if isinstance(op, str) else f"of type {type(op).__name__}"
        raise ArgumentError(
            f"reduce op {what} is not one of SUM, MEAN",
            source=here(),
            hint="for another reduction gather the values, then reduce them with jax.numpy",
        )

    @property
    def reducer(self) -> str:
        """Return the graph's name for it."""
        return self.value.lower()


class VariableSynchronization(Enum):
    """When the copies of a variable are made to agree.

    AUTO and ON_WRITE: at every write, so that all copies are always equal. ON_READ: each replica
    writes its own copy, and a read outside replica context aggregates them. NONE is refused by
    every strategy with more than one replica.
    """

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(Enum):
    """How values that replicas write to one variable are combined."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


@dataclass(frozen=True)
class ValueContext:
    """Which replica a value is made for.

    >>> ValueContext().num_replicas_in_sync
    1
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1
