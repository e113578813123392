"""`strategy.extended`: methods of a strategy for libraries.

`destinations` are the devices of a result. If a variable or a distributed value is given as
`destinations`, the result is a `Mirrored` on the devices of all replicas. If a device or a device's
name is given, the result is on this device. Inside a function every device has the value, so
nothing is moved. With one replica the result is the plain value.

`update` calls its function once, not once per copy, because the copies of a mirrored variable must
stay equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any  # Any: users' pytrees and functions

import jax

from graphdist.context import Entry, current_entry, entered, require_cross_replica
from graphdist.context import in_replica_context_of_a_run as in_replica_context
from graphdist.data.dataset import Dataset
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError
from graphdist.options import CommunicationOptions, ReduceOp, check_communication_options
from graphdist.program.step_functions import require_function
from graphdist.runtime.devices import Devices, device_name, find_device
from graphdist.runtime.resharding import resharded
from graphdist.state.variable import Variable
from graphdist.strategies.legacy import MultiStepContext, run_steps_on_iterator
from graphdist.strategies.logical_devices import logical_device
from graphdist.strategy_base import StrategyBase
from graphdist.tracebacks import frames_hidden
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import (
    DistributedValues,
    Mirrored,
    PerReplica,
    TracedPerReplica,
    is_array,
    is_distributed,
    type_name,
)
from graphdist.values.pytrees import map_leaves


class StrategyExtended:
    """The methods of a strategy for libraries.

    >>> import graphdist as gd
    >>> gd.MirroredStrategy(["cpu:0", "cpu:1"]).extended.worker_devices
    ('cpu:0', 'cpu:1')
    """

    should_checkpoint: bool
    """Whether this process writes checkpoints. Worker 0 writes them for all workers."""
    should_save_summary: bool
    """Whether this process writes summaries. Worker 0 writes them for all workers."""
    experimental_should_init = True
    """Whether this process initializes variables."""
    experimental_between_graph = False
    """Whether each process of a cluster runs the program."""
    experimental_require_static_shapes = False
    """Whether all replicas must have values of one shape."""

    strategy: StrategyBase

    def __init__(self, devices: Devices) -> None:
        """Store the devices. The strategy sets the attribute `strategy`."""
        self.devices = devices
        is_first = devices.workers is None or devices.workers.index == 0
        self.should_checkpoint = self.should_save_summary = is_first

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.strategy}>"

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Return the names of this process's devices that replicas run on, in replica order.

        Of a replica of several cores it is the device of its first core in this process.
        """
        names = dict(zip(self.devices.devices, self._names("worker_devices"), strict=True))
        firsts = self.devices.local_devices[:: self.devices.num_cores]
        return tuple(names[device] for device in firsts)

    def experimental_logical_device(self, logical_device_id: int) -> AbstractContextManager[None]:
        """Return a context manager for variables and values on a core of each replica.

        Every core has the full value unless it is split, so this core has it, too. Raises
        `ArgumentError` for a core that a replica does not have.
        """
        return logical_device(self.devices, logical_device_id)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Return the names of the devices that hold a copy of each variable."""
        names = self._names("parameter_devices")
        home = self.devices.parameter_device
        return names if home is None else (device_name(home),)

    def _names(self, what: str) -> tuple[str, ...]:
        if self.strategy.is_default:
            raise ContextError(
                f"{what} of the default strategy, which places no variables",
                hint="make a strategy: gd.OneDeviceStrategy('cpu:0')",
            )
        return self.devices.names

    def reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Return the sum or mean of a value over the replicas, at `destinations`.

        The mean of a `Mirrored` value is that value. Raises the errors of `Strategy.reduce`,
        `DeviceError` for a device that does not exist, `ArgumentTypeError` for another type of
        destination.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> x = strategy.run(lambda: gd.get_replica_context().replica_id_in_sync_group)
        >>> strategy.extended.reduce_to("SUM", x, "cpu:1").device
        CpuDevice(id=1)
        """
        return self.batch_reduce_to(reduce_op, [(value, destinations)], options)[0]

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Return the result of `reduce_to` for each pair of a value and its destinations.

        One program reduces all values. The program may pack the values.
        """
        require_cross_replica("reduce_to")
        op = ReduceOp.of(reduce_op)
        check_communication_options(options)
        pairs = [_pair(i, pair) for i, pair in enumerate(value_destination_pairs)]
        devices = [_destination(destinations) for _, destinations in pairs]
        # The mean of a mirrored value is the same object, not a copy.
        kept = [op is ReduceOp.MEAN and isinstance(value, Mirrored) for value, _ in pairs]
        rest = [value for (value, _), is_kept in zip(pairs, kept, strict=True) if not is_kept]
        reduced = iter(self.strategy.reduce(op, rest, axis=None) if rest else ())
        return [
            value if is_kept else self._at(next(reduced), device)
            for (value, _), is_kept, device in zip(pairs, kept, devices, strict=True)
        ]

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Return a value at `destinations`; a Python number is returned unchanged.

        Raises `ArgumentTypeError` for another type of destination, `ContextError` in replica
        context.
        """
        require_cross_replica("broadcast_to")
        device = _destination(destinations)
        return tensor if isinstance(tensor, int | float) else self._at(tensor, device)

    def _at(self, value: Any, device: jax.Device | None) -> Any:
        """Place a value on `device`, or on the devices of all replicas if `device` is None."""
        count = self.strategy.num_replicas_in_sync
        if count == 1:
            return value
        is_traced = current_trace() is not None
        if device is not None:
            return value if is_traced else jax.device_put(value, device)
        return map_leaves(
            lambda leaf: Mirrored(leaf if is_traced else self._mirrored(leaf), count), value, None
        )

    def _mirrored(self, leaf: Any) -> jax.Array:
        """Return an array that is mirrored on the devices of all replicas."""
        home = self.devices.mirrored
        if self.devices.workers is None:
            return jax.device_put(leaf, home)
        return resharded(jax.numpy.asarray(leaf), home, self.devices, "broadcast_to", here())

    def update(
        self,
        var: Variable,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call `fn(var, *args, **kwargs)` to change a variable, and return its result.

        Assigned values are not aggregated. For a `Mirrored` or `PerReplica` argument `fn` gets the
        component that belongs to the updated copy. If the variable has several copies, arrays are
        returned as `Mirrored`. With `group=False` a tuple has the result of each copy. Raises
        `DistributionError` if the copies of a mirrored variable would become unequal,
        `ArgumentError` for a variable of another strategy.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     v = gd.Variable(1.0)
        >>> strategy.extended.update(v, lambda v, by: v.assign_add(by) * 10, args=(2.0,))
        <Mirrored f32[] on cpu:0, cpu:1: 30.0>
        """
        with frames_hidden:
            if not isinstance(var, Variable) or not self._may_update(var):
                raise ArgumentError(
                    f"update of {_named(var)}, which {self.strategy} did not make",
                    hint="make the variable inside the scope of this strategy",
                )
            update = self._update if var.is_mirrored else self._update_on_read
            return self._updated(update, fn, (group, var, tuple(args)), kwargs)

    def _may_update(self, var: Variable) -> bool:
        is_plain = var.strategy.is_default and self.strategy.num_replicas_in_sync == 1
        return is_plain or self.variable_created_in_scope(var)

    def update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call `fn(*args, **kwargs)` like `update`, without a variable.

        `colocate_with` is the result of `non_slot_devices`: all devices.
        """
        with frames_hidden:
            return self._updated(self._update, fn, (group, None, tuple(args)), kwargs)

    def _updated(
        self, update: Callable[..., Any], fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Return the result of `update(fn, args, kwargs)`.

        `args` has `group`, the variable or None, and the arguments of `fn`.
        """
        require_function(fn, "update")
        kwargs = dict(kwargs or {})
        if current_trace() is not None or self.strategy.is_default:
            return update(fn, args, kwargs)
        with entered(Entry(self.strategy)):
            kind = update.__name__.strip("_")
            return self.strategy.implicit.of_function(kind, fn, update)(args, kwargs)

    def _update_on_read(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Update the copy of each replica, in replica context."""
        group, var, operands = args
        if in_replica_context():
            return fn(var, *operands, **kwargs)
        result = self.strategy.run(fn, (var, *operands), kwargs)
        return result if group else self.strategy.experimental_local_results(result)

    def _update(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Update the mirrored value once, in cross-replica context, where nothing is aggregated."""
        in_replica = in_replica_context()
        group, var, operands = args
        operands, kwargs = jax.tree.map(_component, (operands, kwargs), is_leaf=is_distributed)
        with entered(Entry(self.strategy)):
            result = fn(*(() if var is None else (var,)), *operands, **kwargs)
        if in_replica:
            return result
        copies = 1 if self.devices.parameter_device is not None else len(self.devices)
        if not group:
            return (result,) * copies
        if copies == 1:
            return result
        return map_leaves(
            lambda leaf: Mirrored(leaf, copies) if is_array(leaf) else leaf, result, None
        )

    def non_slot_devices(self, var_list: Sequence[Variable] = ()) -> tuple[str, ...]:
        """Return the names of the devices that store state which belongs to no variable."""
        return self.parameter_devices

    def value_container(self, value: Any) -> Any:
        """Return `value` itself, since a variable has no separate objects for its copies."""
        return value

    def variable_created_in_scope(self, v: Any) -> bool:
        """Return whether a value is a variable of this strategy."""
        return isinstance(v, Variable) and v.strategy is self.strategy

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: Variable) -> Iterator[None]:
        """Create variables on the devices of another variable.

        All variables of a strategy are on the same devices, so this context changes nothing.

        Raises `ContextError` outside the scope, `ArgumentError` for a value that is no variable of
        this strategy.
        """
        entry = current_entry()
        is_inside = entry is not None and entry.strategy is self.strategy
        if not is_inside and not self.strategy.is_default:
            raise ContextError(
                f"colocate_vars_with is called outside the scope of {self.strategy}",
                hint="open it inside: with strategy.scope()",
            )
        if not self.variable_created_in_scope(colocate_with_variable):
            raise ArgumentError(
                f"colocate_vars_with of {_named(colocate_with_variable)}, which {self.strategy} "
                f"did not make",
                hint="make the variable inside the scope of this strategy",
            )
        yield

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call `Strategy.run`."""
        return self.strategy.run(fn, args, kwargs)

    def read_var(self, v: Variable) -> jax.Array:
        """Return the value of a variable. In cross-replica context the copies are combined."""
        return v.read_value()

    def experimental_make_numpy_dataset(self, numpy_input: Any, session: Any = None) -> Any:
        """Return the `gd.data.Dataset` of the slices of arrays along dimension 0.

        `numpy_input` is an array or a pytree of arrays, whose dtypes are kept. `session` is
        accepted for compatibility with `tf.distribute`.
        """
        return Dataset.from_tensor_slices(numpy_input)

    def experimental_run_steps_on_iterator(
        self,
        fn: Callable[..., Any],
        iterator: Any,
        iterations: int = 1,
        initial_loop_values: Mapping[str, Any] | None = None,
    ) -> MultiStepContext:
        """Call `fn(context, inputs)` for `iterations` elements of an iterator; return a context.

        `fn` is compiled like a `gd.function`, and one program runs several steps. The returned
        context's `last_step_outputs` has the last values that `fn` passed to
        `context.set_last_step_output`.
        Raises `ContextError` inside a function.
        """
        return run_steps_on_iterator(self.strategy, fn, iterator, iterations, initial_loop_values)


def _named(value: Any) -> str:
    return f"variable {value.name!r}" if isinstance(value, Variable) else f"a {type_name(value)}"


def _pair(index: int, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ArgumentTypeError(
            f"batch_reduce_to takes pairs of a value and its destinations, item {index} is no pair",
            hint="write [(value, destinations), ...]",
        )
    return pair[0], pair[1]


def _destination(destinations: Any) -> jax.Device | None:
    """Return the device of a destination; None means the devices of all replicas."""
    if isinstance(destinations, str | jax.Device):
        return find_device(destinations, here())
    if isinstance(destinations, jax.Array) and not isinstance(destinations, jax.core.Tracer):
        devices = destinations.devices()
        return next(iter(devices)) if len(devices) == 1 else None
    if isinstance(destinations, DistributedValues | Variable | jax.Array):
        return None
    raise ArgumentTypeError(
        f"destinations is of type {type_name(destinations)}: it is a device, a variable or a "
        f"distributed value",
        hint="for all devices of the strategy give the value itself as its destination",
    )


def _component(leaf: Any) -> Any:
    """Return the argument of an update for `leaf`: one component of a distributed value."""
    if isinstance(leaf, Mirrored):
        return leaf.array
    if isinstance(leaf, TracedPerReplica) and leaf.shapes is None:
        return leaf.local
    if isinstance(leaf, PerReplica):
        raise ArgumentError(
            "update is given a PerReplica whose components differ in shape or are no arrays, but "
            "all copies of a variable are updated with one value",
            hint="make it one value first: strategy.reduce('MEAN', value, axis=None)",
        )
    return leaf
