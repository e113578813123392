"""The state of a Keras model in variables of a strategy.

Keras takes the arrays out of its variables before the first step, hands them to every step and puts
the arrays that the last step returned back into its variables: at the end of an epoch, or when a
callback asks for the model. Between two steps the values are in variables of graphdist, and what
Keras gets of each step are objects that read them when Keras puts them back (`HandedBack`).

A Keras variable says itself how replicas write to it (`aggregation`, `synchronization`):

* parameters and the optimizer's state are mirrored, and the same on all replicas after a step;
* variables of metrics are ON_READ: each replica counts its own rows, a read adds up;
* of other state, such as the moving averages of a batch normalization, the mean over the replicas
  is kept if it is floating, else the first replica's value. Replicas without rows do not count;
* the state of a random generator counts the draws. Each replica reads it with a seed of its own;
  replica 0 has the seed that a model without a strategy has.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias  # Any: arrays of Keras and JAX

import jax
import jax.numpy as jnp
import keras

from graphdist.options import VariableAggregation, VariableSynchronization
from graphdist.program.function import function
from graphdist.state.variable import Variable
from graphdist.strategies.base import Strategy
from graphdist.strategies.current import get_replica_context

Arrays: TypeAlias = list[Any]

_SEED = "seed_generator_state"
_SEED_STEP = 0x9E3779B9  # of Weyl's sequence: seeds of replicas that are far apart


class HandedBack:
    """Stands for the new value of a Keras variable; the value is read when Keras puts it back."""

    def __init__(self, held: HeldVariable) -> None:
        """Take the variable that holds the value."""
        self._held = held

    def __jax_array__(self) -> jax.Array:
        return self._held.array()

    def belongs_to(self, held: HeldVariable) -> bool:
        """Return whether it stands for the value of this variable."""
        return self._held is held


class HeldVariable:
    """A Keras variable, and the variable of the strategy that holds its value during steps."""

    def __init__(self, variable: Any, value: Any, is_metric: bool) -> None:
        """Make the strategy's variable, with the value that the Keras variable has."""
        self.keras = variable
        self.is_seed = variable.name == _SEED and tuple(variable.shape) == (2,)
        self.is_averaged = _is_averaged(variable, is_metric, self.is_seed)
        self.variable = Variable(
            value,
            name=variable.path,
            trainable=bool(variable.trainable),
            synchronization=_synchronization(is_metric),
            aggregation=_aggregation(variable, is_metric, self.is_seed),
        )
        self.handed_back = HandedBack(self)
        self.total: jax.Array | None = None
        """The value of an ON_READ variable after the last step, over all replicas."""
        self._given: Any = lambda: None
        self.note_given(value)

    def note_given(self, array: Any) -> None:
        """Remember the array that the Keras variable has now, without keeping it alive."""
        self._given = weakref.ref(array)

    def is_current(self, array: Any) -> bool:
        """Return whether the variable holds this value already."""
        if isinstance(array, HandedBack):
            return array.belongs_to(self)
        return self._given() is array

    def array(self) -> jax.Array:
        """Return the value, on one device."""
        value = self.variable.read_value() if self.total is None else self.total
        array = value.addressable_shards[0].data
        self.note_given(array)
        return array

    def read(self) -> jax.Array:
        """Return, in a replica function, the value that the replica takes."""
        value = self.variable.read_value()
        if not self.is_seed:
            return value
        replica = jnp.asarray(get_replica_context().replica_id_in_sync_group)
        return value.at[0].add(replica.astype(value.dtype) * jnp.asarray(_SEED_STEP, value.dtype))

    def write(self, new: jax.Array, share: float) -> None:
        """Store, in a replica function, the value after a step; `share` is its part of a mean."""
        if self.is_seed:
            new = new.at[0].set(self.variable.read_value()[0])
        elif self.is_averaged:
            new = get_replica_context().all_reduce("SUM", new * jnp.asarray(share, new.dtype))
        self.variable.assign(new, read_value=False)


def _is_averaged(variable: Any, is_metric: bool, is_seed: bool) -> bool:
    """Return whether the mean of the replicas' values is kept."""
    if is_metric or is_seed or variable.trainable or variable.aggregation not in ("none", "mean"):
        return False
    return bool(jnp.issubdtype(jnp.dtype(variable.dtype), jnp.floating))


def _synchronization(is_metric: bool) -> VariableSynchronization:
    return VariableSynchronization.ON_READ if is_metric else VariableSynchronization.AUTO


def _aggregation(variable: Any, is_metric: bool, is_seed: bool) -> VariableAggregation:
    if variable.aggregation != "none":
        return VariableAggregation[variable.aggregation.upper()]
    is_float = jnp.issubdtype(jnp.dtype(variable.dtype), jnp.floating)
    if is_metric or is_seed or not (variable.trainable or is_float):
        return VariableAggregation.ONLY_FIRST_REPLICA
    return VariableAggregation.NONE


class ModelState:
    """The variables of a model on a strategy, in the lists in which Keras passes them to steps.

    The lists are the trainable variables, the others, the optimizer's and the metrics', or the
    first few of them.
    """

    def __init__(self, model: keras.Model, strategy: Strategy) -> None:
        """Hold no variable yet: `adopt` makes them."""
        self._model, self._strategy = model, strategy
        self._held: dict[int, HeldVariable] = {}
        self._set_totals = self._totals_function()

    def adopt(self, lists: Sequence[Sequence[Any]], state: Sequence[Arrays], metrics: int) -> None:
        """Take over the values that Keras passes to a step, unless they are here already.

        `metrics` is the place of the list of the metrics' variables, -1 if there is none.
        """
        totals: list[tuple[HeldVariable, Any]] = []
        count = len(self._held)
        with self._strategy.scope():
            for place, (variables, arrays) in enumerate(zip(lists, state, strict=True)):
                for variable, array in zip(variables, arrays, strict=True):
                    held = self._held.get(id(variable))
                    if held is None:
                        held = HeldVariable(variable, array, place == metrics)
                        self._held[id(variable)] = held
                    elif not held.is_current(array):
                        if held.variable.is_mirrored:
                            held.variable.assign(array)
                        else:
                            totals.append((held, array))
                        held.note_given(array)
            if len(self._held) != count:
                self._set_totals = self._totals_function()
            if totals:
                self._assign_all(totals)

    def _assign_all(self, totals: list[tuple[HeldVariable, Any]]) -> None:
        """Set the totals of metrics, those that stay with the value they have, in one program."""
        given = {id(held): array for held, array in totals}
        everything = [held for held in self._held.values() if not held.variable.is_mirrored]
        self._set_totals(
            [given.get(id(held), held.total) for held in everything],
        )

    def _assign_totals(self, arrays: Arrays) -> None:
        everything = [held for held in self._held.values() if not held.variable.is_mirrored]
        for held, array in zip(everything, arrays, strict=True):
            if array is not None:
                held.variable.assign(array, read_value=False)

    def held(self, variables: Sequence[Any]) -> list[HeldVariable]:
        """Return what holds these Keras variables."""
        return [self._held[id(variable)] for variable in variables]

    def keep_only(self, variables: Sequence[Any]) -> None:
        """Forget the variables that the model no longer has."""
        ids = {id(variable) for variable in variables}
        self._held = {key: held for key, held in self._held.items() if key in ids}
        self._set_totals = self._totals_function()

    def _totals_function(self) -> Callable[[Arrays], None]:
        """Return a new function: a program assigns the variables that were held when traced."""
        return function(self._assign_totals, name="set_metrics")
