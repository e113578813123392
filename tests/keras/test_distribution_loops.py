"""Callbacks, loops and state: what a user does around a model under a strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

import graphdist as gd
import graphdist.keras
from graphdist.keras.placed_variables import is_placed
from tests.keras.distribution import Batches, covers, numbers, slices
from tests.keras.models import mirrored


def dense(**compiled: Any) -> Any:
    with mirrored(2).scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        model.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    return model


@pytest.mark.long
@covers(
    "test_host_training_loop",
    "test_host_training_loop_last_partial_execution",
    "test_host_training_loop_truncate_to_epoch",
)
@pytest.mark.parametrize(
    ("steps", "begun", "ended"),
    [(5, [0, 5], [4, 9]), (4, [0, 4, 8], [3, 7, 9]), (50, [0], [9])],
)
def test_callbacks_are_called_once_an_execution(
    steps: int, begun: list[int], ended: list[int]
) -> None:
    model, counted = dense(steps_per_execution=steps), Batches()
    x, y = numbers(20, 4), numbers(20, 1)
    options = {"batch_size": 2, "callbacks": [counted], "verbose": 0}
    model.fit(x, y, epochs=2, **options)
    model.evaluate(x, y, **options)
    model.predict(x, **options)
    assert counted.begun == {"train": 2 * begun, "test": begun, "predict": begun}
    last = {"train": 2 * ended, "test": ended, "predict": ended}
    # Keras says which batch would be the last of the execution, also where fewer are left.
    assert {name: [min(end, 9) for end in ends] for name, ends in counted.ended.items()} == last


@covers("test_host_training_loop_dataset_unknown_size")
@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_executions_of_a_dataset_of_unknown_size() -> None:
    model, counted = dense(steps_per_execution=4), Batches()
    rows = slices(numbers(20, 4), numbers(20, 1)).filter(lambda *row: True).batch(2)
    model.fit(rows.repeat(2), steps_per_epoch=10, epochs=2, callbacks=[counted], verbose=0)
    assert counted.begun["train"] == [0, 4, 8, 0, 4, 8]
    model.evaluate(rows.repeat(2), steps=10, callbacks=[counted], verbose=0)
    assert counted.begun["test"] == [0, 4, 8]
    assert int(model.optimizer.iterations) == 20


@covers("testOptimizerWithCallbacks")
def test_a_callback_sets_the_learning_rate() -> None:
    model = dense()
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.001)
    model.fit(numbers(4, 4), numbers(4, 1), callbacks=[schedule], verbose=0)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.001)


@covers("test_operator_overload_mixed_precision")
def test_gradients_by_variables_that_are_cast() -> None:
    class Sum(layers.Layer):
        def build(self, shape: Any) -> None:
            self.v1, self.v2 = (self.add_weight(shape=()) for _ in range(2))

        def call(self, inputs: Any) -> Any:
            return self.v2 + (inputs + self.v1)

    strategy = mirrored(2)
    with strategy.scope():
        layer = Sum(dtype="mixed_float16")
        layer.build((1,))

    def step() -> Any:
        variables = [layer.v1, layer.v2]
        return graphdist.keras.value_and_grad(lambda: jnp.sum(layer(jnp.ones(1))), variables)()

    value, grads = strategy.run(step)
    assert value.values[0].dtype == jnp.float16
    assert [grad.values[1].tolist() for grad in grads] == [1.0, 1.0]


@covers("test_correctness_of_add_loss_with_merge_call")
def test_losses_that_layers_add_are_kept_over_a_merge_call() -> None:
    class Squared(layers.Layer):
        def call(self, labels: Any, predicted: Any) -> Any:
            self.add_loss(jnp.mean((labels - predicted) ** 2))
            return predicted

    strategy = mirrored(2)
    with strategy.scope():
        inputs, labels = keras.Input((1,)), keras.Input((1,))
        hidden = layers.Dense(1)(layers.Dense(4, "relu")(inputs))
        model = keras.Model([inputs, labels], Squared()(labels, hidden))
        optimizer = keras.optimizers.SGD(0.2)

    def step(x: Any, y: Any) -> Any:
        def loss_of() -> Any:
            predicted = model([x, y])
            gd.get_replica_context().merge_call(lambda strategy: None)
            (added,) = model.losses
            return jnp.mean((y - predicted) ** 2) / 2, added / 2

        variables = model.trainable_variables
        (loss, added), grads = graphdist.keras.value_and_grad(loss_of, variables, has_aux=True)()
        optimizer.apply(grads, variables)
        return loss, added

    rows = slices(numbers(8, 1), 3 * numbers(8, 1)).batch(4)
    function = gd.function(lambda x, y: strategy.run(step, args=(x, y)))
    totals = []
    for _ in range(2):
        for x, y in strategy.experimental_distribute_dataset(rows):
            loss, added = function(x, y)
            np.testing.assert_array_equal(loss.values, added.values)
            totals.append(sum(map(float, loss.values)))
    assert totals[-1] < totals[0]


class OnItsStrategy(keras.Model):
    """Multiplies by one weight, and refuses to run under another strategy than its own."""

    def __init__(self, strategy: gd.Strategy) -> None:
        super().__init__()
        self.strategy = strategy

    def build(self, shape: Any) -> None:
        self.x = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs: Any) -> Any:
        # Keras calls it once outside, to find out shapes.
        assert gd.get_strategy() is self.strategy or not gd.has_strategy()
        return self.x * inputs


@covers("ModelCapturesStrategy.test_fit_and_evaluate")
def test_a_model_keeps_the_strategy_it_was_made_in() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model, optimizer = OnItsStrategy(strategy), keras.optimizers.Adam(1e-4)
    model.compile(optimizer, "mse", metrics=["binary_accuracy"])
    assert int(model.optimizer.iterations) == 0
    ones = np.ones((16, 1), np.float32)
    model.fit(ones, ones, batch_size=8, epochs=2, verbose=0)
    found = model.evaluate(ones, ones, return_dict=True, verbose=0)
    assert (found["binary_accuracy"], found["loss"]) == (1.0, 0.0)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    assert all(is_placed(each) for each in variables)
    with strategy.scope():
        owners = {graphdist.keras.variable_of(each).strategy for each in variables}
    assert owners == {strategy}
    with mirrored(2).scope():  # a metric that another strategy uses is refused when it is trained
        metric = keras.metrics.BinaryAccuracy()
        graphdist.keras.variable_of(metric.variables[0])
    model.compile(optimizer, "mse", metrics=[metric])
    with pytest.raises(gd.errors.ContextError, match="Keras variable 'binary_accuracy"):
        model.fit(ones, ones, verbose=0)


@covers("test_optimizer")
def test_weights_of_a_model_without_a_strategy_are_loaded(tmp_path: Path) -> None:
    def make() -> Any:
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    one = np.ones((2, 1), np.float32)
    alone = make()
    alone.fit(one, one, verbose=0)
    alone.save(tmp_path / "model.keras")
    alone.save_weights(tmp_path / "model.weights.h5")
    with mirrored(2).scope():
        together, again = make(), keras.models.load_model(tmp_path / "model.keras")
    together.load_weights(tmp_path / "model.weights.h5")
    assert int(again.optimizer.iterations) == 1
    histories = [each.fit(one, one, epochs=2, verbose=0).history for each in (alone, again)]
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-5)
    assert all(is_placed(each) for each in again.optimizer.variables)
    loss = together.evaluate(one, one, verbose=0)
    assert loss == pytest.approx(histories[0]["loss"][0], rel=1e-5)
