"""Enums and option values of the public API, named as in `tf.distribute`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, NamedTuple, TypeVar  # Any: values that may be no member

import jax.numpy as jnp

from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.user_warnings import warn_of_older_name

Member = TypeVar("Member", bound=Enum)

AXIS_NAME = "replica"
"""The axis name of the replicas in collectives of JAX, unless a strategy sets another."""


def member_of(kind: type[Member], value: Any, what: str) -> Member:
    """Return the member of an enum with a value; raises `ArgumentError` if there is none."""
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(kind.__members__)
        is_name = isinstance(value, str) and value.upper() in kind.__members__
        raise ArgumentError(
            f"{what} is {value!r}, not one of {names} of {kind.__name__}",
            hint=f"write gd.{kind.__name__}.{value.upper()}" if is_name else "",
        ) from None


def checked_sharding(shard_update: Any) -> bool | None:
    """Return True, False, or None for "auto"; raises `ArgumentError` for anything else.

    >>> checked_sharding("auto") is None
    True
    """
    if shard_update is True or shard_update is False:
        return bool(shard_update)
    if shard_update == "auto":
        return None
    raise ArgumentError(f"shard_update is {shard_update!r}, not one of True, False, 'auto'")


def checked_axis_name(axis_name: Any) -> str:
    """Return the name of an axis; raises `ArgumentTypeError` for any other value.

    >>> checked_axis_name("batch")
    'batch'
    """
    if isinstance(axis_name, str) and axis_name:
        return axis_name
    raise ArgumentTypeError(
        f"axis_name is {axis_name!r}, not a name",
        hint='write a string, such as axis_name="batch"',
    )


class ReduceOp(Enum):
    """How values of several replicas become one.

    >>> ReduceOp.of("mean")
    <ReduceOp.MEAN: 'MEAN'>
    """

    SUM = "SUM"
    MEAN = "MEAN"

    @staticmethod
    def of(op: ReduceOp | str) -> ReduceOp:
        """Return the member with a name, in upper or lower case; else raises `ArgumentError`."""
        if isinstance(op, ReduceOp):
            return op
        if isinstance(op, str) and op.upper() in ReduceOp.__members__:
            return ReduceOp[op.upper()]
        what = repr(op) if isinstance(op, str) else f"of type {type(op).__name__}"
        raise ArgumentError(
            f"reduce op {what} is not one of SUM, MEAN",
            hint="for another reduction gather the values, then reduce them with jax.numpy",
        )

    @staticmethod
    def from_variable_aggregation(aggregation: VariableAggregation) -> ReduceOp:
        """Return the op of an aggregation; NONE and ONLY_FIRST_REPLICA raise `ArgumentError`.

        >>> ReduceOp.from_variable_aggregation(VariableAggregation.SUM)
        <ReduceOp.SUM: 'SUM'>
        """
        op = ReduceOp.__members__.get(getattr(aggregation, "name", ""))
        if op is None:
            raise ArgumentError(f"aggregation {aggregation} is no reduction: SUM and MEAN are")
        return op

    @property
    def reducer(self) -> str:
        """Return the name of the reduction in graphs."""
        return self.value.lower()


class VariableSynchronization(Enum):
    """When the copies of a variable are made to agree.

    AUTO and ON_WRITE: at every write, so that all copies are always equal. ON_READ: each replica
    writes its own copy, and a read outside replica context aggregates the copies. NONE is allowed
    in two cases only: on `OneDeviceStrategy`, and where no strategy's scope is open.
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
    """The replica for which a value is made.

    >>> ValueContext().num_replicas_in_sync
    1
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1


class RunOptions(NamedTuple):
    """Options of `Strategy.run` that `tf.distribute` has for TPU; here they change nothing.

    Replicas may have different shapes on every platform. Options of XLA are given to
    `gd.function(compiler_options=...)`.

    >>> RunOptions().experimental_enable_dynamic_batch_size
    True
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Any = None


class CommunicationImplementation(Enum):
    """The library that moves data between devices: a hint, because XLA chooses the library."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


@dataclass(frozen=True)
class CommunicationOptions:
    """Hints for collectives.

    `bytes_per_pack` is the largest number of bytes that one collective packs (0: a measured size
    for each platform). `timeout_seconds` is the longest time that a collective may take.
    `implementation` is a `CommunicationImplementation` or its name. These three are accepted
    wherever `tf.distribute` accepts them. They change no result, since the pass
    `bucket_collectives` packs, and XLA implements the collectives.

    `reduce_dtype`, "float32" or "bfloat16" for instance, is the dtype in which `all_reduce` adds up
    floats, whatever dtype they have. The result has the values' own dtype.

    Raises `ArgumentError` for a negative `bytes_per_pack`, an unknown `implementation` or a
    `reduce_dtype` that is not a dtype of floats, `ArgumentTypeError` for a value that is not a
    number.

    >>> CommunicationOptions(100, 1.0, "RING").merge(CommunicationOptions(bytes_per_pack=5))
    CommunicationOptions(bytes_per_pack=5, timeout_seconds=1.0, \
implementation=<CommunicationImplementation.RING: 'RING'>, reduce_dtype=None)
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO
    reduce_dtype: Any = None

    def __post_init__(self) -> None:
        """Check the fields."""
        _check_number("bytes_per_pack", self.bytes_per_pack, int)
        if self.bytes_per_pack < 0:
            raise ArgumentError(
                f"bytes_per_pack is {self.bytes_per_pack}: it must be at least 0",
                hint="leave it out to have it chosen",
            )
        if self.timeout_seconds is not None:
            _check_number("timeout_seconds", self.timeout_seconds, int | float)
        name: Any = self.implementation
        name = name.upper() if isinstance(name, str) else name
        implementation = member_of(CommunicationImplementation, name, "implementation")
        object.__setattr__(self, "implementation", implementation)
        object.__setattr__(self, "reduce_dtype", _float_dtype(self.reduce_dtype))

    def merge(self, options: CommunicationOptions | None) -> CommunicationOptions:
        """Return these options, overridden by the fields that `options` sets.

        A field counts as set if its value is not the default.
        """
        check_communication_options(options)
        if options is None:
            return self
        values = {each: getattr(options, each.name) for each in fields(options)}
        changed = {each.name: value for each, value in values.items() if value != each.default}
        return replace(self, **changed)


def CollectiveHints(
    bytes_per_pack: int = 0, timeout_seconds: float | None = None
) -> CommunicationOptions:
    """Return `CommunicationOptions`; this is their older name."""
    warn_of_older_name("CollectiveHints", "CommunicationOptions")
    return CommunicationOptions(bytes_per_pack, timeout_seconds)


def check_communication_options(options: Any) -> None:
    """Raise `ArgumentTypeError` unless the options are `CommunicationOptions` or None."""
    if not isinstance(options, CommunicationOptions | None):
        raise ArgumentTypeError(
            f"options is of type {type(options).__name__}, not CommunicationOptions",
            hint="write gd.CommunicationOptions(...)",
        )


def _float_dtype(dtype: Any) -> Any:
    """Return `reduce_dtype` as a dtype; raises `ArgumentError` unless it is a dtype of floats."""
    if dtype is None:
        return None
    with suppress(TypeError):
        chosen = jnp.dtype(dtype)
        if jnp.issubdtype(chosen, jnp.floating):
            return chosen
    raise ArgumentError(
        f"reduce_dtype is {dtype!r}: it is the dtype of floats, or None for the values' own",
        hint='write reduce_dtype="float32" or "bfloat16"',
    )


def _check_number(name: str, value: Any, kind: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ArgumentTypeError(f"{name} is of type {type(value).__name__}, not a number")
