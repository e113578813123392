"""The state of one trace: which variables it touches, through which handles.

A variable's state is a JAX ref in a trace, its handle. The handle is made in the outermost trace,
whatever scan, branch or gradient touches the variable first, so that reads and writes survive JAX's
transformations in program order. A write is cut from differentiation, since JAX refuses it
otherwise.

Every trace runs under a user context of its own. Without it JAX would reuse the trace of an inner
`jax.jit` from an earlier trace, with the handles of that trace in it.

The trace in progress is a thread's own: JAX traces on the thread that calls, and another thread may
trace another function meanwhile. A function may be traced while another is: then the inner trace
is current until it ends, and the outer one is again. `Trace.run` sets both back in a `finally`: a
trace may end by any exception, and by `NeedsReplicaNumber`, after which the same thread goes on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from inspect import Parameter, Signature
from typing import Any, Protocol, TypeVar  # Any: refs and traces have no common public type
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from graphdist.ir.errors import GraphdistError
from graphdist.ir.graph import GraphVariable
from graphdist.ir.source import Source
from graphdist.ir.types import Type
from graphdist.tracing.axis_name import bound, for_all, unbound_name
from graphdist.tracing.integer_mean_marks import IntegerMeans
from graphdist.tracing.missing_values import explain
from graphdist.tracing.primitives import aggregate_p, read_variable_p, to_replicas
from graphdist.tracing.user_lines import here, where_raised

Output = TypeVar("Output")


_trace_token = jax.make_user_context(default_value=0)
_numbers = itertools.count(1)


class TraceError(GraphdistError, RuntimeError):
    """A program that cannot be traced to a graph that means the same."""


class NeedsReplicaNumber(BaseException):
    """A call of `run` needs the replica's number as a Python value: trace again, by number.

    Not an `Exception`: the user's own handlers are not meant.
    """

    def __init__(self, run: int) -> None:
        """Say which call it is."""
        self.run = run


class NeedsNameThroughout(BaseException):
    """The name of the replicas is needed outside `run` too, by a gradient taken through it.

    Not an `Exception`: the user's own handlers are not meant.
    """

    def __init__(self, axis: tuple[str, int]) -> None:
        """Say which name, and how many replicas it stands for."""
        self.axis = axis


class TraceableVariable(Protocol):
    """What a trace needs to know of a user's variable."""

    name: str

    def spec(self, name: str) -> GraphVariable:
        """Return the graph's description of the variable under a name unique in its graph."""


