"""Models of a model's layers, made outside the scope, and nested logs of a custom step."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import graphdist as gd
from graphdist.keras.models import strategy_of_model
from tests.keras.models import mirrored, scope_of

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = X[:, :1]


@pytest.fixture(scope="module")
def trained() -> Any:
    with mirrored(2).scope():
        model = keras.Sequential(
            [keras.Input((2,)), layers.Dense(3, name="hidden"), layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    model.train_on_batch(X, Y)
    return model


@pytest.mark.filterwarnings(r"ignore:[\s\S]*structure of `inputs`")
def test_a_model_of_a_models_layers_predicts_outside_the_scope(trained: Any) -> None:
    part = keras.Model(trained.inputs, trained.get_layer("hidden").output)
    kernel, bias = trained.get_layer("hidden").get_weights()
    for found in (part.predict(X, verbose=0), part.predict_on_batch(X), part(X)):
        np.testing.assert_allclose(found, X @ kernel + bias, rtol=1e-5)
    assert strategy_of_model(part) is strategy_of_model(trained)


@pytest.mark.long
def test_new_layers_on_those_of_a_model_train_on_its_strategy(trained: Any) -> None:
    model = keras.Sequential([trained.get_layer("hidden"), layers.Dense(2)])
    model.compile("sgd", "mse")
    before = trained.get_layer("hidden").get_weights()[0]
    model.fit(X, np.ones((6, 2)), verbose=0)
    assert (before != trained.get_layer("hidden").get_weights()[0]).any()
    assert np.isfinite(model.evaluate(X, np.ones((6, 2)), verbose=0))


class OfTheGuide(keras.Model):
    """The custom step of Keras's guide for JAX: the metrics of `compile` are one dictionary."""

    def loss_of(self, trainable: Any, others: Any, x: Any, y: Any) -> Any:
        predicted, others = self.stateless_call(trainable, others, x, training=True)
        return self.compute_loss(x, y, predicted), (predicted, others)

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, slots, old = state
        x, y = data[:2]
        gradient = jax.value_and_grad(self.loss_of, has_aux=True)
        (loss, (predicted, others)), grads = gradient(trainable, others, x, y)
        trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
        new: list[Any] = []
        logs = {}
        for metric in self.metrics:
            of_metric = old[len(new) : len(new) + len(metric.variables)]
            given = (loss,) if metric.name == "loss" else (y, predicted)
            of_metric = metric.stateless_update_state(of_metric, *given)
            logs[metric.name] = metric.stateless_result(of_metric)
            new += of_metric
        return self.logged(logs, loss), (trainable, others, slots, new)

    def logged(self, logs: dict[str, Any], loss: Any) -> dict[str, Any]:
        return logs


class WithNumbers(OfTheGuide):
    """Logs numbers in a dictionary, too."""

    def logged(self, logs: dict[str, Any], loss: Any) -> dict[str, Any]:
        return {**logs, "mine": {"twice": loss * 2, "deep": {"thrice": loss * 3}}}


class OnlyTheLoss(OfTheGuide):
    """Logs the loss of the batch, and updates no metric."""

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, slots, metrics = state
        gradient = jax.value_and_grad(self.loss_of, has_aux=True)
        (loss, (_, others)), grads = gradient(trainable, others, *data[:2])
        trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
        return {"loss": loss}, (trainable, others, slots, metrics)


def history(kind: type[OfTheGuide], strategy: gd.Strategy | None) -> Any:
    """Return what a user sees of a training, in which replicas have 2 rows and 1."""
    keras.utils.set_random_seed(1)
    with scope_of(strategy):
        inputs = keras.Input((2,))
        model = kind(inputs, layers.Dense(1)(inputs))
        model.compile("adam", "mse", metrics=["mae", "mse"])
    fitted = model.fit(X, Y, batch_size=3, epochs=2, verbose=0)
    return fitted.history, model.train_on_batch(X[:3], Y[:3], return_dict=True)


@pytest.mark.long
@pytest.mark.parametrize("kind", [OfTheGuide, WithNumbers, OnlyTheLoss])
def test_logs_of_a_custom_step_are_those_of_one_device(kind: type[OfTheGuide]) -> None:
    alone, together = (history(kind, each) for each in (None, mirrored(2)))
    assert list(together[0]) == list(alone[0])
    for here, there in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-5)
