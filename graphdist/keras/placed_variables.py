"""Keras variables whose values are stored in variables of a strategy.

A Keras variable is placed on a strategy when a function of that strategy first uses the variable,
or when its model is trained. From then on a variable of the strategy has the value, and no array of
Keras has it. Reading the Keras variable copies the value to one device. Assigning the Keras
variable assigns the strategy's variable (`reads_and_writes.py`). Nothing else copies values.

The attributes `aggregation` and `synchronization` of a Keras variable say how replicas write to it:

* parameters and the optimizer's state are mirrored, and the same on all replicas after a step;
* variables of metrics are ON_READ: each replica counts its own rows, a read sums over replicas;
* other state, such as the moving averages of a batch normalization, is mirrored, too: the replicas'
  values are combined before they are assigned (`combined_state.py`);
* the state of a random generator is a seed and a count of draws. When a replica reads the state,
  the replica's id changes the seed, so that replicas draw different numbers. Replica 0 reads the
  unchanged seed, as a model without a strategy does.

If a variable is made inside a function, Keras initializes it when the function ends. Until then
both the strategy's variable, which the function reads, and Keras's array have a value. At the end
the variable is *handed over*: Keras's array is deleted.

Open scopes change what Keras returns as a variable's value: a `StatelessScope`, a scope that casts
to the dtype in which a layer computes, a trace of JAX. All of them belong to the current thread. To
read or write the array that the Keras variable itself holds, this module uses another thread, in
which no scope is open.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar  # Any: arrays of Keras and JAX, variables of Keras

import jax
import jax.numpy as jnp
import keras
import numpy as np

from graphdist.context import Entry, current_strategy, entered, in_replica_context_of_a_run
from graphdist.errors import ArgumentTypeError, ContextError
from graphdist.keras.replacements import value_set
from graphdist.keras.unpublished_names import ARRAY_OF_A_VARIABLE
from graphdist.options import VariableAggregation, VariableSynchronization
from graphdist.state.checks import checked_core
from graphdist.state.trees import cores_by_name
from graphdist.state.variable import Variable
from graphdist.strategies.current import get_replica_context
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.trace_in_progress import current_trace, outside_traces
from graphdist.values.distributed import type_name

_SEED_STEP = 0x9E3779B9  # the increment of Weyl's sequence, so that replicas' seeds are far apart
_PLACED = "_graphdist_placed"
_CORES = "_graphdist_cores"
_waiting: ContextVar[list[Any] | None] = ContextVar(
    "graphdist_keras_variables_waiting", default=None
)


class PlacedVariable:
    """A Keras variable, and the variable of the strategy that holds its value."""

    def __init__(self, variable: keras.Variable, strategy: StrategyBase, value: Any) -> None:
        """Make the strategy's variable, with the value that the Keras variable has."""
        self.keras = variable
        self.is_metric = variable.synchronization == "on_read"
        self.is_seed = is_seed(variable)
        with outside_traces(), entered(Entry(strategy)):
            self.variable = Variable(
                value,
                name=variable.path,
                trainable=bool(variable.trainable),
                synchronization=VariableSynchronization["ON_READ" if self.is_metric else "AUTO"],
                aggregation=self._aggregation(),
                cores=vars(variable).get(_CORES),
            )
        self.is_handed_over = False
        self.handed_back = HandedBack(self)
        self._total: tuple[Any, Any] = (lambda: None, None)

    def _aggregation(self) -> VariableAggregation:
        aggregation = self.keras.aggregation
        if self.is_seed or (self.is_metric and aggregation == "none"):
            return VariableAggregation.ONLY_FIRST_REPLICA
        if aggregation == "sum" and not self.is_metric:  # `combined` has summed the amounts
            return VariableAggregation.NONE
        return VariableAggregation[aggregation.upper()]

    def read(self) -> jax.Array:
        """Return the value inside a function: the calling replica's own, or the mirrored one."""
        value = self.variable.read_value()
        if not self.is_seed or not in_replica_context_of_a_run():
            return value
        replica = jnp.asarray(get_replica_context().replica_id_in_sync_group)
        return value.at[0].add(replica.astype(value.dtype) * jnp.asarray(_SEED_STEP, value.dtype))

    def write(self, new: jax.Array) -> None:
        """Store a value inside a function."""
        if in_replica_context_of_a_run() and self.is_seed:
            new = new.at[0].set(self.variable.read_value()[0])
        self.variable.assign(new, read_value=False)

    def keep_total(self, total: jax.Array) -> None:
        """Keep the total over the replicas, which a step has computed, until the next write."""
        self._total = weakref.ref(self.variable.storage.held), total

    @property
    def value(self) -> jax.Array:
        """Return the traced value inside a function; outside functions a copy on one device."""
        if current_trace() is not None:
            return self.read()
        counted, total = self._total
        if counted() is self.variable.storage.held:
            return total.addressable_shards[0].data
        with jax.ensure_compile_time_eval():  # Keras may infer shapes now, in a trace of JAX
            if self.variable.is_mirrored:
                return self.variable.read_value().addressable_shards[0].data
            if self.variable.strategy.devices.workers is None:
                return jnp.asarray(self._combined())
        return self.variable.read_value().addressable_shards[0].data

    @value.setter
    def value(self, new: Any) -> None:
        if current_trace() is not None:
            self.write(new)
        elif self.variable.is_mirrored or np.any(new):
            self.variable.assign(new, read_value=False)
        else:  # zero is stored on each replica as zero, so resetting a metric needs no program
            self.variable.store(new)

    def _combined(self) -> Any:
        """Return the replicas' values, combined on the host, which compiles no program."""
        parts = np.stack([np.asarray(part) for part in self.variable.values])
        match self.variable.aggregation:
            case VariableAggregation.SUM:
                return parts.sum(axis=0, dtype=parts.dtype)
            case VariableAggregation.MEAN:
                return parts.mean(axis=0, dtype=parts.dtype)
        return parts[0]


