"""The state of one trace: the variables it uses, and their handles.

In a trace a variable is a JAX ref, its handle. The handle is made in the outermost trace, even if
a scan, branch or gradient uses the variable first, so that JAX's transformations keep reads and
writes in program order. A written value has no gradient, since JAX would raise an error for the
write.

Every trace runs under its own user context. Without it JAX would reuse the trace of an inner
`jax.jit` from an earlier trace, with the handles of that trace in it.

Each thread has its own current trace: JAX traces on the calling thread, and other threads may trace
other functions meanwhile. If a function is traced within another, the inner trace is current until
it ends. `Trace.run` restores the outer trace in a `finally`, since a trace may end by any
exception, or by `NeedsReplicaId`, after which the same thread traces again.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from inspect import Parameter, Signature
from typing import Any, TypeVar  # Any: refs and traces have no common public type
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from graphdist.ir.errors import GraphdistError
from graphdist.ir.graph import GraphVariable
from graphdist.ir.source import Source
from graphdist.tracing.axis_name import bound, run_in_cross_replica_context, unbound_name
from graphdist.tracing.marks import IntegerMeans
from graphdist.tracing.missing_values import explain
from graphdist.tracing.primitives import aggregate_p, read_variable_p, to_replicas
from graphdist.tracing.user_lines import here, where_raised

Output = TypeVar("Output")


_trace_token = jax.make_user_context(default_value=0)
_numbers = itertools.count(1)


class TraceError(GraphdistError, RuntimeError):
    """A program that no graph can express."""


class NeedsReplicaId(BaseException):
    """A call of `run` needs the replica id as a Python value, so each replica must be traced.

    The argument is the index of the call of `run`. The class is no `Exception`, so that the user's
    handlers do not catch the error.
    """


class NeedsNameThroughout(BaseException):
    """A gradient through `run` needs the axis name outside `run`, so a trace must bind the name.

    The arguments are the name of the axis and the number of replicas. The class is no `Exception`,
    so that the user's handlers do not catch the error.
    """


class Trace:
    """One trace in progress.

    `is_first` says whether the function may still create variables. `by_replica_id` has the indices
    of the calls of `run` that need the replica id as a Python value. `axis` is the replicas' axis
    name and the number of replicas, if the name must be bound throughout. `means` says which means
    of integers over the replicas stay integers.
    `variables` lists the user's variables in the order of first use, `specs` the graph's variables.
    """

    def __init__(
        self,
        is_first: bool,
        by_replica_id: Collection[int] = (),
        axis: tuple[str, int] | None = None,
        means: IntegerMeans | None = None,
    ) -> None:
        """Start without variables."""
        self.is_first = is_first
        self.means = IntegerMeans() if means is None else means
        self._axis, self._axes_of_runs = axis, set[tuple[str, int]]()
        self.variables: list[Any] = []
        self.specs: list[GraphVariable] = []
        self._names: set[str] = set()
        self.strategy: Any = None  # the program's only strategy, once it is known
        self._is_claimed_firmly = False
        self.replica_id_was_used = False  # by the replica function that is being traced
        # The index of the current call of `run`, if each replica can be traced instead.
        self.current_run: int | None = None
        self._by_replica_id, self._runs = by_replica_id, itertools.count()
        self._used: dict[int, tuple[Any, GraphVariable]] = {}
        """The handle of each variable and its description in the graph, by the variable's id."""
        self._outermost: Any = None
        self._arguments: dict[int, Any] = {}
        self._same_on_all: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._taken_apart: WeakValueDictionary[int, Any] = WeakValueDictionary()
        """The arrays of each `PerReplica` that `jax.tree` gave away, by their ids."""
        self._one_value: WeakValueDictionary[int, Any] = WeakValueDictionary()
        """The arrays that replicas' values were combined to, by their ids."""
        self.bytes_per_pack = 0
        """The smallest `bytes_per_pack` of the program's collectives; 0 if none has one."""

    def is_from_outside(self, array: Any) -> bool:
        """Return whether an array is an argument of the trace or a constant."""
        return not isinstance(array, jax.core.Tracer) or id(array) in self._arguments

    def to_replicas(self, value: Any, group_size: int) -> jax.Array:
        """Return one value, mirrored to every replica.

        On one replica the value is not recorded as mirrored, since it might differ on several.
        """
        inside = to_replicas(value, group_size)
        return self.note_same_on_all(inside) if group_size > 1 else inside

    def note_same_on_all(self, array: jax.Array) -> jax.Array:
        """Record that an array in a replica function is mirrored: equal on all replicas."""
        self._same_on_all[id(array)] = array
        return array

    def is_same_on_all(self, array: Any) -> bool:
        """Return whether exactly this array was recorded as mirrored."""
        return self._same_on_all.get(id(array)) is array

    def note_taken_apart(self, array: Any) -> None:
        """Record that `jax.tree` gives away the array of a `PerReplica`, whose shapes are equal.

        A `PerReplica` is a leaf of `jax.tree` outside functions, and a node with one array inside
        of them: a function that is mapped over a tree combines the same values in both.
        """
        if isinstance(array, jax.core.Tracer):
            self._taken_apart[id(array)] = array

    def was_taken_apart(self, leaf: Any) -> bool:
        """Return whether a leaf is the array of a `PerReplica`."""
        return self._taken_apart.get(id(leaf), self) is leaf

    def note_one_value(self, array: Any) -> Any:
        """Record that an array is what the replicas' values were combined to, and return it."""
        self._one_value[id(array)] = array
        return array

    def is_one_value(self, array: Any) -> bool:
        """Return whether exactly this array was recorded as one value."""
        return self._one_value.get(id(array), self) is array

    def marked_mean(self, array: jax.Array) -> tuple[jax.Array, bool]:
        """Return the marked operand of a mean, and whether the mean is an integer.

        With the mark the graph can prove that the integers are equal, for the next trace.
        """
        mean_id = self.means.next_id()
        if not jnp.issubdtype(array.dtype, jnp.integer):
            return array, False
        if self.is_same_on_all(array):
            return array, True
        return self.means.marked(array, mean_id), self.means.is_equal(mean_id)

    def next_run(self) -> tuple[int, bool]:
        """Return the index of this call of `run`, and whether it is traced by replica id."""
        run = next(self._runs)
        return run, run in self._by_replica_id

    def bound(self, name: str, size: int, call: Callable[[], Output]) -> Output:
        """Call a replica function with the axis name bound.

        Raises `TraceError` if the function uses another axis name.
        """
        self._axes_of_runs.add((name, size))
        try:
            return bound(name, size, call)
        except NameError as error:
            unbound = unbound_name(error)
            if unbound is None:
                raise
            raise TraceError(
                f"the axis name {unbound!r} is not bound: the axis of the replicas is {name!r}",
                source=where_raised(error),
                hint=f"write {name!r}, or give the strategy a name: axis_name={unbound!r}",
            ) from error

    def pack_at_most(self, bytes_per_pack: int) -> None:
        """Limit the bytes of a packed collective; 0 sets no limit."""
        limits = [size for size in (self.bytes_per_pack, bytes_per_pack) if size]
        self.bytes_per_pack = min(limits, default=0)

    def retry_by_replica_id(self) -> None:
        """Raise `NeedsReplicaId` if a value that Python lacks may depend on the replica id."""
        if self.current_run is not None and self.replica_id_was_used:
            raise NeedsReplicaId(self.current_run)

    def read(self, variable: Any) -> jax.Array:
        """Return the variable's current value, on the replica that reads it."""
        handle, _ = self._handle_and_spec(variable)
        return handle[...]

    def write(self, variable: Any, value: jax.Array, context: str) -> None:
        """Assign `value` in `context`, which is "replica" or "cross".

        Raises `TraceError` under `jax.vmap`, where the variable would get a value per example.
        """
        handle, _ = self._handle_and_spec(variable)
        value = self.aggregate(variable, value, context)
        try:
            handle[...] = value
        except Exception as error:
            if "batch" in str(error).lower() or "vmap" in str(error).lower():
                raise TraceError(
                    f"variable {variable.name!r} is assigned under jax.vmap: "
                    f"one variable cannot take a value for each example",
                    source=here(),
                    hint="return the value from the mapped function and assign it outside",
                ) from error
            raise

    def aggregate(self, variable: Any, value: jax.Array, context: str) -> jax.Array:
        """Return a value combined by the variable's aggregation, without a gradient."""
        _, spec = self._handle_and_spec(variable)
        return aggregate_p.bind(value, variable=spec, context=context)

    def claim(self, strategy: Any, *, firmly: bool = True) -> None:
        """Make `strategy` the strategy of the program.

        Raises `TraceError` if the program has another strategy and both claims are firm. The claim
        for a plain variable is not firm, since any strategy can use such a variable.
        """
        is_open = self.strategy is None or self.strategy.is_default
        if is_open or (firmly and not self._is_claimed_firmly):
            self.strategy = strategy
            self._is_claimed_firmly = firmly and not strategy.is_default
        elif firmly and strategy is not self.strategy and not strategy.is_default:
            raise TraceError(
                f"one function uses {self.strategy} and {strategy.beside(self.strategy)}: "
                f"strategies do not mix",
                source=here(),
                hint="run the other strategy in a gd.function of its own",
            )

    def _handle_and_spec(self, variable: Any) -> tuple[Any, GraphVariable]:
        """Return the handle of a user's variable, and its description in the graph."""
        used = self._used.get(id(variable))
        if used is None:
            spec: GraphVariable = variable.spec(self._unique(variable.name))
            with jex.set_current_trace(self._outermost):
                value = read_variable_p.bind(
                    variable=spec, shape=spec.type.shape, dtype=variable.dtype
                )
                used = self._used[id(variable)] = jax.new_ref(value), spec
            self.variables.append(variable)
            self.specs.append(spec)
            self._names.add(spec.name)
        return used

    def _unique(self, name: str) -> str:
        candidates = itertools.chain((name,), (f"{name}_{i}" for i in itertools.count(1)))
        return next(candidate for candidate in candidates if candidate not in self._names)

    def run(self, body: Callable[..., Output], arguments: Sequence[jax.Array]) -> Output:
        """Call `body` with `self` as the current trace."""
        with jex.take_current_trace() as outermost:
            self._outermost = outermost
        self._arguments = {id(argument): argument for argument in arguments}
        previous = _state.trace
        _state.trace = self
        try:
            with jex.set_current_trace(outermost):
                call = partial(run_in_cross_replica_context, lambda: body(*arguments))
                return call() if self._axis is None else bound(*self._axis, call)
        except NameError as error:
            self._raise_if_unbound(error)
            raise
        except (TypeError, IndexError) as error:
            explain(error)
            raise
        except (ValueError, NotImplementedError) as error:
            for part, what, hint in _REFUSED_BY_JAX:
                if part in str(error):
                    raise TraceError(what, source=where_raised(error), hint=hint) from error
            raise
        finally:
            # This comes first, since the lines below must not run inside the trace.
            _state.trace = previous
            # Handles end with JAX's trace. `jax.checking_leaks` reports any that is kept.
            self._used.clear()
            self._arguments.clear()
            self._outermost = None

    def _raise_if_unbound(self, error: NameError) -> None:
        """Raise the error for an unbound name, or `NeedsNameThroughout` for the replicas' name."""
        name = unbound_name(error)
        if name is None:
            return
        known = [axis for axis in self._axes_of_runs if axis[0] == name]
        if known and self._axis is None:
            raise NeedsNameThroughout(*max(known))
        raise outside_replica_functions(name, where_raised(error)) from error


