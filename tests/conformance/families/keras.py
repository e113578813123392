"""Keras 3 under a strategy: metrics, losses, an optimizer and layers in `run`, and `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: the values of any program, and objects of Keras

import jax.numpy as jnp
import numpy as np

import graphdist as gd
import graphdist.keras as gdk  # before keras: it chooses the JAX backend
from tests.conformance.encode import class_name
from tests.conformance.environment import Environment, Program, array, from_table, in_scope

# isort: split
import keras


def _parts(env: Environment, values: Any) -> Any:
    return env.per_replica(values[: env.replicas])


def _updated(env: Environment, metric: Any) -> Any:
    env.strategy.run(lambda x: metric.update_state(x), args=(_parts(env, [[1.0, 2.0], [6.0]]),))
    return metric


def _metric(make: Callable[[], Any], finish: Callable[[Environment, Any], Any]) -> Program:
    """Return the program that updates a metric in the replicas, and then finishes."""
    return lambda env: finish(env, _updated(env, in_scope(env.strategy, make)))


def _result(env: Environment, metric: Any) -> Any:
    return metric.result()


def _result_after_reset(env: Environment, metric: Any) -> Any:
    metric.reset_state()
    return metric.result()


def _mean_in_function(env: Environment) -> Any:
    mean = in_scope(env.strategy, keras.metrics.Mean)
    update = gd.function(lambda part: env.strategy.run(mean.update_state, args=(part,)))
    update(_parts(env, [[1.0, 2.0], [6.0]]))
    return mean.result()


def _variable_kinds(env: Environment) -> Any:
    def kinds() -> Any:
        return [
            [class_name(gdk.variable_of(each)), each.synchronization, each.aggregation]
            for each in keras.metrics.Mean().variables
        ]

    return in_scope(env.strategy, kinds)


def _accuracy(env: Environment) -> Any:
    accuracy = in_scope(env.strategy, keras.metrics.BinaryAccuracy)

    def update(x: Any) -> None:
        accuracy.update_state(array([[1.0], [1.0]]), jnp.reshape(x, (2, 1)))

    env.strategy.run(update, args=(_parts(env, [[1.0, 0.0], [1.0, 1.0]]),))
    return accuracy.result()


def _loss(**options: Any) -> Program:
    def of(x: Any) -> Any:
        return keras.losses.MeanSquaredError(**options)(jnp.zeros((2, 1)), jnp.reshape(x, (2, 1)))

    def program(env: Environment) -> Any:
        parts = _parts(env, [[1.0, 3.0], [5.0, 7.0]])
        return in_scope(env.strategy, lambda: env.strategy.run(of, args=(parts,)))

    return program


def _linear() -> Any:
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([dense])
    model.build((None, 1))
    return model


def _sgd(env: Environment) -> Any:
    with env.strategy.scope():
        model, optimizer = _linear(), keras.optimizers.SGD(0.1)
    variables = model.trainable_variables

    def step(x: Any) -> Any:
        def loss_of() -> Any:
            return jnp.sum((model(x) - 2.0 * x) ** 2) / 3.0

        loss, grads = gdk.value_and_grad(loss_of, variables)()
        optimizer.apply_gradients(zip(grads, variables, strict=True))
        return loss

    function = gd.function(lambda part: env.strategy.run(step, args=(part,)))
    losses = function(_parts(env, [[[1.0], [2.0]], [[3.0]]]))
    return [losses, model.get_weights()[0].tolist()]


def _sgd_variable_type(env: Environment) -> Any:
    return in_scope(env.strategy, lambda: class_name(gdk.variable_of(keras.Variable(1.0))))


def _column(first: int, rows: int) -> Any:
    return np.arange(first, first + rows, dtype=np.float32)[:, None]


def _fit(rows: int) -> Program:
    def program(env: Environment) -> Any:
        x = _column(1, rows)
        with env.strategy.scope():
            model = _linear()
            model.compile(keras.optimizers.SGD(0.001), "mse", metrics=["mae"])
        fitted = model.fit(x, 2 * x, batch_size=4, epochs=2, shuffle=False, verbose=0)
        return [fitted.history, model.get_weights()[0].tolist()]

    return program


def _predict(env: Environment) -> Any:
    model = in_scope(env.strategy, _linear)
    return model.predict(_column(0, 5), batch_size=4, verbose=0).ravel().tolist()


def _evaluate(env: Environment) -> Any:
    with env.strategy.scope():
        model = _linear()
        model.compile(loss="mse", metrics=["mae"])
    x = _column(1, 5)
    return [float(v) for v in model.evaluate(x, 2 * x, batch_size=4, verbose=0)]


def _batch_normalization(env: Environment) -> Any:
    with env.strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))
    parts = _parts(env, [[[0.0], [2.0]], [[10.0], [14.0]]])
    gd.function(lambda x: env.strategy.run(lambda y: layer(y, training=True), args=(x,)))(parts)
    return [weight.tolist() for weight in layer.get_weights()]


keras_family = from_table(
    {
        "metric_mean_replica_update": _metric(lambda: keras.metrics.Mean(), _result),
        "metric_sum_replica_update": _metric(lambda: keras.metrics.Sum(), _result),
        "metric_mean_in_function": _mean_in_function,
        "metric_created_outside_scope": lambda env: _updated(env, keras.metrics.Mean()).result(),
        "metric_result_in_replica": _metric(
            lambda: keras.metrics.Mean(),
            lambda env, metric: env.strategy.run(lambda: metric.result()),
        ),
        "metric_reset": _metric(lambda: keras.metrics.Mean(), _result_after_reset),
        "metric_variable_kinds": _variable_kinds,
        "metric_accuracy": _accuracy,
        "loss_default_reduction_in_replica": _loss(),
        "loss_sum_over_batch_reduction": _loss(reduction="sum_over_batch_size"),
        "sgd_apply_gradients": _sgd,
        "sgd_variable_type": _sgd_variable_type,
        "fit_linear_two_epochs": _fit(8),
        "fit_linear_partial_batch": _fit(6),
        "predict_partial_batch": _predict,
        "evaluate_partial_batch": _evaluate,
        "batch_norm_moving_stats": _batch_normalization,
    }
)
