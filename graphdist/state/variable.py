"""Variables: named state that lives on the strategy's devices between steps.

A variable belongs to the strategy current when it was made. It owns one buffer that nobody else
holds: steps donate it, so that a value read outside a function is a copy, as is an initial value.

How the copies on the replicas relate is `VariableSynchronization`, how replicas' writes are
combined is `VariableAggregation`; every combination means what it means in `tf.distribute`, except
that writing different values where nothing says how to combine them is an error instead of a silent
divergence:

* ON_WRITE, AUTO: mirrored. A write in replica context is combined first.
* ON_READ: each replica its own. Cross-replica reads are combined, writes go to all, parts of a SUM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self  # Any: pytrees and initial values

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.context import (
    Scope,
    current_entry,
    current_strategy,
    in_replica_context_of_a_run,
)
from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.ir.types import MIRRORED, PER_REPLICA
from graphdist.options import VariableAggregation, VariableSynchronization, member_of
from graphdist.state.aggregation import combined, require_aggregation
from graphdist.state.checks import (
    check_options,
    checked_name,
    checked_value,
    initial_value_of,
    require_no_jax_trace,
)
from graphdist.state.declaration import Declaration
from graphdist.state.in_place import InPlaceOperators
from graphdist.state.scatter import ScatterUpdates
from graphdist.state.shares import share_of_total
from graphdist.state.storage import Storage
from graphdist.state.turns import in_turn
from graphdist.tracebacks import frames_hidden
from graphdist.tracing.sources import here
from graphdist.tracing.state import Trace, current_trace
from graphdist.values.array_operators import ArrayOperators
from graphdist.values.copying import refuse_to_pickle
from graphdist.values.distributed import DistributedValues, PerReplicaArray, no_values_yet
from graphdist.values.one_line import LARGEST, devices_of, values_of

if TYPE_CHECKING:
    pass


_NOTHING = object()


class Variable(Declaration, ArrayOperators, InPlaceOperators, ScatterUpdates, DistributedValues):
    """State of one shape and dtype, which takes part in arithmetic and indexing as its value.

    A function of `jax.numpy` takes arrays only: give it `variable[...]`.

    `initial_value` is an array, a number, a function without arguments that returns one, or a
    `jax.ShapeDtypeStruct`: then it has no value before it is assigned, and functions that use it
    can be compiled, not run. On devices that are not here every variable is a shape. Made inside a
    function it must be concrete, and the function's first trace is the only one that may make it;
    made in a replica function it has replica 0's. `constraint` is kept for optimizers. Raises
    `ArgumentError` for options that do not go together, `ContextError` if made in a later trace.

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
            raise ArgumentError("a variable is made without an initial value", source=here())
        value = initial_value_of(initial_value, dtype, self)
        self.shape, self.dtype = value.shape, value.dtype
        check_options(self)
        self.is_mirrored = self.is_plain or not on_read
        many = self.strategy.num_replicas_in_sync > 1
        self.distribution = PER_REPLICA if many and not self.is_mirrored else MIRRORED
        with jax.ensure_compile_time_eval():
            buffer = self.strategy.place_variable(value, self.distribution)
        self.storage = Storage(self.name, self.shape, self.strategy, self.distribution, buffer)
        self._implicit: dict[str, Callable[..., Any]] = {}
        self._is_made = True

    _is_made = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Variable:
        """Make an object; replicas that are traced one by one make one variable together."""
        entry = current_entry()
        context = None if entry is None else entry.replica_context
        make = super().__new__
        return make(cls) if context is None else context.made_once(lambda: make(cls))

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """Return a copy of each replica's value, in replica order; outside functions only.

        Where there is one copy for all replicas it is the only one.
        """
        self.require_same_strategy()
        if current_trace() is not None:
            raise no_values_yet()
        copy = self.storage.copy_of_value()
        if self.is_mirrored and len(copy.devices()) == 1:  # one replica, or a parameter device
            return (copy,)
        if self.strategy.devices.parameter_device is not None:
            copy = jax.device_put(copy, self.strategy.devices.per_replica)
        return PerReplicaArray(copy, self.strategy, self.shape).values

    def claim(self, trace: Trace) -> None:
        """Make the variable's strategy that of the program; a plain one leaves it open."""
        trace.claim(self.strategy, firmly=not self.is_plain)

    def read_value(self) -> jax.Array:
        """Return the value: the replica's own in replica context, the combined one elsewhere.

        Outside a function the array is a copy, valid whatever happens to the variable later. Raises
        `ArgumentError` for an ON_READ variable with aggregation NONE in cross-replica context.
        """
        self.require_same_strategy()
        trace = current_trace()
        if trace is None:
            if not self.is_mirrored:
                self.storage.require_kept()
                return self.through_function("read_value")
            value = self.storage.copy_of_value()
            require_no_jax_trace(self, value, "read")
            return value
        self.claim(trace)
        local = trace.read(self)
        if self.is_mirrored:
            return trace.note_same_on_all(local)
        return local if in_replica_context_of_a_run() else combined(self, local)

    value = read_value

    def host_value(self) -> Any:
        """Return a copy of the value in the memory of the host, taken between steps.

        A NumPy array, of random keys an array of JAX. As with `read_value`, all processes read it
        together where none holds the full value. Outside functions only.
        """
        is_key = jnp.issubdtype(self.dtype, jax.dtypes.prng_key)
        copy = None if is_key or not self.is_mirrored else self.storage.host_copy()
        if copy is not None:
            return copy
        value = self.read_value()
        return value if is_key else np.asarray(value)

    @property
    def is_read_by_all(self) -> bool:
        """Whether all processes must read the value together, since none holds all of it."""
        return not (self.is_mirrored and self.storage.is_complete_here)

    def copies(self) -> jax.Array:
        """Return, inside a function, what each replica holds, whatever the context."""
        self.require_same_strategy()
        trace = current_trace()
        assert trace is not None
        self.claim(trace)
        return trace.read(self)

    def assign(self, value: Any, *, read_value: bool = True) -> Any:
        """Set the value, combined over the replicas as the aggregation says.

        Returns the variable; inside a function, and of an ON_READ one, the new value; None without
        `read_value`. `value` has the variable's shape and dtype; Python numbers take its dtype.
        Raises `ArgumentError` where they differ, and `DistributionError` when the program is
        compiled, for values that may differ between replicas and an aggregation of NONE.
        """
        with frames_hidden:
            return self._written("assign", value, read_value)

    def assign_add(self, delta: Any, *, read_value: bool = True) -> Any:
        """Add to the value; in replica context the deltas are combined first, then added."""
        with frames_hidden:
            return self._written("assign_add", delta, read_value)

    def assign_sub(self, delta: Any, *, read_value: bool = True) -> Any:
        """Subtract from the value; in replica context the deltas are combined first."""
        with frames_hidden:
            return self._written("assign_sub", delta, read_value)

    def _written(self, method: str, value: Any, read_value: bool) -> Any:
        checked = self.checked(value)
        if read_value and not self.is_mirrored and not in_replica_context_of_a_run():
            require_aggregation(self, "assigned")
        self.write(method, checked)
        return self.result_of_write(read_value)

    def result_of_write(self, read_value: bool) -> Any:
        """Return what a method that writes returns."""
        if not read_value:
            return None
        return self if current_trace() is None and self.is_mirrored else self.read_value()

    def write(self, method: str, array: jax.Array) -> None:
        """Do what `assign`, `assign_add` or `assign_sub` does, without reading the new value.

        `array` is what `checked` returned.
        """
        trace = current_trace()
        if trace is None:
            require_no_jax_trace(self, array, "assigned")
            if method == "assign" and self.is_mirrored:
                buffer = self.strategy.place_variable(array, self.storage.stored)
                require_no_jax_trace(self, buffer, "assigned")  # JAX traces an array's copy too
                self.storage.buffer = buffer
            else:
                storage = self.storage
                (storage.renew_if_lost if method == "assign" else storage.require_kept)()
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

    def _update(self, trace: Trace, delta: jax.Array, in_replica: bool) -> None:
        if self.is_mirrored:
            if in_replica:
                delta = trace.aggregate(self, delta, "replica")
            trace.write(self, trace.read(self) + delta, "cross")
        elif in_replica:
            trace.write(self, trace.read(self) + delta, "replica")
        elif self.aggregation is VariableAggregation.SUM:
            raise ArgumentError(
                f"variable {self.name!r} is ON_READ with aggregation SUM: "
                f"adding to it in cross-replica context is not defined",
                source=here(),
                hint="add to it in replica context, or assign the new sum over the replicas",
            )
        else:
            trace.write(self, combined(self, trace.read(self)) + delta, "cross")

    def _part(self, value: jax.Array, in_replica: bool) -> jax.Array:
        """Return what each copy gets: of an ON_READ total its share."""
        if in_replica or self.is_mirrored or self.aggregation is not VariableAggregation.SUM:
            return value
        return self.share(value)

    def share(self, total: jax.Array) -> jax.Array:
        """Return, inside a function, what each replica gets of a total assigned to all."""
        return share_of_total(total, self.strategy.num_replicas_in_sync)

    def checked(self, value: Any) -> jax.Array:
        """Return the value as what `write` takes: an array of the variable's shape and dtype."""
        self.require_same_strategy()
        return checked_value(self, value)

    def through_function(self, method: str, *arguments: Any) -> Any:
        """Do outside a function what would be done inside, by compiling one."""
        implicit = self._implicit.get(method)
        if implicit is None:
            implicit = self.strategy.compiled(getattr(self, method), f"{self.name}_{method}")
            self._implicit[method] = implicit
        with Scope(self.strategy):
            return implicit(*arguments)

    _as_array = read_value

    def how_to_read(self) -> str:
        """Return how users write the value, where that is possible."""
        if self.is_mirrored or self.aggregation is not VariableAggregation.NONE:
            return super().how_to_read()
        if in_replica_context_of_a_run():
            return super().how_to_read()
        return (
            "it has no one value here: read it in replica context, as v[...] in the function given "
            "to run, or make it with an aggregation"
        )

    def is_compared_with(self, other: object) -> bool:
        """Return whether `==` is about values: between variables it asks whether they are one."""
        return not isinstance(other, Variable) and super().is_compared_with(other)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a variable of its own with the same options and values, of the same strategy."""
        self.require_same_strategy()
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), _implicit={}, storage=self.storage.copied())
        return copy

    def __copy__(self) -> NoReturn:
        raise ArgumentTypeError(
            f"variable {self.name!r} cannot be copied without its value: two would own one buffer",
            source=here(),
            hint="use copy.deepcopy",
        )

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle(
            f"variable {self.name!r}, which is state on devices,",
            "pickle its value: np.asarray(variable)",
        )

    def __repr__(self) -> str:
        type = self.spec(self.name).type.distributed(self.storage.stored)
        buffer, entry = self.storage.holder.held, current_entry()
        what = f"<Variable {self.name!r}"
        if isinstance(buffer, jax.ShapeDtypeStruct):
            return f"{what} {type} on {self.strategy.devices}, declared by shape>"
        if self.is_mirrored and len(buffer.devices()) == 1:
            type = type.distributed(None)
        what = f"{what} {type} on {devices_of([buffer])}"
        if current_trace() is not None or (entry and entry.strategy is not self.strategy):
            return f"{what}>"
        if type.size > LARGEST:
            return f"{what}>"
        return f"{what}{values_of(self.values[:1] if self.is_mirrored else self.values)}>"
