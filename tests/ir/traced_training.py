"""Training steps of models for a strategy, traced: variables are declared by their shapes.

Initial values would be compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any  # Any: pytrees of arrays, and models
from unittest import mock

import graphdist.keras  # before keras: it chooses the JAX backend

# isort: split
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax

import graphdist as gd
from graphdist.ir.variable_storage import StoredOnServer
from graphdist.passes import pipeline
from graphdist.program.stages import Traced

Loss = Callable[[Any, Any], jax.Array]


def mirrored(replicas: int = 2, **options: Any) -> gd.Strategy:
    return gd.MirroredStrategy([f"cpu:{number}" for number in range(replicas)], **options)


def locally(**options: Any) -> gd.Strategy:
    outer = optax.sgd(0.7, momentum=0.9, nesterov=True)
    return mirrored(sync_every=3, outer_optimizer=outer, **options)


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def variables_like(strategy: gd.Strategy, shapes: Any) -> Any:
    with strategy.scope():
        return gd.variables(shapes)


def of_a_replica(strategy: gd.Strategy, shapes: Any) -> Any:
    def spec(each: Any) -> gd.PerReplicaSpec:
        return gd.PerReplicaSpec(each.shape, each.dtype, strategy=strategy)

    return jax.tree.map(spec, shapes)


def training(
    loss: Loss,
    shapes: Any,
    batch: Any,
    strategy: gd.Strategy,
    optimizer: Any = None,
    microbatches: int = 1,
) -> Traced:
    """Return a training step of a model on the batch of a replica; all but the loss are shapes."""
    optimizer = optimizer or optax.sgd(0.1, momentum=0.9)
    params = variables_like(strategy, shapes)
    state = variables_like(strategy, jax.eval_shape(optimizer.init, shapes))

    def replica(batch: Any) -> jax.Array:
        old = gd.read(params)

        def gradients(batch: Any) -> Any:
            value, found = jax.value_and_grad(loss)(old, batch)
            return value, gd.get_replica_context().all_reduce("MEAN", found)

        step = gradients if microbatches == 1 else gd.accumulate(gradients, microbatches)
        value, found = step(batch)
        updates, new = optimizer.update(found, gd.read(state), old)
        gd.assign(params, optax.apply_updates(old, updates))
        gd.assign(state, new)
        return value

    @gd.function
    def step(batch: Any) -> jax.Array:
        return strategy.reduce("MEAN", strategy.run(replica, args=(batch,)), axis=None)

    return step.trace(of_a_replica(strategy, batch))


def keras_step(make_model: Callable[[], Any], *sizes: int) -> Traced:
    """Return the training step of a Keras model that classifies rows of these sizes."""

    def zeros(self: Any, shape: Any, dtype: Any = None) -> Any:
        return np.zeros(shape, dtype or "float32")

    # Keras compiles a generator of random numbers for each shape.
    with mirrored().scope(), mock.patch.object(keras.initializers.GlorotUniform, "__call__", zeros):
        model = make_model()
        rows, labels = shape(8, *sizes), shape(8, dtype=jnp.int32)
        step, arguments = graphdist.keras.training_step(model, rows, labels)
    return step.trace(*arguments)


def on_servers(traced: Traced) -> Traced:
    """Return the step of a worker whose variables are on two servers, which need not run."""
    variables = enumerate(traced.graph.variables)
    placed = tuple(
        replace(variable, storage=StoredOnServer(number % 2)) for number, variable in variables
    )
    target = replace(gd.OneDeviceStrategy("cpu:0").target, cuts_updates=True)
    graph = traced.graph.replace(variables=placed)
    return replace(traced, graph=graph, pipeline=pipeline(target))
