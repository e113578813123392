"""Combines the values that replicas assign to state that is not a parameter.

Each replica computes such a value from its own rows. The values are combined when they are
assigned, so that the layer reads the same value as on one device. How is set by the `aggregation`
with which the layer makes the weight:

* `"sum"`: the amounts that the replicas add are summed. Such a weight is assigned by `assign_add`
  and `assign_sub`, or as `weight + amount` or `weight - amount`;
* `"mean"`: the mean over the replicas that have rows. The moving averages of Keras's own batch
  normalization are combined so, too, although it does not set it;
* `"only_first_replica"`: the value of the first replica.

A weight without an aggregation may be a running sum, a mean, or neither (a maximum). A value that
is equal on all replicas may be a count of steps, or of a replica's rows. So a step of `fit` refuses
such a weight, unless it counts steps in ones. In the user's own loop, which knows of replicas, it
keeps a value that is equal on all of them, as any variable does; a value that differs is refused
when the program is compiled.

Variables of metrics are summed when they are read. So each replica may add to its own, and may not
replace it: the sum of maxima is no maximum.

`sums_noted` notes the results of `variable + amount` and `variable - amount` while a function is
traced. So the amount of an assignment is known.
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


class NotedSum(NamedTuple):
    """A variable with an amount added, and their sum, which is kept so that its `id` stays."""

    variable: Any
    amount: Any
    result: Any


_sums: ContextVar[dict[int, NotedSum] | None] = ContextVar("graphdist_keras_sums", default=None)
_COUNTS_STEPS = "_graphdist_counts_steps"
_NOTHING: dict[int, str] = {}
_of_keras: ContextVar[dict[int, str]] = ContextVar("graphdist_keras_averages", default=_NOTHING)
"""The aggregations, by the weight's `id`, of weights that Keras's own layers make without one."""


def sums_noted() -> AbstractContextManager[None]:
    """Note in a `with` block, which traces a function, the sums of variables and amounts."""
    return value_set(_sums, {})


def note_sum(variable: Any, amount: Any, result: Any, sign: int = 1) -> None:
    """Note that `result` is a variable with an amount added, or taken away for sign -1."""
    noted = _sums.get()
    if noted is not None:
        amount = amount.value if isinstance(amount, keras.Variable) else amount
        noted[id(result)] = NotedSum(variable, amount if sign == 1 else -amount, result)


def combined(variable: Any, value: Any) -> Any:
    """Return the value to which a replica's assignment sets a variable.

    Raises `DistributionError` if the values of the replicas cannot be combined.
    """
    if not _is_combined(variable):
        return value
    noted = (_sums.get() or {}).get(id(value))
    amount = noted.amount if noted is not None and noted.variable is variable else None
    if variable.synchronization == "on_read":
        if variable.aggregation == "sum" and amount is None and not _is_reset(value):
            raise _of_metric(variable)
        return value
    aggregation = variable.aggregation
    match _of_keras.get().get(id(variable)) if aggregation == "none" else aggregation:
        case "sum" if amount is None:
            raise _no_sum(variable)
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
    """Return whether a variable is state that is no parameter, and replicas run."""
    return (
        in_replica_context_of_a_run()
        and num_replicas_running() > 1
        and not (variable.trainable or is_seed(variable) or are_gradients_summed())
    )


def _require_known(variable: Any, amount: Any) -> None:
    """Raise `DistributionError` unless a weight without an aggregation counts steps.

    Then each step adds 1. So does a count of rows where a replica has one row or none; the weight
    is known to count steps once it has grown by 1 for several rows.
    """
    batch = current_replica_batch()
    counts_ones = _is_one(amount)
    if batch is None:
        if amount is None or counts_ones or isinstance(amount, jax.core.Tracer):
            return
    elif counts_ones and (batch.num_rows > 1 or _COUNTS_STEPS in vars(variable)):
        vars(variable)[_COUNTS_STEPS] = True
        return
    raise _undeclared(variable)


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
    if not share:  # computed from a row of zeros: it may be nan
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
    """Return the name of a variable, with that of its layer or metric if it is known."""
    owner, _, name = variable.path.rpartition("/")
    return f"{kind} {name!r}" + (f" of {kind_of_owner} {owner!r}" if owner else "")


def _undeclared(variable: Any) -> DistributionError:
    return DistributionError(
        f"{_named(variable, 'weight', 'layer')} is assigned by {num_replicas_running()} replicas, "
        f"each for its own rows, and has no aggregation, which says how to combine their values",
        source=here(),
        hint="set it where the weight is made: self.add_weight(.., aggregation='sum') for "
        "amounts that add up over all rows, assigned by assign_add(amount); aggregation='mean' for "
        "means over rows; aggregation='only_first_replica' for a value that does not depend on the "
        "rows",
    )


def _no_sum(variable: Any) -> DistributionError:
    return DistributionError(
        f"{_named(variable, 'weight', 'layer')} has aggregation 'sum', and a replica "
        f"assigns a value that is not the weight plus an amount",
        source=here(),
        hint="assign it by assign_add(amount)",
    )


def _of_metric(variable: Any) -> DistributionError:
    return DistributionError(
        f"{_named(variable, 'variable', 'metric')} is summed over the replicas, and a replica "
        f"assigns a value that is not the variable plus an amount",
        source=here(),
        hint="assign it by assign_add(amount); compute what is no sum, such as a maximum, from "
        "the outputs of model.predict",
    )
