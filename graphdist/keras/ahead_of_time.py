"""The step of a Keras model as a function, to be compiled for devices that are not here."""

from __future__ import annotations

from typing import Any  # Any: pytrees of shapes

import jax
import keras
import numpy as np

from graphdist.errors import ArgumentError, ContextError
from graphdist.keras.gradients import replaced
from graphdist.keras.models import placement_of
from graphdist.program.function import Function
from graphdist.tracing.user_lines import here
from graphdist.values.specs import PerReplicaSpec


def training_step(
    model: keras.Model, x: Any, y: Any = None, sample_weight: Any = None
) -> tuple[Function[Any, Any], tuple[Any, ...]]:
    """Return the function of a model's training step, and what it is traced for.

    The model is compiled, in the scope of a strategy. `x`, `y` and `sample_weight` are the global
    batch, or arrays of its shapes and dtypes such as `jax.ShapeDtypeStruct`. Nothing is run. This
    is the result of a factory for `graphdist-compile` and `graphdist-viz`. Raises `ContextError`
    for a model without a strategy, `ArgumentError` for rows that the replicas cannot share evenly.

    >>> import graphdist as gd, graphdist.keras, jax, keras
    >>> with gd.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
    ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> rows = jax.ShapeDtypeStruct((8, 2), "float32"), jax.ShapeDtypeStruct((8, 1), "float32")
    >>> step, arguments = graphdist.keras.training_step(model, *rows)
    >>> [collective.kind for collective in step.trace(*arguments).lower().collectives]
    ['all_reduce']
    """
    placement = placement_of(model)
    if placement.strategy is None:
        raise ContextError(
            f"model {model.name!r} has no strategy, for which its step could be compiled",
            source=here(),
            hint="make it in strategy.scope(), or call graphdist.keras.distribute(model, strategy)",
        )
    replicas, batch = placement.strategy.num_replicas_in_sync, (x, y, sample_weight)

    def of_a_replica(leaf: Any) -> PerReplicaSpec:
        rows, *rest = leaf.shape
        if rows % replicas:
            raise ArgumentError(
                f"a batch of {rows} rows is not split evenly over {replicas} replicas",
                source=here(),
                hint=f"give it a multiple of {replicas} rows",
            )
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return PerReplicaSpec((rows // replicas, *rest), dtype, strategy=placement.strategy)

    specs = jax.tree.map(of_a_replica, batch)
    _build(model, specs)
    return placement.make_train_function().program, (specs,)


def _build(model: keras.Model, batch: Any) -> None:
    """Let Keras build the model, its metrics and its optimizer for a replica's part of a batch.

    Keras does it where it trains on a batch. Here the training is left out.
    """
    x, y, sample_weight = jax.tree.map(lambda part: np.zeros(part.shape, part.dtype), batch)

    def leave_out(force: bool = False) -> None:
        model.train_function = lambda state, batches: ({}, state)

    with replaced(model, make_train_function=leave_out, reset_metrics=lambda: None):
        model.train_on_batch(x, y, sample_weight, return_dict=True)
    model.train_function = None
