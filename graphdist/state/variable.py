"""Variables: named state that stays on the strategy's devices between steps.

A variable belongs to the strategy that was current when the variable was made. Steps donate the
buffer of a variable, so no other object may refer to the buffer. Therefore an initial value is
copied, and a value read outside a function is a copy.

`VariableSynchronization` says how the copies on the replicas relate, `VariableAggregation` how the
replicas' writes are combined. Every combination means the same as in `tf.distribute`, with one
exception. If replicas write different values to a variable without an aggregation, TensorFlow lets
the copies diverge, and graphdist raises an error.

* ON_WRITE, AUTO: mirrored. Values written in replica context are combined first.
* ON_READ: each replica has its own value. A read in cross-replica context combines these values. A
  write in cross-replica context sets all copies to the written value, or with aggregation SUM to
  shares of the written value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, Self  # Any: pytrees and initial values

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.context import (
    Scope,
    current_entry,
    current_strategy,
    in_replica_context_of_a_run,
    running_replica,
)
from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.ir.graph import GraphVariable
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED, PER_REPLICA, numpy_dtype
from graphdist.options import VariableAggregation, VariableSynchronization, member_of
from graphdist.state.aggregation import (
    combined_copies,
    in_turn,
    require_aggregation,
    share_of_total,
)
from graphdist.state.checks import (
    check_options,
    checked_cores,
    checked_dimension,
    checked_name,
    checked_value,
    initial_value_of,
    require_no_jax_trace,
    why_unsharded,
)
from graphdist.state.declaration import Declaration
from graphdist.state.storage import BufferStorage, CopiesStorage, HeldBuffer, Storage
from graphdist.state.stored_values import StoredValue
from graphdist.state.variable_updates import VariableUpdates
from graphdist.tracing.trace_in_progress import Trace, current_trace
from graphdist.tracing.user_lines import here
from graphdist.values.array_operators import ArrayOperators
from graphdist.values.copying import refuse_to_pickle
from graphdist.values.distributed import DistributedValues, PerReplicaArray, no_values_yet
from graphdist.values.one_line import LARGEST, devices_of, values_of

_NOTHING = object()


class Variable(Declaration, ArrayOperators, VariableUpdates, DistributedValues):
    """State of one shape and dtype. In arithmetic and indexing a variable stands for its value.

    A function of `jax.numpy` takes arrays only: give it `variable[...]`.

    `initial_value` is an array, a number, a function without arguments that returns an array or a
    number, or a `jax.ShapeDtypeStruct`. A variable made of a shape has no value before the first
    assignment, and functions that use the variable can be compiled but not run. On absent devices
    every variable has only a shape. Inside a function the initial value must be concrete, and only
    the function's first trace may make variables. In a replica function the initial value is that
    of replica 0. `constraint` is stored for optimizers. `cores` says along which dimension the
    cores of a replica hold shards, such as `(None, "sharded")` for columns; "auto" leaves it to the
    first function that assigns such variables. Raises `ArgumentError` for options that contradict
    each other, and `ContextError` in a later trace.

    >>> import graphdist as gd
    >>> with gd.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
    ...     count = gd.Variable(1.0, name="count")
    >>> count.assign_add(2.0)
    <Variable 'count' f32[] mirrored on cpu:0, cpu:1: 3.0>
    >>> float(count * 2)
    6.0
    """

    def __init__(
        self,
        initial_value: Any = _NOTHING,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        constraint: Callable[[Any], Any] | None = None,
        *,
        cores: Sequence[str | None] | Literal["auto"] | None = None,
    ) -> None:
        """Make the variable on the current strategy's devices."""
        if self._is_made:
            return
        self.constraint = constraint
        self.strategy = current_strategy()
        self.name = checked_name(name)
        self.made_at = here()
        sync = member_of(VariableSynchronization, synchronization, "synchronization")
        self.aggregation = member_of(VariableAggregation, aggregation, "aggregation")
        is_auto = sync is VariableSynchronization.AUTO
        self.synchronization = self.strategy.auto_synchronization if is_auto else sync
        on_read = self.synchronization is VariableSynchronization.ON_READ
        self.trainable = not on_read if trainable is None else trainable
        if initial_value is _NOTHING:
            raise ArgumentError("a variable is made without an initial value")
        value = initial_value_of(initial_value, dtype, self)
        self.shape, self.dtype = value.shape, value.dtype
        check_options(self)
        self.is_mirrored = self.is_plain or self.strategy.keeps_one_value or not on_read
        many = self.strategy.num_replicas_in_sync > 1
        self.layout = PER_REPLICA if many and not self.is_mirrored else MIRRORED
        self.core, self.chooses_core = checked_cores(self, cores)
        self._complete(self.strategy.storage_elsewhere(self.name, value) or self._stored(value))

    def _stored(self, value: Any) -> Storage:
        """Return the storage of the value on the strategy's devices."""
        along = checked_dimension(self)
        stored = self.layout if along is None else self.strategy.devices.slices(along)
        stored = stored.over_cores(self.core)
        with jax.ensure_compile_time_eval():
            holder = HeldBuffer(self.strategy, self.strategy.place_variable(value, stored))
        return BufferStorage(self.name, self.shape, holder, stored)

    def _complete(self, storage: Storage) -> None:
        self.stored = StoredValue(storage)
        self._implicit: dict[str, Callable[..., Any]] = {}
        self._is_made = True

    @property
    def storage(self) -> Storage:
        """Return the current storage of the value."""
        return self.stored.storage

    _is_made = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Variable:
        """Return a new object, or a `ShardedVariable` if the strategy splits the variable.

        Replicas that are traced separately get the same object.
        """
        shards = current_strategy().variable_in_shards(args, kwargs)
        if shards is not None:
            return shards
        context = running_replica()
        make = super().__new__
        return make(cls) if context is None else context.made_once(lambda: make(cls))

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """Return a copy of each replica's value, in replica order; outside functions only.

        A variable with a single copy for all replicas has a single value.
        """
        self.require_same_strategy()
        if current_trace() is not None:
            raise no_values_yet()
        copy = self.stored.copy()
        if self.is_mirrored and len(copy.devices()) == 1:  # one replica, or a parameter device
            return (copy,)
        if self.strategy.devices.parameter_device is not None:
            copy = jax.device_put(copy, self.strategy.devices.per_replica)
        return PerReplicaArray(copy, self.strategy, self.shape).values

    @classmethod
    def stored_elsewhere(cls, strategy: Any, storage: Storage, declared: GraphVariable) -> Self:
        """Return a variable of this process for a value that another process stores."""
        variable = object.__new__(cls)
        variable.constraint, variable.strategy, variable.name = None, strategy, declared.name
        variable.shape, variable.dtype = declared.type.shape, numpy_dtype(declared.type.dtype)
        variable.synchronization = VariableSynchronization[declared.synchronization.upper()]
        variable.aggregation = VariableAggregation[declared.aggregation.upper()]
        variable.trainable, variable.made_at = declared.trainable, UNKNOWN
        variable.is_mirrored, variable.layout = True, MIRRORED
        variable._complete(storage)
        return variable

    def claim(self, trace: Trace) -> None:
        """Make the variable's strategy the program's strategy, unless the variable is plain."""
        trace.claim(self.strategy, firmly=not self.is_plain)

    def read_value(self) -> jax.Array:
        """Return the value: the replica's own in replica context, elsewhere the combined value.

        Outside a function the array is a copy, which later steps do not change. Raises
        `ArgumentError` for an ON_READ variable with aggregation NONE in cross-replica context.
        """
        self.require_same_strategy()
        trace = current_trace()
        if trace is None:
            if not self.is_mirrored or isinstance(self.storage, CopiesStorage):
                self.storage.require_not_donated(self.stored)
                return self.through_function("read_value")
            value = self.stored.copy()
            require_no_jax_trace(self, value, "read")
            return value
        self.claim(trace)
        local = trace.read(self)
        if self.is_mirrored:
            return trace.note_same_on_all(local)
        return local if in_replica_context_of_a_run() else combined_copies(self, local)

    value = read_value

    def host_value(self) -> Any:
        """Return a copy of the value in the memory of the host, made between two steps.

        The copy is a NumPy array, or an array of JAX for random keys. If no process holds the full
        value, all processes must call this method together, as for `read_value`. Call it outside
        functions only.
        """
        is_key = jnp.issubdtype(self.dtype, jax.dtypes.prng_key)
        copy = None if is_key or not self.is_mirrored else self.stored.host_copy()
        if copy is not None:
            return copy
        value = self.read_value()
        return value if is_key else np.asarray(value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the value in the memory of the host, where shards are joined."""
        if current_trace() is not None or self.storage.sharded_along is None:
            return super().__array__(dtype, copy)
        self.require_same_strategy()
        require_no_jax_trace(self, jnp.zeros(()), "read")
        return np.asarray(self.host_value(), dtype)

    @property
    def is_read_by_all(self) -> bool:
        """Return whether all processes must read together, since no process has the full value."""
        return not (self.is_mirrored and self.storage.is_complete_here)

    def copies(self) -> jax.Array:
        """Return, inside a function, each replica's own copy, in every context."""
        self.require_same_strategy()
        trace = current_trace()
        assert trace is not None
        self.claim(trace)
        return trace.read(self)

    def _written(self, method: str, value: Any, read_value: bool) -> Any:
        checked = self.checked(value)
        if read_value and not self.is_mirrored and not in_replica_context_of_a_run():
            require_aggregation(self, "assigned")
        self.write(method, checked)
        return self.result_of_write(read_value)

    def result_of_write(self, read_value: bool) -> Any:
        """Return the result of a method that writes: None, the variable, or its new value."""
        if not read_value:
            return None
        return self if current_trace() is None and self.is_mirrored else self.read_value()

    def write(self, method: str, array: Any) -> None:
        """Apply `assign`, `assign_add` or `assign_sub`, without reading the new value.

        `array` is a result of `checked`.
        """
        trace = current_trace()
        if trace is None:
            require_no_jax_trace(self, array, "assigned")
            if method == "assign" and self.is_mirrored:
                if not isinstance(array, jax.Array):
                    require_no_jax_trace(self, jnp.zeros(()), "assigned")
                self.store(array)
                if (anchor := self.stored.anchor) is not None:
                    place = self.strategy.place_variable
                    anchor.replace(place(array, MIRRORED), anchor.storage)
                return
            if method == "assign":
                self.stored.renew_if_lost()
            else:
                self.storage.require_not_donated(self.stored)
            self.through_function("write", method, array)
            return
        self.claim(trace)
        in_replica = in_replica_context_of_a_run()
        if in_replica and self.is_plain:
            array, in_replica = in_turn(self, method, array), False
        if method == "assign":
            trace.write(self, self._part(array, in_replica), "replica" if in_replica else "cross")
        else:
            self._update(trace, array if method == "assign_add" else -array, in_replica)

    def store(self, array: Any) -> None:
        """Set the value on all replicas, outside functions."""
        while True:
            storage = self.storage
            buffer = self.strategy.place_variable(array, storage.layout)
            # In a JAX trace the copy is a tracer even if the array is not.
            require_no_jax_trace(self, buffer, "assigned")
            if self.stored.replace(buffer, storage):
                return

    def _update(self, trace: Trace, delta: jax.Array, in_replica: bool) -> None:
        if in_replica and self.is_mirrored:
            delta, in_replica = trace.aggregate(self, delta, "replica"), False
        value = trace.read(self)
        if not in_replica and not self.is_mirrored:
            if self.aggregation is VariableAggregation.SUM:
                raise ArgumentError(
                    f"variable {self.name!r} is ON_READ with aggregation SUM: "
                    f"adding to it in cross-replica context is not defined",
                    hint="add to it in replica context, or assign the new sum over the replicas",
                )
            value = combined_copies(self, value)
        trace.write(self, value + delta, "replica" if in_replica else "cross")

    def _part(self, value: jax.Array, in_replica: bool) -> jax.Array:
        """Return the array that is written to a replica's copy: the value, or a share of it."""
        if in_replica or self.is_mirrored or self.aggregation is not VariableAggregation.SUM:
            return value
        return self.share(value)

    def share(self, total: jax.Array) -> jax.Array:
        """Return, inside a function, the replica's share of a total; all shares add up to it."""
        return share_of_total(total, self.strategy.num_replicas_in_sync)

    def checked(self, value: Any) -> Any:
        """Return the value as an array of the variable's shape and dtype, for `write`.

        A value that will be sharded stays a NumPy array.
        """
        self.require_same_strategy()
        return checked_value(self, value)

    def through_function(self, method: str, *arguments: Any) -> Any:
        """Call a method inside a compiled function, which is made once for each method."""
        if method not in self._implicit:
            compiled = self.strategy.compiled(getattr(self, method), f"{self.name}_{method}")
            self._implicit[method] = compiled
        with Scope(self.strategy):
            return self._implicit[method](*arguments)

    _as_array = read_value

    def how_to_read(self) -> str:
        """Return the expression by which users read the value, for errors."""
        has_one_value = self.is_mirrored or self.aggregation is not VariableAggregation.NONE
        if has_one_value or in_replica_context_of_a_run():
            return super().how_to_read()
        return (
            "it has no one value here: read it in replica context, as v[...] in the function given "
            "to run, or make it with an aggregation"
        )

    def is_compared_with(self, other: object) -> bool:
        """Return whether `==` compares values; two variables are compared by identity."""
        return not isinstance(other, Variable) and super().is_compared_with(other)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a new variable with the same options, value and strategy."""
        self.require_same_strategy()
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), _implicit={}, stored=self.stored.copied())
        return copy

    def __copy__(self) -> NoReturn:
        raise ArgumentTypeError(
            f"variable {self.name!r} cannot be copied without its value: two would own one buffer",
            hint="use copy.deepcopy",
        )

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle(
            f"variable {self.name!r}, which is state on devices,",
            "pickle its value: np.asarray(variable)",
        )

    def __repr__(self) -> str:
        type = self.spec(self.name).type.with_layout(self.storage.layout)
        buffer, entry = self.storage.held, current_entry()
        what = f"<Variable {self.name!r}"
        if isinstance(buffer, jax.ShapeDtypeStruct):
            return f"{what} {type} on {self.strategy.devices}, declared by shape>"
        if self.is_mirrored and len(buffer.devices()) == 1:
            type = type.with_layout(None)
        what = f"{what} {type} on {devices_of([buffer])}"
        if reason := why_unsharded(self):
            what = f"{what}, {reason}"
        if self.storage.is_over_workers:  # the value is read by all workers or by none
            return f"{what}, sharded over {len(self.strategy.devices.workers or ())} workers>"
        if current_trace() is not None or (entry and entry.strategy is not self.strategy):
            return f"{what}>"
        if type.size > LARGEST:
            return f"{what}>"
        return f"{what}{values_of(self.values[:1] if self.is_mirrored else self.values)}>"