def outside_replica_functions(name: str, source: Source) -> TraceError:
    """Return the error for a collective over an axis name outside replica functions."""
    return TraceError(
        f"a collective over the axis {name!r} outside a replica function, where no such axis is "
        f"bound",
        source=source,
        hint="write it in the function given to strategy.run, over the axis strategy.axis_name; "
        "outside use strategy.reduce and strategy.gather",
    )


_REFUSED_BY_JAX = (
    (
        "Triggering __jax_array__",
        "a function of JAX, which takes arrays, is given a variable or a value of replicas",
        "give it the value: v[...] of a variable, gd.read(tree) of a pytree of them; a PerReplica "
        "goes through the args of run",
    ),
    (
        "State effect not supported in vmap-of-cond",
        "a branch under jax.vmap uses a variable or a ref: JAX takes no state into branches whose "
        "predicate may differ from example to example",
        "read it outside jax.vmap and use the value in the branch; return what is to be assigned, "
        "and assign it outside",
    ),
)
"""Parts of messages of JAX, with the message and the hint of the error that replaces JAX's."""


class _State(threading.local):
    trace: Trace | None = None


_state = _State()


def current_trace() -> Trace | None:
    """Return the current trace of this thread, or None.

    >>> current_trace() is None
    True
    """
    return _state.trace


