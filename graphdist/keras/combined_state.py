"""Combines the values that replicas assign to state that is not a parameter.

Each replica computes such a value from its own rows. The values are combined when they are
assigned, so that the layer reads the same value as on one device. The `aggregation` with which the
layer makes the weight says how:

* `"sum"`: the amounts that the replicas add are summed. Such a weight is assigned by `assign_add`
  and `assign_sub`, or as `weight + amount` or `weight - amount`;
* `"mean"`: the mean over the replicas that have rows. The moving averages of Keras's own batch
  normalization are combined in this way, too, although Keras makes them without an aggregation;
* `"only_first_replica"`: the value of the first replica.

A weight without an aggregation may be a running sum, a mean, or neither (a maximum). Even a value
that is equal on all replicas may be a count of steps, or a count of a replica's rows. So assigning
such a weight in a step of `fit` raises an error, unless the weight counts steps. The user's own
loop is written for replicas. There, such a weight may be assigned a value that is equal on all
replicas, as any variable may; a value that differs raises an error when the program is compiled.

Variables of metrics are summed when they are read. So each replica may add to its copy of the
variable, and may not replace the copy: the sum of maxima is no maximum.

While a function is traced, `sums_recorded` records the results of `variable + amount` and
`variable - amount`. So the amount of an assignment is known.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from itertools import islice
from traceback import walk_stack
from typing import Any, NamedTuple  # Any: arrays and objects of Keras

import jax
import jax.numpy as jnp
import keras
import numpy as np

from graphdist.context import in_replica_context_of_a_run, num_replicas_running
from graphdist.errors import DistributionError
from graphdist.keras.batch_normalization import SynchronizedBatchNormalization
from graphdist.keras.gradients import are_gradients_summed
from graphdist.keras.placed_variables import is_seed
from graphdist.keras.replacements import value_set, wrap_method
from graphdist.keras.replica_batch import current_replica_batch
from graphdist.strategies.current import get_replica_context
from graphdist.tracing.user_lines import here


class RecordedSum(NamedTuple):
    """A variable, an amount and the sum, which is kept so that no other object gets its `id`."""

    variable: Any
    amount: Any
    result: Any


_sums: ContextVar[dict[int, RecordedSum] | None] = ContextVar("graphdist_keras_sums", default=None)
_COUNTS_STEPS = "_graphdist_counts_steps"
_NOTHING: dict[int, str] = {}
_of_keras: ContextVar[dict[int, str]] = ContextVar("graphdist_keras_averages", default=_NOTHING)
"""The aggregation of each weight that a layer of Keras makes without one, by the weight's `id`."""


def sums_recorded() -> AbstractContextManager[None]:
    """Record the sums of variables and amounts in a `with` block that traces a function."""
    return value_set(_sums, {})


def record_sum(variable: Any, amount: Any, result: Any, sign: int = 1) -> None:
    """Record that `result` is `variable` plus `amount`, or minus `amount` if `sign` is -1."""
    recorded = _sums.get()
    if recorded is not None:
        amount = amount.value if isinstance(amount, keras.Variable) else amount
        recorded[id(result)] = RecordedSum(variable, amount if sign == 1 else -amount, result)


def combined(variable: Any, value: Any) -> Any:
    """Return what is stored in `variable` when the calling replica assigns `value`.

    Raises `DistributionError` if the values of the replicas cannot be combined.
    """
    if not _is_combined(variable):
        return value
    recorded = (_sums.get() or {}).get(id(value))
    amount = recorded.amount if recorded is not None and recorded.variable is variable else None
    if variable.synchronization == "on_read":
        if variable.aggregation == "sum" and amount is None and not _is_reset(value):
            raise _no_sum(
                f"{_named(variable, 'variable', 'metric')} is summed over the replicas",
                "variable",
                "; compute what is no sum, such as a maximum, from the outputs of model.predict",
            )
        return value
    aggregation = variable.aggregation
    match _of_keras.get().get(id(variable)) if aggregation == "none" else aggregation:
        case "sum" if amount is None:
            raise _no_sum(f"{_named(variable, 'weight', 'layer')} has aggregation 'sum'", "weight")
        case "sum":
            return variable.value + _total(amount)
        case "mean":
            return _mean(jnp.asarray(value, variable.dtype))
        case "only_first_replica":
            is_first = jnp.equal(get_replica_context().replica_id_in_sync_group, 0)
            value = jnp.asarray(value, variable.dtype)
            return _summed(jnp.where(is_first, value, jnp.zeros_like(value)))
    _require_known(variable, amount)
    return value