class HandedBack:
    """An object in place of a placed variable's value, in the state that Keras passes to steps."""

    def __init__(self, placed: PlacedVariable) -> None:
        """Store the placed variable, which has the value."""
        self.placed, self.dtype = placed, placed.variable.dtype

    def __jax_array__(self) -> jax.Array:
        return self.placed.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.placed.value, dtype)


class HandedBackList:
    """A sequence of `HandedBack` values that, unlike a list, Keras does not traverse."""

    def __init__(self, placed: Iterable[PlacedVariable]) -> None:
        """Store the placed variables, which have the values."""
        self._values = [each.handed_back for each in placed]

    def __iter__(self) -> Iterator[HandedBack]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def placed_variable(variable: Any, strategy: StrategyBase | None = None) -> PlacedVariable:
    """Return the placement of a Keras variable. A variable that is on no strategy is placed.

    `strategy` is the current strategy by default. Raises `ContextError` if the variable is on
    another strategy.
    """
    (placed,) = placed_variables([variable], strategy)
    return placed


def placed_variables(
    variables: Sequence[Any], strategy: StrategyBase | None = None
) -> list[PlacedVariable]:
    """Return the placements of Keras variables, as `placed_variable` does for one."""
    wanted = current_strategy() if strategy is None else strategy
    new = list({id(each): each for each in variables if _PLACED not in vars(each)}.values())
    if new:
        _place(new, wanted)
    all_placed: list[PlacedVariable] = [vars(variable)[_PLACED] for variable in variables]
    for placed in all_placed:
        if placed.variable.strategy is not wanted and not wanted.is_default:
            raise ContextError(
                f"Keras variable {placed.keras.path!r} belongs to "
                f"{placed.variable.strategy.beside(wanted)}, and is used on {wanted}",
                hint="use it on one strategy: open its scope around the first function that uses "
                "it",
            )
    return all_placed


def _place(variables: Sequence[Any], strategy: StrategyBase) -> None:
    """Place variables that are on no strategy."""
    waiting, new = _waiting.get(), []
    try:
        for variable, value in zip(variables, own_arrays(variables), strict=True):
            vars(variable)[_PLACED] = PlacedVariable(variable, strategy, value)
            new.append(variable)
    finally:  # after a failure, too: else the variables placed before it keep two values
        if waiting is None:
            _hand_over(new)
        else:
            waiting += new


def _hand_over(variables: Sequence[Any]) -> None:
    """Delete Keras's arrays of variables, so that only the strategy's variables have values."""
    release_own_arrays(variables)
    for variable in variables:
        vars(variable)[_PLACED].is_handed_over = True


def handed_over(variable: Any) -> PlacedVariable | None:
    """Return the placement of a Keras variable; None while Keras itself holds the value."""
    placed = vars(variable).get(_PLACED)
    return placed if isinstance(placed, PlacedVariable) and placed.is_handed_over else None


