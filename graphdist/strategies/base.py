"""The API that every strategy has.

Inside a trace the methods bind logical primitives. Outside a trace, `run`, `reduce` and `gather`
compile and cache an implicit function that calls the same method, so a program computes the same in
both cases. Each strategy adds its devices, and the place where a variable's buffer is stored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self, TypeVar, overload  # Any: users' pytrees and functions

import jax

from graphdist.context import Entry, Scope, entered, require_cross_replica, require_same_strategy
from graphdist.errors import ArgumentTypeError, ContextError
from graphdist.options import ReduceOp, ValueContext
from graphdist.program.function import Function
from graphdist.program.step_functions import FunctionOptions, require_call, require_function
from graphdist.strategies import replicas
from graphdist.strategies.extended import StrategyExtended
from graphdist.strategies.implicit_functions import ImplicitFunctions
from graphdist.strategies.keras_switch import switch_on_keras, warn_of_late_keras
from graphdist.strategies.legacy import LegacyMethods
from graphdist.tracebacks import frames_hidden
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.values.components import per_replica_of
from graphdist.values.copying import is_part_of_a_copy, refuse_to_pickle
from graphdist.values.distributed import (
    DistributedValues,
    NumpyArray,
    require_one_structure,
    type_name,
)
from graphdist.values.pytrees import unflatten
from graphdist.values.reducible import Axis, gather_axis
from graphdist.values.replica_warnings import warn_of_unequal_values

Result = TypeVar("Result")
Tree = TypeVar("Tree")


class CommonStrategy(LegacyMethods):
    """The methods of all strategies, also of those in `graphdist.compat.v1`."""

    def __init__(self, extended: StrategyExtended | None = None) -> None:
        """Store the extended strategy, which has the devices.

        Raises `ArgumentTypeError` for a value of another type.
        """
        if not isinstance(extended, StrategyExtended):
            raise ArgumentTypeError(
                f"{type(self).__name__} is made with a StrategyExtended, "
                f"not with {'nothing' if extended is None else type_name(extended)}",
                hint="make one of its subclasses, such as gd.MirroredStrategy()",
            )
        super().__init__(extended.devices)
        self._extended = extended
        extended.strategy = self
        self.implicit = ImplicitFunctions()

    @property
    def extended(self) -> StrategyExtended:
        """Return the strategy's methods for libraries."""
        return self._extended

    def __copy__(self) -> NoReturn:
        raise ContextError(
            f"{self} cannot be copied",
            hint="share it, or make another strategy on the same devices: copy.deepcopy(strategy)",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return another strategy of the same kind on the same devices, without variables.

        A copy of an object that holds the strategy, such as a model, has the same strategy.
        """
        if is_part_of_a_copy(memo):
            return self
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        CommonStrategy.__init__(twin, copy.copy(self.extended))
        return twin

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle(
            f"{self}, which has devices of this process,",
            "make it in the process that uses it, and there its variables, datasets and "
            "functions; values go there in a checkpoint or as np.asarray(value)",
        )

    def __enter__(self) -> NoReturn:
        raise ContextError(
            f"{self} is no context manager",
            hint="write with strategy.scope(): the scope makes the strategy current",
        )

    def __exit__(self, *error: object) -> None:
        """Do nothing: `__enter__` raises."""

    def scope(self) -> Scope[Self]:
        """Return a context manager. Variables made inside it belong to this strategy.

        The context manager enters cross-replica context. It may be inside another scope of the same
        strategy. Raises `ContextError` inside another strategy's scope and inside a replica
        function.

        >>> import graphdist as gd
        >>> with gd.MirroredStrategy(["cpu:0", "cpu:1"]).scope() as strategy:
        ...     gd.get_strategy() is strategy
        True
        """
        switch_on_keras()
        return Scope(self, warn_of_late_keras)

    def run(
        self,
        fn: Callable[..., Result],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Result:
        """Call `fn(*args, **kwargs)` once on every replica and return the replicas' results.

        `fn` gets the replica's own component of a `PerReplica` leaf, and any other leaf unchanged.
        Returned arrays become `PerReplica`, or plain arrays if there is one replica. A mirrored
        argument that `fn` returns unchanged, and values that are not arrays, are returned
        unchanged. `options` is accepted for compatibility with `tf.distribute`. Raises
        `ContextError` in replica context or under another strategy, `ArgumentError` if `args` is
        not a sequence or `kwargs` not a mapping.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> double = lambda x: x * 2
        >>> strategy.run(double, args=(jax.numpy.float32(3),)).values
        (Array(6., dtype=float32), Array(6., dtype=float32))
        """
        with frames_hidden:
            require_cross_replica("run")
            require_same_strategy(self, "run")
            require_call(fn, args, kwargs, "run")
            return self._run(fn, tuple(args), dict(kwargs or {}))

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if current_trace() is not None:
            return replicas.run(self, fn, args, kwargs)
        with entered(Entry(self)):
            return self.implicit.of_function("run", fn, self.run)(args, kwargs)

    @overload
    def reduce(
        self, reduce_op: ReduceOp | str, value: DistributedValues | NumpyArray, axis: Axis
    ) -> jax.Array: ...

    @overload
    def reduce(self, reduce_op: ReduceOp | str, value: Tree, axis: Axis) -> Tree: ...

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: Axis) -> Any:
        """Return the sum or mean over the replicas of every `PerReplica` leaf of `value`.

        With `axis` None the replicas' values are combined element by element. With an int or a
        tuple each replica's value is first reduced along these dimensions, and a mean is over all
        elements. Integers have a float32 mean, unless they are provably the same on all replicas.
        The mean of a value that is not distributed is the value. Raises `ContextError` in replica
        context, `ArgumentError` for another op, an axis out of range, or the sum of a value that is
        not distributed.

        >>> import numpy as np, graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> x = strategy.experimental_distribute_values_from_function(
        ...     lambda context: np.float32(context.replica_id_in_sync_group + 1))
        >>> strategy.reduce("MEAN", x, axis=None)
        Array(1.5, dtype=float32)
        """
        with frames_hidden:
            require_cross_replica("reduce")
            require_same_strategy(self, "reduce")
            op, axes = ReduceOp.of(reduce_op), replicas.reduce_axes(axis)
            if current_trace() is not None:
                return replicas.reduce(self, op, value, axes)
            if op is ReduceOp.MEAN and axes is None:
                warn_of_unequal_values(value)
            key = ("reduce", op, axes)
            reduce = self.implicit.of(key, lambda value: self.reduce(op, value, axes))
            with entered(Entry(self)):
                return reduce(value)

    def compiled(self, body: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a function compiled for the strategy."""
        return Function(body, options=FunctionOptions(name=name))

    @overload
    def experimental_local_results(self, value: DistributedValues) -> tuple[Any, ...]: ...

    @overload
    def experimental_local_results(self, value: Tree) -> tuple[Tree, ...]: ...

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return this process's components of a distributed value; of another value, the value.

        For a container, such as a dict of distributed values, return a container per replica.
        """
        with frames_hidden:
            return replicas.local_results(self, value)


class Strategy(CommonStrategy):
    """Runs a program on devices, one replica on each.

    This is a base class. Its subclasses are `MirroredStrategy`, `OneDeviceStrategy`,
    `CentralStorageStrategy`, `MultiWorkerMirroredStrategy` and others.
    """

    @overload
    def gather(self, value: DistributedValues | NumpyArray, axis: int) -> jax.Array: ...

    @overload
    def gather(self, value: Tree, axis: int) -> Tree: ...

    def gather(self, value: Any, axis: int) -> Any:
        """Return a `PerReplica` value's components concatenated along `axis`, in replica order.

        Every leaf of a pytree is gathered; None stays None. A value that is not distributed is
        returned unchanged. Raises `ContextError` in replica context, `ArgumentError` for components
        of rank 0 or an axis out of range, `ArgumentTypeError` for a leaf that is no array.

        >>> import numpy as np, graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> x = strategy.experimental_distribute_values_from_function(
        ...     lambda context: np.arange(2) + context.replica_id_in_sync_group)
        >>> strategy.gather(x, axis=0)
        Array([0, 1, 1, 2], dtype=int32)
        """
        with frames_hidden:
            require_cross_replica("gather")
            require_same_strategy(self, "gather")
            axis = gather_axis(axis, "gather")
            if current_trace() is not None:
                return replicas.gather(self, value, axis)
            key = ("gather", axis)
            gather = self.implicit.of(key, lambda value: self.gather(value, axis))
            with entered(Entry(self)):
                return gather(value)

    @overload
    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], NumpyArray]
    ) -> jax.Array: ...

    @overload
    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Tree]
    ) -> Tree: ...

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Return a `PerReplica` of the results of `value_fn(ValueContext)` for each replica.

        Call it in cross-replica context, outside functions. The results of all replicas have one
        structure. With one replica the result is returned unchanged. Raises `ArgumentError` if
        structures differ.
        """
        require_cross_replica("experimental_distribute_values_from_function")
        require_function(value_fn, "experimental_distribute_values_from_function")
        if current_trace() is not None:
            raise ContextError(
                "experimental_distribute_values_from_function is called inside a function, where "
                "the replicas' values do not exist yet",
                hint="call it outside, and pass its result to the function",
            )
        count = self.num_replicas_in_sync
        replicas_here = self.devices.local_replicas
        results = [value_fn(ValueContext(replica, count)) for replica in replicas_here]
        structures: list[Any] = [jax.tree.structure(result) for result in results]
        require_one_structure("value_fn returned", structures, replicas_here, at="for")
        if count == 1:
            return results[0]
        of_all = zip(*map(jax.tree.leaves, results), strict=True)
        return unflatten(structures[0], [per_replica_of(leaves, self) for leaves in of_all])