def _is_combined(variable: Any) -> bool:
    """Return whether a variable is state that is not a parameter, and several replicas run."""
    return (
        in_replica_context_of_a_run()
        and num_replicas_running() > 1
        and not (variable.trainable or is_seed(variable) or are_gradients_summed())
    )


def _require_known(variable: Any, amount: Any) -> None:
    """Raise `DistributionError` if it is not known how to combine a weight without an aggregation.

    In a step of `fit` the weight must count steps. A weight that counts steps grows by 1 in each
    step. A weight that counts rows grows by 1, too, if the replica has one row or none. So a weight
    counts steps if it has grown by 1 in a step with several rows, this one or an earlier one. In
    the user's own loop only a constant amount other than 1 raises.
    """
    batch = current_replica_batch()
    counts_ones = _is_one(amount)
    if batch is None:
        if amount is None or counts_ones or isinstance(amount, jax.core.Tracer):
            return
    elif counts_ones and (batch.num_rows > 1 or _COUNTS_STEPS in vars(variable)):
        vars(variable)[_COUNTS_STEPS] = True
        return
    raise DistributionError(
        f"{_named(variable, 'weight', 'layer')} is assigned by {num_replicas_running()} replicas, "
        f"each for its own rows, and has no aggregation, which says how to combine their values",
        source=here(),
        hint="set it where the weight is made: self.add_weight(.., aggregation='sum') for "
        "amounts that add up over all rows, assigned by assign_add(amount); aggregation='mean' for "
        "means over rows; aggregation='only_first_replica' for a value that does not depend on the "
        "rows",
    )


def _is_one(amount: Any) -> bool:
    is_known = amount is not None and not isinstance(amount, jax.core.Tracer)
    return is_known and bool(np.all(np.abs(np.asarray(amount)) == 1))


def _is_reset(value: Any) -> bool:
    """Return whether a value is zero, or is assigned by `reset_state` of a metric."""
    if not isinstance(value, jax.core.Tracer):
        return not np.any(np.asarray(value))
    callers = (frame.f_code.co_name for frame, _ in islice(walk_stack(None), 6))
    return "reset_state" in callers


def _total(amount: Any) -> Any:
    batch = current_replica_batch()
    amount = jnp.asarray(amount)
    if amount.dtype == jnp.bool_:
        amount = amount.astype(jnp.int32)
    return _summed(jnp.zeros_like(amount) if batch is not None and not batch.num_rows else amount)


def _mean(value: jax.Array) -> Any:
    batch = current_replica_batch()
    share = 1 / num_replicas_running() if batch is None else batch.share_of_mean
    if not share:  # `value` is computed from a row of zeros, and may be nan
        return _summed(jnp.zeros_like(value))
    wide = jnp.promote_types(value.dtype, jnp.float32)
    return _summed(value.astype(wide) * share).astype(value.dtype)


def _summed(value: Any) -> Any:
    return get_replica_context().all_reduce("SUM", value)


_AVERAGES = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")
_OF_LAYERS: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (keras.layers.BatchNormalization, "mean", _AVERAGES),
    (SynchronizedBatchNormalization, "mean", _AVERAGES),
    (keras.layers.SpectralNormalization, "only_first_replica", ("vector_u",)),
)
"""Layers of Keras that assign weights at each step, and the aggregation of these weights."""


def aggregate_averages_of_keras() -> None:
    """Set the aggregation of the weights that layers of Keras assign at each step."""
    for kind, aggregation, weights in _OF_LAYERS:
        wrap_method(kind, "call", partial(_call_with_aggregation, aggregation, weights))


def _call_with_aggregation(
    aggregation: str,
    weights: tuple[str, ...],
    original: Callable[..., Any],
    layer: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    own = {id(getattr(layer, name, None)): aggregation for name in weights}
    with value_set(_of_keras, own):
        return original(layer, *args, **kwargs)


def _named(variable: Any, kind: str, kind_of_owner: str) -> str:
    """Return the name of a variable, and if known the name of the layer or metric that has it."""
    owner, _, name = variable.path.rpartition("/")
    return f"{kind} {name!r}" + (f" of {kind_of_owner} {owner!r}" if owner else "")


def _no_sum(what: str, kind: str, hint: str = "") -> DistributionError:
    return DistributionError(
        f"{what}, and a replica assigns a value that is not the {kind} plus an amount",
        source=here(),
        hint=f"assign it by assign_add(amount){hint}",
    )