def shard_over_cores(
    variables: Sequence[Any], cores: Mapping[str, Any] | str, num_cores: int
) -> None:
    """Say how the cores of a replica will hold variables, by patterns of their paths.

    Raises `ArgumentError` for a pattern that no variable has and for what the shape of a variable
    does not allow, `ContextError` for a variable that is on a strategy already, and for no
    variables.
    """
    if not variables:
        raise ContextError(
            "cores= is for weights, and the model has none yet",
            hint="give the model a keras.Input, or call model.build(shape)",
        )
    found = cores_by_name(cores, [variable.path for variable in variables])
    for variable in variables:
        held = found[variable.path]
        if held is not None and _PLACED in vars(variable):
            raise ContextError(
                f"Keras variable {variable.path!r} is stored on "
                f"{vars(variable)[_PLACED].variable.strategy} already",
                hint="say how cores hold variables before the model is first used",
            )
        if held is not None and held != "auto":
            checked_core(variable.path, variable.shape, held, num_cores)
    for variable in variables:
        vars(variable)[_CORES] = found[variable.path]


def strategy_of(variables: Iterable[Any]) -> StrategyBase | None:
    """Return the strategy of the first variable that is placed; None if none is."""
    all_placed = map(handed_over, variables)
    return next((placed.variable.strategy for placed in all_placed if placed is not None), None)


def is_placed(variable: Any) -> bool:
    """Return whether a Keras variable is stored on a strategy."""
    return handed_over(variable) is not None


def attributes_of_keras(variable: Any) -> dict[str, Any]:
    """Return the attributes of a placed Keras variable, without its placement and arrays."""
    return {
        name: value
        for name, value in vars(variable).items()
        if name != _PLACED and not isinstance(value, jax.Array)
    }


def as_sent(variable: Any, strategy: StrategyBase) -> dict[str, Any]:
    """Return the attributes that a Keras variable has in another process, with its placement.

    A variable that is on no strategy is placed on `strategy`.
    """
    placed = placed_variable(variable, strategy)
    return {**attributes_of_keras(variable), ARRAY_OF_A_VARIABLE: None, _PLACED: placed}


@contextmanager
def handing_over_at_the_end() -> Iterator[None]:
    """At the end of a `with` block that traces a function, hand over variables placed in it."""
    if _waiting.get() is not None:  # in the trace of an outer function, whose block hands over
        yield
        return
    waiting: list[Any] = []
    try:
        with value_set(_waiting, waiting):
            yield
    finally:
        if waiting:
            _hand_over(waiting)


def variable_of(variable: keras.Variable) -> Variable:
    """Return the variable of the strategy that stores a Keras variable's value.

    A Keras variable that is on no strategy is placed on the current one. Raises `ArgumentTypeError`
    for anything but a Keras variable, `ContextError` if it is on another strategy.

    >>> import graphdist as gd, graphdist.keras, keras
    >>> with gd.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
    ...     mean = keras.metrics.Mean()
    ...     graphdist.keras.variable_of(mean.variables[0]).synchronization.name
    'ON_READ'
    """
    if not isinstance(variable, keras.Variable):
        raise ArgumentTypeError(f"variable_of takes a Keras variable, not {type_name(variable)}")
    return placed_variable(variable).variable


Result = TypeVar("Result")


def in_another_thread(compute: Callable[[], Result]) -> Result:
    """Return the result of `compute` in a thread without scopes of Keras and traces of JAX."""
    is_wide = jax.dtypes.canonicalize_dtype("float64") == "float64"  # may be set per thread

    def computed() -> Result:
        with jax.enable_x64(is_wide):
            return compute()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(computed).result()


def own_arrays(variables: Sequence[Any]) -> list[jax.Array]:
    """Return Keras's arrays of variables. A variable made in a trace is initialized before."""
    return in_another_thread(lambda: [variable.value for variable in variables])


def release_own_arrays(variables: Sequence[Any]) -> None:
    """Free the memory of Keras's arrays of variables.

    A Keras variable always has an array, which the user may hold, too. So the array is not deleted
    itself: the variable gets a new array, and the new array is deleted.
    """

    def replace_and_delete() -> None:
        for variable in variables:
            variable.assign(np.zeros(tuple(variable.shape), variable.dtype))
            variable.value.delete()

    in_another_thread(replace_and_delete)


def is_seed(variable: Any) -> bool:
    """Return whether a variable is the state of a random generator."""
    return variable.name == name_of_seeds() and tuple(variable.shape) == (2,)


@cache
def name_of_seeds() -> str:
    """Return the name that Keras gives to the state of its random generators."""
    return in_another_thread(lambda: str(keras.random.SeedGenerator(0).state.name))