class Trace:
    """One trace in progress.

    `is_first` says whether the function may still create variables, `by_number` which of its calls
    of `run` need the replica's number as a Python value, `axis` the name of the replicas and how
    many they are, if the name is to be bound throughout, `means` the facts about its means of
    integers. `variables` lists the user's variables in the order of first touch, `specs` what the
    graph calls them.
    """

    def __init__(
        self,
        is_first: bool,
        by_number: Collection[int] = (),
        axis: tuple[str, int] | None = None,
        means: IntegerMeans | None = None,
    ) -> None:
        """Start with no variable touched."""
        self.is_first = is_first
        self.means = IntegerMeans() if means is None else means
        self._axis, self._axes_of_runs = axis, set[tuple[str, int]]()
        self.variables: list[Any] = []
        self.specs: list[GraphVariable] = []
        self.strategy: Any = None  # the one strategy of the program, once it is known
        self._is_claimed_firmly = False
        self.number_was_asked = False  # by the replica function that is being traced
        self.current_run: int | None = (
            None  # the call of `run` that could be traced by number instead
        )
        self._by_number, self._num_runs = by_number, 0
        self._handles: dict[int, Any] = {}
        self._specs: dict[int, GraphVariable] = {}
        self._outermost: Any = None
        self._arguments: dict[int, Any] = {}
        self._same_on_all: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.bytes_per_pack = 0
        """The least that a collective of the program asked for; 0 if none asked."""

    def is_from_outside(self, array: Any) -> bool:
        """Return whether an array was there before the trace: an argument, or a constant."""
        return not isinstance(array, jax.core.Tracer) or id(array) in self._arguments

    def to_replicas(self, value: Any, group_size: int) -> jax.Array:
        """Return one value as the value of every replica.

        On one replica it is not noted: on several replicas each might have its own.
        """
        inside = to_replicas(value, group_size)
        return self.note_same_on_all(inside) if group_size > 1 else inside

    def note_same_on_all(self, array: jax.Array) -> jax.Array:
        """Note that an array in a replica function is one value, the same on all replicas."""
        self._same_on_all[id(array)] = array
        return array

    def is_same_on_all(self, array: Any) -> bool:
        """Return whether an array itself, not what it was computed from, was noted as one value."""
        return self._same_on_all.get(id(array)) is array

    def marked_mean(self, array: jax.Array) -> tuple[jax.Array, bool]:
        """Return the operand of a mean over the replicas, and whether it is known as one integer.

        It is marked, so that its mean may be found to be one when the program is traced again.
        """
        number = self.means.next_number()
        if not jnp.issubdtype(array.dtype, jnp.integer):
            return array, False
        if self.is_same_on_all(array):
            return array, True
        return self.means.marked(array, number), self.means.is_one(number)

    def next_run(self) -> tuple[int, bool]:
        """Return which call of `run` this is, and whether it needs the replica's number."""
        run = self._num_runs
        self._num_runs += 1
        return run, run in self._by_number

    def bound(self, name: str, size: int, call: Callable[[], Output]) -> Output:
        """Call what replicas do, with the name of their axis bound.

        Raises `TraceError` for other names.
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
        """Note how much goes into a packed collective; 0 asks for nothing."""
        asked = [size for size in (self.bytes_per_pack, bytes_per_pack) if size]
        self.bytes_per_pack = min(asked, default=0)

    def ask_for_number(self) -> None:
        """Raise `NeedsReplicaNumber` if a value that is missing may be the replica's number."""
        if self.current_run is not None and self.number_was_asked:
            raise NeedsReplicaNumber(self.current_run)

    def read(self, variable: TraceableVariable) -> jax.Array:
        """Return the current value of the variable, as the replica that reads has it."""
        return self._handle(variable)[...]

    def write(self, variable: TraceableVariable, value: jax.Array, context: str) -> None:
        """Assign `value` in `context`, which is "replica" or "cross".

        Raises `TraceError` under `jax.vmap`, where there would be many values for one variable.
        """
        handle = self._handle(variable)
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

    def aggregate(self, variable: TraceableVariable, value: jax.Array, context: str) -> jax.Array:
        """Return the value combined over the replicas as the variable says, cut from gradients."""
        self._handle(variable)
        return aggregate_p.bind(value, variable=self._specs[id(variable)], context=context)

    def claim(self, strategy: Any, *, firmly: bool = True) -> None:
        """Make `strategy` the strategy of the program; raises `TraceError` if it has another.

        A plain variable, which any strategy can use, claims its strategy less than firmly.
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

    def _handle(self, variable: TraceableVariable) -> Any:
        handle = self._handles.get(id(variable))
        if handle is None:
            spec = variable.spec(self._unique(variable.name))
            type: Type = spec.type
            with jex.set_current_trace(self._outermost):
                value = read_variable_p.bind(
                    variable=spec, shape=type.shape, dtype=variable_dtype(variable)
                )
                handle = jax.new_ref(value)
            self._handles[id(variable)] = handle
            self.variables.append(variable)
            self.specs.append(spec)
            self._specs[id(variable)] = spec
        return handle

    def _unique(self, name: str) -> str:
        taken = {spec.name for spec in self.specs}
        candidates = itertools.chain((name,), (f"{name}_{i}" for i in itertools.count(1)))
        return next(candidate for candidate in candidates if candidate not in taken)

    def run(self, body: Callable[..., Output], arguments: Sequence[jax.Array]) -> Output:
        """Call `body` with this as the trace in progress."""
        with jex.take_current_trace() as outermost:
            self._outermost = outermost
        self._arguments = {id(argument): argument for argument in arguments}
        previous = _state.trace
        _state.trace = self
        try:
            with jex.set_current_trace(outermost):
                call = partial(for_all, lambda: body(*arguments))
                return call() if self._axis is None else bound(*self._axis, call)
        except NameError as error:
            self._raise_if_unbound(error)
            raise
        except (TypeError, IndexError) as error:
            explain(error)
            raise
        except ValueError as error:
            if not str(error).startswith("Triggering __jax_array__"):
                raise
            raise TraceError(
                "a function of JAX, which takes arrays, is given a variable or a value of replicas",
                source=where_raised(error),
                hint="give it the value: v[...] of a variable, gd.read(tree) of a pytree of them; "
                "a PerReplica goes through the args of run",
            ) from error
        except NotImplementedError as error:
            if "State effect not supported in vmap-of-cond" not in str(error):
                raise
            raise TraceError(
                "a branch under jax.vmap uses a variable or a ref: JAX takes no state into "
                "branches whose predicate may differ from example to example",
                source=where_raised(error),
                hint="read it outside jax.vmap and use the value in the branch; return what is to "
                "be assigned, and assign it outside",
            ) from error
        finally:
            # First the state of the thread: what follows must not be seen as part of this trace.
            _state.trace = previous
            # Handles end with JAX's trace. One that is kept counts as a leak: `jax.checking_leaks`.
            self._handles.clear()
            self._arguments.clear()
            self._outermost = None

    def _raise_if_unbound(self, error: NameError) -> None:
        """Say that the name of an axis is missing, or trace again with it if replicas have it."""
        name = unbound_name(error)
        if name is None:
            return
        known = [axis for axis in self._axes_of_runs if axis[0] == name]
        if known and self._axis is None:
            raise NeedsNameThroughout(max(known))
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


def variable_dtype(variable: Any) -> Any:
    """Return the JAX dtype of a user's variable."""
    return variable.dtype


class _State(threading.local):
    trace: Trace | None = None


_state = _State()


def current_trace() -> Trace | None:
    """Return the trace in progress on this thread, or None.

    >>> current_trace() is None
    True
    """
    return _state.trace


@contextmanager
def outside_traces() -> Iterator[None]:
    """Compute and make variables as if no function were being traced on this thread."""
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

    JAX's own errors name a function, its file and an argument: `fn`, the user's, and one of `names`
    instead of what stands here.
    """

    def traced(*arguments: jax.Array) -> Sequence[jax.Array]:
        return trace.run(body, arguments)

    # Numbered where they are alike: a signature takes a name once.
    unique = [f"{name}_{i}" if name in names[:i] else name for i, name in enumerate(names)]
    parameters = [Parameter(name or "_", Parameter.POSITIONAL_ONLY) for name in unique]
    vars(traced).update(__wrapped__=fn, __signature__=Signature(parameters))
    with fresh_trace():
        return jax.make_jaxpr(traced)(*avals)


def fresh_trace() -> AbstractContextManager[None]:
    """Keep JAX from reusing the trace of an inner `jax.jit` from outside this `with` block.

    A function means something else in replica context than in cross-replica context.
    """
    return _trace_token(next(_numbers))
