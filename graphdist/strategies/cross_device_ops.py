"""How values of several devices are reduced: hints to a strategy, and reductions of users.

In `tf.distribute` an object of these classes carries the reductions of a strategy out. Here a
reduction is a collective of the program: the passes pack it, XLA implements it, so that the classes
are hints that change no result. Their methods work on their own too, on distributed values with the
strategy that made them.

What a user brings is not ignored. A subclass that overrides `reduce_implementation` or
`batch_reduce_implementation`, and a `ReductionToOneDevice` with an `accumulation_fn`, is what
`ReplicaContext.all_reduce` calls under a strategy that was given it; `Strategy.reduce` and
`extended.reduce_to` add up, as in `tf.distribute`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast  # Any: users' values and destinations

import jax

from graphdist.context import Entry, current_strategy, entered
from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.options import CommunicationOptions, ReduceOp, check_communication_options
from graphdist.state.variable import Variable
from graphdist.strategies.abstract_strategy import AbstractStrategy
from graphdist.tracing.state import current_trace
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import PerReplicaArray, type_name


class CrossDeviceOps:
    """Reductions of distributed values.

    >>> import graphdist as gd
    >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    >>> x = strategy.run(lambda: gd.get_replica_context().replica_id_in_sync_group + 1)
    >>> CrossDeviceOps().reduce("SUM", x, destinations="cpu:0")
    Array(3, dtype=int32)
    """

    def reduce(
        self,
        reduce_op: ReduceOp | str,
        per_replica_value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Return the sum or mean of a value over the replicas, at `destinations`.

        Destinations and errors are as in `StrategyExtended.reduce_to`.
        """
        op = ReduceOp.of(reduce_op)
        check_communication_options(options)
        return self.reduce_implementation(op, per_replica_value, destinations, options)

    def batch_reduce(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Return what `reduce` returns for each pair of a value and its destinations."""
        op = ReduceOp.of(reduce_op)
        check_communication_options(options)
        return self.batch_reduce_implementation(op, value_destination_pairs, options)

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """Return a value at `destinations`."""
        return self.broadcast_implementation(tensor, destinations)

    def reduce_implementation(
        self, reduce_op: ReduceOp, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        """Reduce; for subclasses to override."""
        extended = _strategy_of(per_replica_value, destinations).extended
        return extended.reduce_to(reduce_op, per_replica_value, destinations, options)

    def batch_reduce_implementation(
        self, reduce_op: ReduceOp, value_destination_pairs: Any, options: Any
    ) -> list[Any]:
        """Reduce each value; for subclasses to override."""
        return [
            self.reduce_implementation(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs
        ]

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """Broadcast; for subclasses to override."""
        return _strategy_of(destinations).extended.broadcast_to(tensor, destinations)

    @property
    def replaces_all_reduce(self) -> bool:
        """Whether it reduces in a way of the user's own."""
        return _overrides(self, CrossDeviceOps)


class ReductionToOneDevice(CrossDeviceOps):
    """Asks for reductions on one device, of which the others get the result.

    `reduce_to_device` is a hint. `accumulation_fn` takes the list of the replicas' values and
    returns one; a mean is what it returns divided by the number of replicas.

    >>> import graphdist as gd
    >>> max_of_all = lambda values: jax.numpy.max(jax.numpy.stack(values))
    >>> largest = gd.ReductionToOneDevice(accumulation_fn=max_of_all)
    >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops=largest)
    >>> def replica_fn():
    ...     context = gd.get_replica_context()
    ...     return context.all_reduce("SUM", context.replica_id_in_sync_group * 10)
    >>> strategy.experimental_local_results(strategy.run(replica_fn))
    (Array(10, dtype=int32), Array(10, dtype=int32))
    """

    def __init__(
        self,
        reduce_to_device: str | jax.Device | None = None,
        accumulation_fn: Callable[[list[jax.Array]], jax.Array] | None = None,
    ) -> None:
        """Take the hints; raises `ArgumentTypeError` for an `accumulation_fn` that is none."""
        if accumulation_fn is not None and not callable(accumulation_fn):
            raise ArgumentTypeError(
                f"accumulation_fn is of type {type_name(accumulation_fn)}, not a function",
                source=here(),
            )
        self.reduce_to_device = reduce_to_device
        self.accumulation_fn = accumulation_fn

    @property
    def replaces_all_reduce(self) -> bool:
        """Whether it reduces in a way of the user's own."""
        return self.accumulation_fn is not None or _overrides(self, ReductionToOneDevice)

    def reduce_implementation(
        self, reduce_op: ReduceOp, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        """Reduce, by the user's function if there is one."""
        accumulate = self.accumulation_fn
        if accumulate is None:
            return super().reduce_implementation(
                reduce_op, per_replica_value, destinations, options
            )
        strategy = _strategy_of(per_replica_value, destinations)

        def accumulated(value: Any) -> Any:
            parts = strategy.experimental_local_results(value)
            total = accumulate(list(parts))
            return total / len(parts) if reduce_op is ReduceOp.MEAN else total

        if current_trace() is not None:
            total = accumulated(per_replica_value)
        else:
            key = ("accumulate", accumulate, reduce_op)
            with entered(Entry(strategy)):
                total = strategy.implicit_function(key, accumulated)(per_replica_value)
        return strategy.extended.broadcast_to(total, destinations)


class HierarchicalCopyAllReduce(CrossDeviceOps):
    """Asks for reductions along the links of a host, in `num_packs` packs; 0 packs nothing.

    A hint: XLA knows the links, and the pass `bucket_collectives` packs. Raises `ArgumentError` for
    a negative number.
    """

    def __init__(self, num_packs: int = 1) -> None:
        """Take the hint."""
        self.num_packs = _packs(num_packs)


class NcclAllReduce(CrossDeviceOps):
    """Asks for NCCL, in `num_packs` packs; 0 packs nothing.

    A hint: on GPUs XLA uses NCCL, elsewhere what the platform has. Raises `ArgumentError` for a
    negative number.
    """

    def __init__(self, num_packs: int = 1) -> None:
        """Take the hint."""
        self.num_packs = _packs(num_packs)


def _overrides(ops: CrossDeviceOps, ours: type[CrossDeviceOps]) -> bool:
    """Return whether a class of the user's reduces in another way than the one it is made of."""
    names = ("reduce_implementation", "batch_reduce_implementation")
    return any(getattr(type(ops), name) is not getattr(ours, name) for name in names)


def checked_ops(ops: Any) -> CrossDeviceOps | None:
    """Return what a strategy is given; raises `ArgumentTypeError` for another kind."""
    if not isinstance(ops, CrossDeviceOps | None):
        raise ArgumentTypeError(
            f"cross_device_ops is of type {type_name(ops)}, not CrossDeviceOps",
            source=here(),
            hint="leave it out, or write gd.NcclAllReduce()",
        )
    return ops


def _packs(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int):
        raise ArgumentTypeError(
            f"num_packs is of type {type_name(count)}, not an int", source=here()
        )
    if count < 0:
        raise ArgumentError(
            f"num_packs is {count}: it is at least 0",
            source=here(),
            hint="leave it out, or give 0 to pack nothing",
        )
    return count


def _strategy_of(*values: Any) -> AbstractStrategy:
    """Return the strategy that made one of the values, or else the current one."""
    for value in values:
        if isinstance(value, PerReplicaArray | Variable):
            return cast("AbstractStrategy", value.strategy)
    return cast("AbstractStrategy", current_strategy())
