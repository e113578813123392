"""Objects of Keras in scheduled functions: the numbers of one device, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import graphdist as gd
import graphdist.keras
from graphdist.coordinator import ClusterCoordinator

X = np.arange(12, dtype=np.float32).reshape(6, 2) / 10
Y = X[:, :1]


@pytest.fixture(scope="module")
def strategy() -> Iterator[gd.ParameterServerStrategy]:
    made = gd.ParameterServerStrategy(num_workers=1, num_servers=1)
    yield made
    made.shutdown()


def training(strategy: gd.Strategy) -> tuple[Any, Any, Any]:
    """Return a step, and what a user reads of the training."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((2,)),
                layers.Dense(3, "relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.2, seed=1),
                layers.Dense(1),
            ]
        )
        optimizer, mean = keras.optimizers.Adam(0.1), keras.metrics.Mean()
        optimizer.build(model.trainable_variables)
        loss_of = keras.losses.MeanSquaredError()

    @gd.function
    def step(x: Any, y: Any) -> Any:
        def replica(x: Any, y: Any) -> Any:
            def loss() -> Any:
                return loss_of(y, model(x, training=True))

            value, grads = graphdist.keras.value_and_grad(loss, model.trainable_variables)()
            optimizer.apply(grads, model.trainable_variables)
            mean.update_state(value)
            return value

        return strategy.run(replica, args=(x, y))

    def seen() -> list[Any]:
        return [*model.get_weights(), mean.result(), optimizer.iterations, model(X)]

    return step, seen, model


@pytest.mark.long
def test_a_scheduled_step_of_keras_is_that_of_one_device(strategy: Any) -> None:
    coordinator = ClusterCoordinator(strategy)
    step, seen, _ = training(strategy)
    losses = [coordinator.schedule(step, args=(X, Y)) for _ in range(3)]
    coordinator.join()
    alone, seen_alone, _ = training(gd.OneDeviceStrategy("cpu:0"))
    expected = [float(alone(X, Y)) for _ in range(3)]
    np.testing.assert_allclose([float(loss.fetch()) for loss in losses], expected, rtol=1e-5)
    for here, there in zip(seen_alone(), seen(), strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-5)


@pytest.mark.long
def test_fit_is_refused(strategy: Any) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), layers.Dense(1)], name="scores")
        model.compile("sgd", "mse")
    with pytest.raises(gd.errors.UnsupportedError) as raised:
        model.fit(X, Y, verbose=0)
    assert "fit is synchronous, and would run in this process and use no worker" in str(raised)
    assert "ClusterCoordinator(strategy).schedule" in raised.value.hint


@pytest.mark.long
@pytest.mark.parametrize("kind", ["layer", "optimizer"])
def test_what_is_not_built_is_refused(strategy: Any, kind: str) -> None:
    with strategy.scope():
        layer, optimizer = layers.Dense(1, name="dense"), keras.optimizers.SGD(name="sgd")
    used = {"layer": layer, "optimizer": optimizer}[kind]
    with pytest.raises(gd.errors.ArgumentError) as raised:
        ClusterCoordinator(strategy).schedule(gd.function(lambda: str(used)))
    assert f"uses {kind} '{used.name}' of Keras, which has no variables yet" in str(raised.value)
    assert "inside strategy.scope(): " in raised.value.hint
