"""Variables: named state that lives on the strategy's devices between steps.

A variable belongs to the strategy current when it was made. It owns one buffer that nobody else
holds: steps donate it, so a value read outside a function is a copy, and an initial value is copied
in.

How the copies on the replicas relate is `VariableSynchronization`, how replicas' writes are
combined is `VariableAggregation`; every combination means what it means in `tf.distribute`, except
that writing different values where nothing says how to combine them is an error instead of a silent
divergence:

* AUTO, ON_WRITE: mirrored. A write in replica context is combined first.
* ON_READ: each replica its own. A read in cross-replica context is combined, a write there goes to
  all (with SUM each gets its part of it).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any  # Any: pytrees and initial values

import jax
import jax.numpy as jnp

from graphdist.array_operators import ArrayOperators
from graphdist.context import get_strategy, in_replica_context_of_a_run, require_same_strategy
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError
from graphdist.ir.graph import Variable as GraphVariable
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type, dtype_name
from graphdist.options import VariableAggregation, VariableSynchronization, member_of
from graphdist.replica_context import summable
from graphdist.tracing.primitives import reduce_p, replica_id_p
from graphdist.tracing.sources import here
from graphdist.tracing.state import Trace, TraceError, current_trace
from graphdist.values import PerReplica, array_of

if TYPE_CHECKING:
    from graphdist.strategies.base import Strategy


class Variable(ArrayOperators):
    """State of one shape and dtype, which takes part in arithmetic and indexing as its value.

    A function of `jax.numpy` takes arrays only: give it `variable[...]`.

    `initial_value` is an array, a number, or a function without arguments that returns one. Made
    inside a function it must be concrete, and the function's first trace is the only one that may
    make it. Raises `ArgumentError` for options that do not go together, `ContextError` for one made
    in a later trace.

    >>> import graphdist as gd
    >>> with gd.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
    ...     count = gd.Variable(1.0, name="count")
    >>> count.assign_add(2.0)
    <Variable 'count' f32[] mirrored over 2 replicas: 3.0>
    >>> float(count * 2)
    6.0
    """

    def __init__(
        self,
        initial_value: Any,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
    ) -> None:
        """Make the variable on the current strategy's devices."""
        self.strategy: Strategy = get_strategy()
        self.name = "variable" if name is None else name
        self.synchronization = member_of(
            VariableSynchronization, synchronization, "synchronization"
        )
        self.aggregation = member_of(VariableAggregation, aggregation, "aggregation")
        is_on_read = self.synchronization is VariableSynchronization.ON_READ
        self.trainable = not is_on_read if trainable is None else trainable
        value = _initial(initial_value, dtype, self.name)
        self.shape: tuple[int, ...] = value.shape
        self.dtype = value.dtype
        self._check_options()
        many = self.strategy.num_replicas_in_sync > 1
        self._distribution = PER_REPLICA if is_on_read and many else MIRRORED
        with jax.ensure_compile_time_eval():
            buffer = self.strategy.place_variable(value, self._distribution)
        self.place = self.strategy.buffers.add(buffer)
        weakref.finalize(self, self.strategy.buffers.release, self.place)
        self._implicit: dict[str, Callable[..., Any]] = {}

    def _check_options(self) -> None:
        if self.strategy.num_replicas_in_sync == 1:
            return
        if self.synchronization is VariableSynchronization.NONE:
            raise ArgumentError(
                f"variable {self.name!r} has synchronization NONE on "
                f"{self.strategy.num_replicas_in_sync} replicas",
                source=here(),
                hint="use ON_READ for a variable each replica keeps for itself",
            )
        if self.aggregation is VariableAggregation.MEAN and jnp.issubdtype(self.dtype, jnp.integer):
            raise ArgumentError(
                f"variable {self.name!r} has aggregation MEAN and dtype {self.dtype}: "
                f"the mean of integers is not an integer",
                source=here(),
                hint="give it a float dtype, or the aggregation SUM",
            )

    @property
    def buffer(self) -> jax.Array:
        """Return the array that holds the value; the next step may donate it."""
        return self.strategy.buffers.buffers[self.place]

    @buffer.setter
    def buffer(self, array: jax.Array) -> None:
        self.strategy.buffers.buffers[self.place] = array

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Return the number of elements of one copy."""
        return Type(dtype_name(self.dtype), self.shape).size

    @property
    def is_mirrored(self) -> bool:
        """Whether all replicas hold the same value."""
        return self._distribution is MIRRORED

    def spec(self, name: str) -> GraphVariable:
        """Return what the graph is told of the variable, under this name."""
        return GraphVariable(
            name,
            Type(dtype_name(self.dtype), self.shape, self._distribution),
            synchronization="on_read" if not self.is_mirrored else "on_write",
            aggregation=self.aggregation.name.lower(),
            trainable=self.trainable,
        )

    def _require_same_strategy(self) -> None:
        require_same_strategy(
            self.strategy,
            f"variable {self.name!r}",
            hint="make the variable inside that scope, or use it outside",
        )

    def read_value(self) -> jax.Array:
        """Return the value: the replica's own in replica context, the combined one elsewhere.

        Outside a function the array is a copy, valid whatever happens to the variable later. Raises
        `ArgumentError` for an ON_READ variable with aggregation NONE in cross-replica context.
        """
        self._require_same_strategy()
        trace = current_trace()
        if trace is None:
            if self.is_mirrored:
                return jnp.array(self.buffer, copy=True)
            return self._through_function("read_value")
        trace.claim(self.strategy)
        local = trace.read(self)
        if self.is_mirrored or in_replica_context_of_a_run():
            return local
        return self._combined(local)

    value = read_value

    def assign(self, value: Any) -> Any:
        """Set the value, combined over the replicas as the aggregation says, and return it.

        `value` has the variable's shape and dtype; Python numbers take its dtype. Raises
        `ArgumentError` where they differ, and `DistributionError` when the program is compiled, for
        values that may differ between replicas and an aggregation of NONE.
        """
        return self._written("assign", value)

    def assign_add(self, delta: Any) -> Any:
        """Add to the value; in replica context the deltas are combined first, then added."""
        return self._written("assign_add", delta)

    def assign_sub(self, delta: Any) -> Any:
        """Subtract from the value; in replica context the deltas are combined first."""
        return self._written("assign_sub", delta)

    def _written(self, method: str, value: Any) -> Any:
        self.write(method, self.checked(value))
        return self if current_trace() is None else self.read_value()

    def write(self, method: str, array: jax.Array) -> None:
        """Do what `assign`, `assign_add` or `assign_sub` does, without reading the new value.

        `array` is what `checked` returned.
        """
        trace = current_trace()
        if trace is None:
            if method == "assign" and self.is_mirrored:
                buffer = self.strategy.place_variable(array, self._distribution)
                self._require_no_jax_trace(buffer)  # also of an array: JAX traces its copy
                self.buffer = buffer
            else:
                self._require_no_jax_trace(array)
                self._through_function(method, array)
            return
        trace.claim(self.strategy)
        in_replica = in_replica_context_of_a_run()
        if method == "assign":
            trace.write(self, self._part(array, in_replica), "replica" if in_replica else "cross")
        else:
            self._update(trace, array if method == "assign_add" else -array, in_replica)

    def _require_no_jax_trace(self, array: jax.Array) -> None:
        if isinstance(array, jax.core.Tracer):
            raise TraceError(
                f"variable {self.name!r} is assigned inside a function that JAX is tracing, "
                f"outside of every gd.function",
                source=here(),
                hint="make it a gd.function, with jax.jit, jax.grad and jax.lax inside",
            )

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
            trace.write(self, self._combined(trace.read(self)) + delta, "cross")

    def _part(self, value: jax.Array, in_replica: bool) -> jax.Array:
        """Return what each copy gets: of an ON_READ total its share."""
        if in_replica or self.is_mirrored or self.aggregation is not VariableAggregation.SUM:
            if not in_replica and not self.is_mirrored:
                self._require_aggregation("assigned")
            return value
        replicas = self.strategy.num_replicas_in_sync
        if jnp.issubdtype(self.dtype, jnp.integer):
            return value // replicas
        return value / replicas

    def _combined(self, local: jax.Array) -> jax.Array:
        """Return the one value of an ON_READ variable's copies."""
        self._require_aggregation("read")
        size = self.strategy.num_replicas_in_sync
        if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            is_first = replica_id_p.bind(group_size=size) == 0
            kept = jnp.where(is_first, local, jnp.zeros_like(local))
            reducer = "max" if local.dtype == jnp.bool_ else "sum"
            return reduce_p.bind(kept, reducer=reducer, group_size=size)
        reducer = self.aggregation.name.lower()
        return reduce_p.bind(summable(local, reducer, "reading"), reducer=reducer, group_size=size)

    def _require_aggregation(self, done: str) -> None:
        if self.aggregation is VariableAggregation.NONE:
            raise ArgumentError(
                f"variable {self.name!r}, ON_READ with aggregation NONE, is {done} in "
                f"cross-replica context, where it has no one value",
                source=here(),
                hint=f"make it with an aggregation, or have it {done} in replica context, "
                f"inside the function given to run",
            )

    def checked(self, value: Any) -> jax.Array:
        """Return the value as what `write` takes: an array of the variable's shape and dtype."""
        self._require_same_strategy()
        if isinstance(value, PerReplica):
            raise ArgumentTypeError(
                f"a PerReplica is assigned to variable {self.name!r}, which takes one array",
                source=here(),
                hint="pass it to the replica function through the args of run"
                if in_replica_context_of_a_run()
                else "make it one value first: strategy.reduce('MEAN', value, axis=None)",
            )
        array = array_of(value, f"variable {self.name!r} is assigned")
        if array.shape != self.shape:
            raise ArgumentError(
                f"variable {self.name!r} has shape {list(self.shape)}, "
                f"the value assigned to it has shape {list(array.shape)}",
                source=here(),
                hint=f"reshape it: value.reshape({self.shape})"
                if array.size == self.size
                else f"broadcast it: jnp.broadcast_to(value, {self.shape})"
                if not array.shape
                else "",
            )
        if array.dtype != self.dtype and not array.weak_type:
            raise ArgumentError(
                f"variable {self.name!r} has dtype {self.dtype}, "
                f"the value assigned to it has dtype {array.dtype}",
                source=here(),
                hint=f"convert it: value.astype({str(self.dtype)!r})",
            )
        return array if array.dtype == self.dtype else array.astype(self.dtype)

    def _through_function(self, method: str, *arguments: jax.Array) -> Any:
        """Do outside a function what would be done inside, by compiling one."""
        implicit = self._implicit.get(method)
        if implicit is None:
            from graphdist.function import Function

            implicit = Function(getattr(self, method), name=f"{self.name}_{method}")
            self._implicit[method] = implicit
        with self.strategy.scope():
            return implicit(*arguments)

    def __jax_array__(self) -> jax.Array:
        return self.read_value()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        where = f"{self.spec(self.name).type} over {self.strategy.num_replicas_in_sync} replicas"
        if self.strategy.num_replicas_in_sync == 1:
            where = str(self.spec(self.name).type.distributed(None))
        if current_trace() is not None or not self._is_readable():
            return f"<Variable {self.name!r} {where}>"
        return f"<Variable {self.name!r} {where}: {self.read_value()}>"

    def _is_readable(self) -> bool:
        return self.is_mirrored or self.aggregation is not VariableAggregation.NONE

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            f"variable {self.name!r} can be neither copied nor pickled: it is state on devices",
            source=here(),
            hint="copy or pickle its value: np.asarray(variable)",
        )


def _initial(value: Any, dtype: Any, name: str) -> jax.Array:
    """Return the concrete initial value; a later trace may not make variables."""
    trace = current_trace()
    if trace is not None and not trace.is_first:
        raise ContextError(
            f"variable {name!r} is made when its function is traced again",
            source=here(),
            hint="make variables once, outside the function, or guard the creation: "
            "if self.w is None: self.w = gd.Variable(...)",
        )
    with jax.ensure_compile_time_eval():
        value = value() if callable(value) else value
        if isinstance(value, jax.core.Tracer):
            raise ArgumentTypeError(
                f"variable {name!r} is made from a value that exists only in the trace",
                source=here(),
                hint="give the initial value as a function: gd.Variable(lambda: jnp.zeros(3))",
            )
        return array_of(value, f"variable {name!r} is made from", dtype)
