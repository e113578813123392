"""The API every strategy has.

Inside a trace the methods bind logical primitives. Outside, `run`, `reduce` and `gather` compile an
implicit function of themselves and cache it, so that a program means the same in both places. What
a strategy adds is its devices and where a variable's buffer lies on them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any  # Any: users' pytrees and functions

import jax
import numpy as np

from graphdist.context import Entry, entered, require_cross_replica, require_same_strategy
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError
from graphdist.ir.types import MIRRORED, Distribution
from graphdist.options import ReduceOp, ValueContext
from graphdist.replica_context import ReplicaContext, gather_axis
from graphdist.runtime.buffers import BufferStore
from graphdist.runtime.devices import Devices, device_name
from graphdist.strategies import replicas
from graphdist.tracing.sources import here
from graphdist.tracing.state import current_trace
from graphdist.values import PerReplicaArray, kind_of, per_replica_of, structure_text

_MAX_IMPLICIT = 256
"""How many functions called outside `gd.function` are kept compiled, for each strategy."""


class Strategy:
    """Runs a program on devices, one replica on each.

    Not made itself: see `MirroredStrategy` and `OneDeviceStrategy`.
    """

    is_default = False

    def __init__(self, devices: Devices) -> None:
        """Take the devices the replicas run on."""
        self.devices = devices
        self.buffers = BufferStore()
        self._implicit: OrderedDict[Any, Callable[..., Any]] = OrderedDict()

    @property
    def num_replicas_in_sync(self) -> int:
        """Return the number of replicas."""
        return len(self.devices)

    def __repr__(self) -> str:
        names = ", ".join(map(device_name, self.devices.devices))
        return f"<{type(self).__name__} on {names}>"

    def __copy__(self) -> Strategy:
        raise ContextError(
            f"{self} cannot be copied",
            source=here(),
            hint="share it, or make another strategy on the same devices",
        )

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Enter cross-replica context: variables made inside belong to this strategy.

        Entering the same strategy again is fine. Raises `ContextError` inside another strategy's
        scope and inside a replica function.
        """
        require_cross_replica("scope")
        require_same_strategy(self, "scope")
        with entered(Entry(self)):
            yield self

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call `fn(*args, **kwargs)` once on every replica and return what the replicas returned.

        `PerReplica` leaves of the arguments arrive as the replica's own component, anything else as
        it is. Arrays come back as `PerReplica` (as plain arrays when there is one replica), a
        mirrored argument handed back unchanged as itself, anything else as it is. `options` is
        accepted for `tf.distribute`'s sake. Raises `ContextError` in replica context or under
        another strategy, `ArgumentError` when `args` is not a sequence or `kwargs` not a mapping.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> double = lambda x: x * 2
        >>> strategy.run(double, args=(jax.numpy.float32(3),)).values
        (Array(6., dtype=float32), Array(6., dtype=float32))
        """
        self._check_run(fn, args, kwargs)
        if current_trace() is not None:
            return replicas.run(self, fn, tuple(args), dict(kwargs or {}))
        with entered(Entry(self)):
            return self._implicit_run(fn)(tuple(args), dict(kwargs or {}))

    def _check_run(self, fn: Any, args: Any, kwargs: Any) -> None:
        require_cross_replica("run")
        require_same_strategy(self, "run")
        if not callable(fn):
            raise ArgumentTypeError(f"fn is of type {kind_of(fn)}, not a function", source=here())
        if not isinstance(args, list | tuple):
            raise ArgumentError(
                f"args is of type {kind_of(args)}, not a tuple or list",
                source=here(),
                hint="write args=(x,) for one argument",
            )
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise ArgumentError(
                f"kwargs is of type {kind_of(kwargs)}, not a dict",
                source=here(),
                hint="write kwargs={'name': value}",
            )

    def _implicit_run(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the compiled form of `run(fn, ...)`, the same for the same function or method."""

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self.run(fn, args, kwargs)

        try:
            hash(fn)
            key: Any = fn
        except TypeError:
            key = id(fn)  # `call` keeps the function alive, so the number stays its own
        return self._implicit_function(("run", key), call, getattr(fn, "__name__", "function"))

    def reduce(
        self, reduce_op: ReduceOp | str, value: Any, axis: int | tuple[int, ...] | None
    ) -> Any:
        """Return the sum or mean over the replicas of every `PerReplica` leaf of `value`.

        With `axis` None replicas are combined element by element. With an int or a tuple each
        replica's value is first reduced along those dimensions; a mean is that of all elements.
        Integers have a float32 mean. A value that is not distributed is its own mean. Raises
        `ContextError` in replica context, `ArgumentError` for another op, an axis out of range, or
        the sum of a value that is not distributed.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> x = strategy.experimental_distribute_values_from_function(
        ...     lambda context: np.float32(context.replica_id_in_sync_group + 1))
        >>> strategy.reduce("MEAN", x, axis=None)
        Array(1.5, dtype=float32)
        """
        require_cross_replica("reduce")
        require_same_strategy(self, "reduce")
        op, axes = ReduceOp.of(reduce_op), replicas.reduce_axes(axis)
        if current_trace() is not None:
            return replicas.reduce(self, op, value, axes)
        key = ("reduce", op, axes)
        reduce = self._implicit_function(key, lambda value: self.reduce(op, value, axes))
        with entered(Entry(self)):
            return reduce(value)

    def gather(self, value: Any, axis: int) -> Any:
        """Return a `PerReplica` value's components concatenated along `axis`, in replica order.

        A value that is not distributed is returned as it is. Raises `ContextError` in replica
        context, `ArgumentError` for components of rank 0 or an axis out of range,
        `ArgumentTypeError` for a list or dict.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> x = strategy.experimental_distribute_values_from_function(
        ...     lambda context: np.arange(2) + context.replica_id_in_sync_group)
        >>> strategy.gather(x, axis=0)
        Array([0, 1, 1, 2], dtype=int32)
        """
        require_cross_replica("gather")
        require_same_strategy(self, "gather")
        axis = gather_axis(axis, "gather")
        if current_trace() is not None:
            return replicas.gather(self, value, axis)
        key = ("gather", axis)
        gather = self._implicit_function(key, lambda value: self.gather(value, axis))
        with entered(Entry(self)):
            return gather(value)

    def _implicit_function(
        self, key: tuple[Any, ...], body: Callable[..., Any], name: str = ""
    ) -> Callable[..., Any]:
        """Return the function compiled for a key; those not called for long are forgotten."""
        from graphdist.function import Function

        functions = self._implicit
        if key not in functions:
            label = f"{key[0]}_{name}" if name else str(key[0])
            functions[key] = Function(body, name=label, python_numbers_are_static=True)
            if len(functions) > _MAX_IMPLICIT:
                functions.popitem(last=False)
        functions.move_to_end(key)
        return functions[key]

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return this process's components of a value: one a replica, or the value alone.

        A container is turned inside out: a dict of distributed values gives one dict a replica.
        """
        return replicas.local_results(self, value)

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Return the `PerReplica` of what `value_fn(ValueContext)` returns for each replica.

        Called in cross-replica context, outside functions. The results of all replicas have one
        structure. With one replica the value is returned as it is. Raises `ArgumentError` when
        structures differ.
        """
        require_cross_replica("experimental_distribute_values_from_function")
        if current_trace() is not None:
            raise ContextError(
                "experimental_distribute_values_from_function is called inside a function, where "
                "the replicas' values do not exist yet",
                source=here(),
                hint="call it outside, and pass the function what it returns",
            )
        count = self.num_replicas_in_sync
        results = [value_fn(ValueContext(replica, count)) for replica in range(count)]
        structures: list[Any] = [jax.tree.structure(result) for result in results]
        for replica, structure in enumerate(structures):
            if structure != structures[0]:
                raise ArgumentError(
                    f"value_fn returned {structure_text(structures[0])} for replica 0 and "
                    f"{structure_text(structure)} for replica {replica}: the structures differ",
                    source=here(),
                )
        if count == 1:
            return results[0]
        return jax.tree.map(lambda *leaves: per_replica_of(leaves, self), *results)

    def experimental_distribute_dataset(
        self, dataset: Any, options: Any = None
    ) -> DistributedDataset:
        """Return a dataset whose elements are `PerReplica`: each global batch cut into equal parts.

        `dataset` is any iterable of pytrees of arrays with a leading batch dimension, one element a
        step; iterating again iterates it again. Elements are placed on the devices ahead of time.
        Raises `ArgumentError` for a batch that does not divide by the number of replicas.
        """
        require_cross_replica("experimental_distribute_dataset")
        return DistributedDataset(dataset, self.num_replicas_in_sync, self._place_batch)

    def _place_batch(self, batch: np.ndarray[Any, Any]) -> Any:
        count = self.num_replicas_in_sync
        array = jax.device_put(batch, self.devices.per_replica)
        if count == 1:
            return array
        shape = (batch.shape[0] // count, *batch.shape[1:])
        return PerReplicaArray(array, self, shape)

    def place_variable(self, value: jax.Array, distribution: Distribution) -> jax.Array:
        """Return a buffer of its own for a variable: the value, or one copy of it a replica."""
        if distribution is MIRRORED:
            return jax.device_put(
                jax.numpy.array(value, copy=True), self.devices.mirrored, may_alias=False
            )
        is_key = jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)  # unknown to numpy
        part = (value if is_key else np.asarray(value)).reshape(value.shape or (1,))
        join: Any = jax.numpy.concatenate if is_key else np.concatenate
        whole = join([part] * self.num_replicas_in_sync)
        return jax.device_put(whole, self.devices.per_replica, may_alias=False)

    @property
    def replica_context(self) -> ReplicaContext:
        """Return a new replica context of this strategy."""
        return ReplicaContext(self)
