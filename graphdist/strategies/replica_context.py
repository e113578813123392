"""`ReplicaContext`: a replica's id, collectives and `merge_call`, inside a replica function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
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
from graphdist.strategies.logical_devices import logical_device
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.axis_name import run_in_cross_replica_context
from graphdist.tracing.primitives import all_gather_p, all_reduce_p, replica_id_p
from graphdist.tracing.slots import padded
from graphdist.tracing.trace_in_progress import current_trace, fresh_trace
from graphdist.values.distributed import (
    DistributedValues,
    Mirrored,
    NumpyArray,
    TracedPerReplica,
    checked_array,
    is_array,
    is_distributed,
)
from graphdist.values.pytrees import map_leaves
from graphdist.values.reducible import gather_axis, gather_dimension, summable, without_padding

if TYPE_CHECKING:
    from graphdist.strategies.peers import Peers


Made = TypeVar("Made")
Tree = TypeVar("Tree")
Result = TypeVar("Result")


class ReplicaContext:
    """A replica's id, and its collectives with other replicas; see `gd.get_replica_context()`."""

    def __init__(
        self,
        strategy: StrategyBase,
        replica_id_in_sync_group: int | None = None,
        peers: Peers | None = None,
    ) -> None:
        """Make the context of a call of `run`: for one replica, or for all replicas together.

        The context is for the replica `replica_id_in_sync_group`, or for all replicas if no id is
        given. If there are several replica variants, `peers` has the values of other variants.
        """
        self.strategy, self.num_replicas_in_sync = strategy, strategy.num_replicas_in_sync
        self._replica_id = 0 if self.num_replicas_in_sync == 1 else replica_id_in_sync_group
        self._peers = peers
        self.mirrored: dict[int, tuple[Any, Any]] = {}
        """Mirrored arrays in the replica function, by `id`, each with its cross-replica value."""

    def __repr__(self) -> str:
        replica = "all replicas" if self._replica_id is None else f"replica {self._replica_id}"
        return f"<ReplicaContext of {replica} of {self.strategy}>"

    @property
    def replica_id_in_sync_group(self) -> jax.Array | np.int32 | int:
        """Return the replica id, an int32 scalar; the Python int 0 outside every strategy.

        The id is a traced value, in one program for all replicas. If the function needs the id as a
        Python value, in an `if` or as an index of a list, each replica is traced separately.
        """
        if not self._is_running():
            return 0
        self._check_current("replica_id_in_sync_group")
        trace = current_trace()
        if trace is not None and self.num_replicas_in_sync == 1:
            trace.means.uses_replica_id = True
        if self._replica_id is not None:
            return np.int32(self._replica_id)
        if trace is not None:
            trace.replica_id_was_used = True
        return replica_id_p.bind(group_size=self.num_replicas_in_sync)

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the names of this replica's devices: one, or those of its cores."""
        devices, replica = self.strategy.devices, self.known_replica_id()
        return devices.names[replica * devices.num_cores : (replica + 1) * devices.num_cores]

    def experimental_logical_device(self, logical_device_id: int) -> AbstractContextManager[None]:
        """Return a context manager for values on a core of the replica.

        Every core has the full value unless it is split, so this core has it, too. Raises
        `ArgumentError` for a core that a replica does not have.
        """
        return logical_device(self.strategy.devices, logical_device_id)

    def known_replica_id(self) -> int:
        """Return the replica id as a Python value, for which each replica is traced separately."""
        if self._replica_id is None:
            trace = current_trace()
            assert trace is not None
            trace.replica_id_was_used = True
            trace.retry_by_replica_id()
        return self._replica_id or 0

    @overload
    def all_reduce(
        self, reduce_op: ReduceOp | str, value: DistributedValues | NumpyArray, options: Any = None
    ) -> jax.Array: ...

    @overload
    def all_reduce(self, reduce_op: ReduceOp | str, value: Tree, options: Any = None) -> Tree: ...

    def all_reduce(self, reduce_op: ReduceOp | str, value: Any, options: Any = None) -> Any:
        """Return the sum or mean over all replicas of every leaf of `value`, on every replica.

        `value` is a pytree of arrays of any shape, the same on all replicas; None in it stays None.
        Integers have a float32 mean, unless they are provably the same on all replicas. The
        reduction is differentiable: its transpose is the same reduction of the cotangents.
        `options` are `CommunicationOptions`. Raises `ArgumentError` for another op or None alone,
        `ArgumentTypeError` for a leaf that cannot be reduced or for options of another type,
        `ContextError` after the end of `run`.

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
        options = self.strategy.communication_options.merge(options)
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
        ops = self.strategy.cross_device_ops
        if ops is not None and ops.replaces_all_reduce and reducer == op.reducer:
            merged = self.merge_call(
                lambda _, value: ops.batch_reduce(op, [(value, value)])[0], args=(array,)
            )
            return jnp.copy(merged)  # `run` would return the uncopied result as one mirrored value
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
        for a scalar or an axis out of range, `ArgumentTypeError` for options of another type.
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
        """Gather an array along a dimension. If lengths differ, the array is padded before."""
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

        Arrays among the arguments become `PerReplica` values for `merge_fn`. Every replica gets the
        replica's own component of a `PerReplica` in the result, and other values unchanged.
        """
        self._check_current("merge_call")
        require_call(merge_fn, args, kwargs, "merge_call")
        if not self._is_running():
            with entered(Entry(self.strategy, is_merging=True)):
                return merge_fn(self.strategy, *args, **(kwargs or {}))
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

        merge_args, merge_kwargs = map_leaves(leave, (tuple(args), dict(kwargs or {})), None)
        merge_args = (self.strategy, *merge_args)
        with fresh_trace(), entered(Entry(self.strategy)):
            merged = run_in_cross_replica_context(
                lambda: call_with_copies(merge_fn, merge_args, merge_kwargs, name_of(merge_fn))
            )
        return jax.tree.map(enter, merged, is_leaf=lambda leaf: isinstance(leaf, TracedPerReplica))

    def examples_of_all(self, examples: int) -> int:
        """Return the total number of examples, of which this replica has `examples`."""
        if self._peers is None:
            return examples * self.num_replicas_in_sync
        return self._peers.examples_of_all(examples)

    def made_once(self, make: Callable[[], Made]) -> Made:
        """Return the result of `make`, the same object for all replicas."""
        return make() if self._peers is None else self._peers.made_once(make)

    def _is_running(self) -> bool:
        return not self.strategy.is_default

    def _check_current(self, what: str) -> None:
        entry = current_entry()
        if self._is_running() and (entry is None or entry.replica_context is not self):
            raise ContextError(
                f"{what} of a replica context outside the replica function it belongs to",
                hint="call gd.get_replica_context() inside the replica function that uses it",
            )


