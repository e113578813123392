"""Reductions over devices: hints to a strategy, and the user's own reductions.

In `tf.distribute` an object of these classes implements the reductions of a strategy. In graphdist
a reduction is a collective of the program, which passes pack and XLA implements. So the classes are
hints that change no result. The methods of the classes can also be called directly, with
distributed values.

`ReplicaContext.all_reduce` calls the strategy's `CrossDeviceOps` in two cases: the class of the
object overrides `reduce_implementation` or `batch_reduce_implementation`, or the object is a
`ReductionToOneDevice` with an `accumulation_fn`. `Strategy.reduce` and `extended.reduce_to` never
call the object, as in `tf.distribute`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any  # Any: users' values and destinations

import jax

from graphdist.context import Entry, current_strategy, entered
from graphdist.errors import ArgumentError
from graphdist.options import CommunicationOptions, ReduceOp, check_communication_options
from graphdist.state.variable import Variable
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.values.distributed import PerReplicaArray, wrong_type


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
        """Return the result of `reduce` for each pair of a value and destinations."""
        op = ReduceOp.of(reduce_op)
        check_communication_options(options)
        return self.batch_reduce_implementation(op, value_destination_pairs, options)

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """Return a value at `destinations`."""
        return self.broadcast_implementation(tensor, destinations)

    def reduce_implementation(
        self, reduce_op: ReduceOp, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        """Reduce a value. Subclasses may override this method."""
        extended = _strategy_of(per_replica_value, destinations).extended
        return extended.reduce_to(reduce_op, per_replica_value, destinations, options)

    def batch_reduce_implementation(
        self, reduce_op: ReduceOp, value_destination_pairs: Any, options: Any
    ) -> list[Any]:
        """Reduce each value. Subclasses may override this method."""
        return [
            self.reduce_implementation(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs
        ]

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """Broadcast a value. Subclasses may override this method."""
        return _strategy_of(destinations).extended.broadcast_to(tensor, destinations)

    @property
    def replaces_all_reduce(self) -> bool:
        """Return whether the user's code does the reduction."""
        return _overrides(self, CrossDeviceOps)


class ReductionToOneDevice(CrossDeviceOps):
    """Asks for reductions on one device, which sends the result to the other devices.

    `reduce_to_device` is a hint. `accumulation_fn` takes the list of the replicas' values and
    returns one value. A mean is this value divided by the number of replicas.

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
        """Store the hints; raises `ArgumentTypeError` if `accumulation_fn` is no function."""
        if accumulation_fn is not None and not callable(accumulation_fn):
            raise wrong_type("accumulation_fn", accumulation_fn, "a function")
        self.reduce_to_device = reduce_to_device
        self.accumulation_fn = accumulation_fn

    @property
    def replaces_all_reduce(self) -> bool:
        """Return whether the user's code does the reduction."""
        return self.accumulation_fn is not None or _overrides(self, ReductionToOneDevice)

    def reduce_implementation(
        self, reduce_op: ReduceOp, per_replica_value: Any, destinations: Any, options: Any
    ) -> Any:
        """Reduce, by `accumulation_fn` if there is one."""
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
                total = strategy.implicit.of(key, accumulated)(per_replica_value)
        return strategy.extended.broadcast_to(total, destinations)


class _PackedAllReduce(CrossDeviceOps):
    """The base of hints with a number of packs."""

    def __init__(self, num_packs: int = 1) -> None:
        """Store the hint."""
        if isinstance(num_packs, bool) or not isinstance(num_packs, int):
            raise wrong_type("num_packs", num_packs, "an int")
        if num_packs < 0:
            raise ArgumentError(
                f"num_packs is {num_packs}: it must be at least 0",
                hint="leave it out, or give 0 to pack nothing",
            )
        self.num_packs = num_packs


class HierarchicalCopyAllReduce(_PackedAllReduce):
    """Accepted for code written for `tf.distribute`; it changes nothing.

    XLA chooses the links of each reduction, and the pass `bucket_collectives` decides which
    reductions are joined. Raises `ArgumentError` if `num_packs` is negative.
    """


class NcclAllReduce(_PackedAllReduce):
    """Accepted for code written for `tf.distribute`; it changes nothing.

    XLA uses NCCL on GPUs, and the platform's library elsewhere. Raises `ArgumentError` if
    `num_packs` is negative.
    """


def _overrides(ops: CrossDeviceOps, ours: type[CrossDeviceOps]) -> bool:
    """Return whether the class of `ops` overrides the reductions of the base class `ours`."""
    names = ("reduce_implementation", "batch_reduce_implementation")
    return any(getattr(type(ops), name) is not getattr(ours, name) for name in names)


def checked_ops(ops: Any) -> CrossDeviceOps | None:
    """Return `ops`; raises `ArgumentTypeError` if it is neither `CrossDeviceOps` nor None."""
    if not isinstance(ops, CrossDeviceOps | None):
        hint = "leave it out, or write gd.NcclAllReduce()"
        raise wrong_type("cross_device_ops", ops, "CrossDeviceOps", hint)
    return ops


def _strategy_of(*values: Any) -> StrategyBase:
    """Return the strategy that made one of the values, else the current strategy."""
    for value in values:
        if isinstance(value, PerReplicaArray | Variable):
            return value.strategy
    return current_strategy()
