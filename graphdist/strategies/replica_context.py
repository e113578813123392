"""The replica's view of its strategy, inside a replica function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, overload  # Any: users' pytrees

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.context import Entry, current_entry, entered
from graphdist.errors import ArgumentError, ContextError, UnsupportedError
from graphdist.options import ReduceOp, check_communication_options
from graphdist.program.argument_changes import call_with_copies
from graphdist.program.step_functions import name_of, require_call
from graphdist.state.variable_updates import IndexedSlices
from graphdist.strategies.abstract_strategy import AbstractStrategy
from graphdist.tracing.axis_name import for_all
from graphdist.tracing.primitives import all_gather_p, all_reduce_p, replica_id_p
from graphdist.tracing.slots import padded
from graphdist.tracing.state import current_trace, fresh_trace
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import (
    DistributedValues,
    Mirrored,
    NumpyArray,
    TracedPerReplica,
    checked_array,
    is_array,
)
from graphdist.values.pytrees import map_leaves
from graphdist.values.reducible import gather_axis, gather_dimension, summable, without_padding

if TYPE_CHECKING:
    from graphdist.strategies.peers import Peers


Made = TypeVar("Made")
Tree = TypeVar("Tree")
Result = TypeVar("Result")


class ReplicaContext:
    """A replica's view of its strategy and the other replicas; see `gd.get_replica_context()`."""

    def __init__(
        self,
        strategy: AbstractStrategy,
        replica_id_in_sync_group: int | None = None,
        peers: Peers | None = None,
    ) -> None:
        """Make the context of one run of `strategy`, of one replica of it if it has a number.

        `peers` are the other replicas, where they are traced on their own.
        """
        self._strategy = strategy
        self._number = 0 if self.num_replicas_in_sync == 1 else replica_id_in_sync_group
        self._peers = peers
        self.mirrored: dict[int, tuple[Any, Any]] = {}
        """Cross-replica values, by the id of what replicas see, which is kept alive with them."""

    @property
    def strategy(self) -> AbstractStrategy:
        """Return the strategy that runs this replica."""
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """Return how many replicas run together."""
        return self._strategy.num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> jax.Array | np.int32 | int:
        """Return the replica's number, an int32 scalar; the Python int 0 outside every strategy.

        It is traced, one program for all replicas, until the program needs its value: in an `if`,
        as an index of a list. Then each replica is traced on its own.
        """
        if not self._is_running():
            return 0
        self._check_current("replica_id_in_sync_group")
        trace = current_trace()
        if trace is not None and self.num_replicas_in_sync == 1:
            trace.means.replica_was_asked = True
        if self._number is not None:
            return np.int32(self._number)
        if trace is not None:
            trace.number_was_asked = True
        return replica_id_p.bind(group_size=self.num_replicas_in_sync)

    @property
    def devices(self) -> tuple[str]:
        """Return the name of this replica's device, alone in a tuple."""
        return (self._strategy.devices.names[self.known_number()],)

    def known_number(self) -> int:
        """Return the replica's number as a Python value, for which each is traced on its own."""
        if self._number is None:
            trace = current_trace()
            assert trace is not None
            trace.number_was_asked = True
            trace.ask_for_number()
        return self._number or 0

    @overload
    def all_reduce(
        self, reduce_op: ReduceOp | str, value: DistributedValues | NumpyArray, options: Any = None
    ) -> jax.Array: ...

    @overload
    def all_reduce(self, reduce_op: ReduceOp | str, value: Tree, options: Any = None) -> Tree: ...

    def all_reduce(self, reduce_op: ReduceOp | str, value: Any, options: Any = None) -> Any:
        """Return the sum or mean over all replicas of every leaf of `value`, on every replica.

        `value` is a pytree of arrays of any shape, the same on all replicas; None in it stays None.
        Integers have a float32 mean, but for those proven to be the same on all replicas. Gradients
        flow through: the transpose is the same reduction of the cotangents. `options` are
        `CommunicationOptions`. Raises `ArgumentError` for another op or None alone,
        `ArgumentTypeError` for a leaf that cannot be added up or for options of another kind,
        `ContextError` when the run is over.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> def replica_fn():
        ...     context = gd.get_replica_context()
        ...     return context.all_reduce("SUM", context.replica_id_in_sync_group + 1)
        >>> strategy.experimental_local_results(strategy.run(replica_fn))
        (Array(3, dtype=int32), Array(3, dtype=int32))
        """
        op = ReduceOp.of(reduce_op)
        refuse_none(value, "all_reduce")
        options = self._strategy.communication_options.merge(options)
        dtype = options.reduce_dtype
        self._check_current("all_reduce")
        trace = current_trace()
        if trace is not None:
            trace.pack_at_most(options.bytes_per_pack)
        return jax.tree.map(
            lambda leaf: self._all_reduce_leaf(op, leaf, dtype), value, is_leaf=is_slices
        )

    def _all_reduce_leaf(self, op: ReduceOp, leaf: Any, reduce_dtype: Any) -> Any:
        if isinstance(leaf, IndexedSlices):
            scale = self.num_replicas_in_sync if op is ReduceOp.MEAN else 1
            values, indices = self.all_gather((leaf.values, leaf.indices), axis=0)
            return IndexedSlices(values / scale if scale > 1 else values, indices, leaf.dense_shape)
        array, reducer = reduction_of(leaf, op, "all_reduce")
        if not self._is_running():
            return array
        own = self._strategy.cross_device_ops
        if own is not None and own.replaces_all_reduce and reducer == op.reducer:
            merged = self.merge_call(
                lambda _, value: own.batch_reduce(op, [(value, value)])[0], args=(array,)
            )
            return jnp.copy(merged)  # what merge_call returned would leave `run` as one value
        size, dtype = self.num_replicas_in_sync, array.dtype
        if reduce_dtype is not None and jnp.issubdtype(dtype, jnp.floating):
            array = array.astype(reduce_dtype)
        return all_reduce_p.bind(array, reducer=reducer, group_size=size).astype(dtype)

    @overload
    def all_gather(
        self, value: DistributedValues | NumpyArray, axis: int, options: Any = None
    ) -> jax.Array: ...

    @overload
    def all_gather(self, value: Tree, axis: int, options: Any = None) -> Tree: ...

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Return every leaf concatenated over all replicas along `axis`, on every replica.

        Leaves have rank 1 or more, None stays None; `axis` may be negative. Raises `ArgumentError`
        for a scalar or an axis out of range, `ArgumentTypeError` for options of another kind.
        """
        check_communication_options(options)
        refuse_none(value, "all_gather")
        self._check_current("all_gather")

        def gather(leaf: Any) -> Any:
            refuse_slices(leaf, "all_gather")
            array = checked_array(leaf, "all_gather of")
            dimension = gather_dimension(array, gather_axis(axis, "all_gather"), "all_gather")
            if not self._is_running():
                return array
            return self._all_gather_leaf(array, dimension)

        return jax.tree.map(gather, value, is_leaf=is_slices)

    def _all_gather_leaf(self, array: jax.Array, dimension: int) -> jax.Array:
        """Gather; where the replicas' values differ in length each is padded to the longest."""
        size = self.num_replicas_in_sync
        if self._peers is None:
            return all_gather_p.bind(array, axis=dimension, group_size=size)
        lengths = [shape[dimension] for shape in self._peers.shapes_of_all(array.shape)]
        longest = max(lengths)
        shape = (*array.shape[:dimension], longest, *array.shape[dimension + 1 :])
        joined = all_gather_p.bind(padded(array, shape), axis=dimension, group_size=size)
        return without_padding(joined, lengths, longest, dimension)

    def merge_call(
        self,
        merge_fn: Callable[..., Result],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Result:
        """Call `merge_fn(strategy, *args, **kwargs)` once, in cross-replica context.

        Arrays among the arguments arrive as `PerReplica`. Of a `PerReplica` in the result every
        replica gets its component, anything else every replica gets as it is.
        """
        self._check_current("merge_call")
        require_call(merge_fn, args, kwargs, "merge_call")
        if not self._is_running():
            with entered(Entry(self._strategy, is_merging=True)):
                return merge_fn(self._strategy, *args, **(kwargs or {}))
        merge_fn = _unwrapping(merge_fn)
        if self._peers is not None:
            return self._peers.merge_call(merge_fn, tuple(args), kwargs or {})
        many, trace = self.num_replicas_in_sync > 1, current_trace()
        assert trace is not None

        def leave(leaf: Any) -> Any:
            return TracedPerReplica(leaf) if many and isinstance(leaf, jax.Array) else leaf

        def enter(leaf: Any) -> Any:
            if isinstance(leaf, TracedPerReplica):
                return leaf.local
            if isinstance(leaf, jax.core.Tracer):
                inside = trace.to_replicas(leaf, self.num_replicas_in_sync)
                self.mirrored[id(inside)] = (inside, leaf)
                return inside
            return leaf

        given, named = map_leaves(leave, (tuple(args), dict(kwargs or {})), None)
        with fresh_trace(), entered(Entry(self._strategy)):
            merged = for_all(
                lambda: call_with_copies(
                    merge_fn, (self._strategy, *given), named, name_of(merge_fn)
                )
            )
        return jax.tree.map(enter, merged, is_leaf=lambda leaf: isinstance(leaf, TracedPerReplica))

    def examples_of_all(self, examples: int) -> int:
        """Return how many examples all replicas have together, where this one has `examples`."""
        if self._peers is None:
            return examples * self.num_replicas_in_sync
        return self._peers.examples_of_all(examples)

    def made_once(self, make: Callable[[], Made]) -> Made:
        """Return the result of `make`, the same object for all replicas."""
        return make() if self._peers is None else self._peers.made_once(make)

    def _is_running(self) -> bool:
        return not self._strategy.is_default

    def _check_current(self, what: str) -> None:
        entry = current_entry()
        if self._is_running() and (entry is None or entry.replica_context is not self):
            raise ContextError(
                f"{what} of a replica context outside the replica function it belongs to",
                source=here(),
                hint="call gd.get_replica_context() inside the replica function that uses it",
            )


def _unwrapping(merge_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the arrays of `Mirrored` results in their place."""

    @wraps(merge_fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return map_leaves(
            lambda leaf: leaf.array if isinstance(leaf, Mirrored) else leaf,
            merge_fn(*args, **kwargs),
            lambda leaf: isinstance(leaf, DistributedValues),
        )

    return call


def is_slices(leaf: Any) -> bool:
    """Return whether a part of a pytree is `IndexedSlices`, which are one leaf."""
    return isinstance(leaf, IndexedSlices)


def refuse_none(value: Any, what: str) -> None:
    """Raise `ArgumentError` for None in place of a pytree; None in one has no leaves."""
    if value is None:
        raise ArgumentError(
            f"{what} of None, which has no value",
            source=here(),
            hint="give it arrays; a pytree may have None in places that have no array",
        )


def refuse_slices(leaf: Any, what: str) -> None:
    """Raise `UnsupportedError` for `IndexedSlices`, which are rows and no array."""
    if isinstance(leaf, IndexedSlices):
        raise UnsupportedError(
            f"{what} of IndexedSlices",
            source=here(),
            hint="gather their values and their indices, each on its own",
        )


def reduction_of(leaf: Any, op: ReduceOp, what: str) -> tuple[jax.Array, str]:
    """Return a leaf as an array that can be reduced, and how.

    The mean of an integer that all replicas hold is the largest, which is an integer.
    """
    array, trace = checked_array(leaf, f"{what} of"), current_trace()
    if op is ReduceOp.MEAN and trace is not None and is_array(leaf):
        array, is_one = trace.marked_mean(array)
        if is_one:
            return array, "max"
    return summable(array, op.reducer, what), op.reducer