def _unwrapping(merge_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `merge_fn`, and returns arrays instead of `Mirrored` values."""

    @wraps(merge_fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return map_leaves(
            lambda leaf: leaf.array if isinstance(leaf, Mirrored) else leaf,
            merge_fn(*args, **kwargs),
            is_distributed,
        )

    return call


def is_slices(leaf: Any) -> bool:
    """Return whether a node of a pytree is an `IndexedSlices`, which counts as one leaf."""
    return isinstance(leaf, IndexedSlices)


def refuse_none(value: Any, what: str) -> None:
    """Raise `ArgumentError` if the argument is None; a pytree may have None among its leaves."""
    if value is None:
        raise ArgumentError(
            f"{what} of None, which has no value",
            hint="give it arrays; a pytree may contain None beside them",
        )


def refuse_slices(leaf: Any, what: str) -> None:
    """Raise `UnsupportedError` for an `IndexedSlices`, which is not an array."""
    if isinstance(leaf, IndexedSlices):
        raise UnsupportedError(
            f"{what} of IndexedSlices", hint="gather their values and their indices"
        )


def reduction_of(leaf: Any, op: ReduceOp, what: str) -> tuple[jax.Array, str]:
    """Return a leaf as an array that can be reduced, and the reducer.

    If an integer is equal on all replicas, the reducer of its mean is the maximum, which stays an
    integer.
    """
    array, trace = checked_array(leaf, f"{what} of"), current_trace()
    if op is ReduceOp.MEAN and trace is not None and is_array(leaf):
        array, is_equal = trace.marked_mean(array)
        if is_equal:
            return array, "max"
    return summable(array, op.reducer, what), op.reducer