@contextmanager
def outside_traces() -> Iterator[None]:
    """Compute values and create variables in a `with` block as if this thread traced nothing."""
    previous, _state.trace = _state.trace, None
    try:
        with jax.ensure_compile_time_eval():
            yield
    finally:
        _state.trace = previous


def make_jaxpr(
    trace: Trace,
    body: Callable[..., Sequence[jax.Array]],
    avals: Sequence[jax.ShapeDtypeStruct],
    fn: Callable[..., object],
    names: Sequence[str],
) -> jex.ClosedJaxpr:
    """Trace `body` over arguments of these shapes and dtypes.

    Errors that JAX raises name the user's function `fn`, its file, and an argument of `names`.
    """

    def traced(*arguments: jax.Array) -> Sequence[jax.Array]:
        return trace.run(body, arguments)

    # A signature needs unique names.
    unique = [f"{name}_{i}" if name in names[:i] else name for i, name in enumerate(names)]
    parameters = [Parameter(name or "_", Parameter.POSITIONAL_ONLY) for name in unique]
    vars(traced).update(__wrapped__=fn, __signature__=Signature(parameters))
    with fresh_trace():
        return jax.make_jaxpr(traced)(*avals)


def fresh_trace() -> AbstractContextManager[None]:
    """Keep JAX from reusing a trace of an inner `jax.jit` made outside this `with` block.

    A function has different traces in replica context and in cross-replica context.
    """
    return _trace_token(next(_numbers))
