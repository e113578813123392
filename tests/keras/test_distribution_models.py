"""Kinds of models under a strategy: precision, losses, metrics and optimizers are of all rows."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from tests.keras.distribution import Pair, covers, numbers, slices
from tests.keras.models import mirrored


def trained(x: Any, y: Any = None, **options: Any) -> Any:
    """Return the program that trains, evaluates and predicts."""
    given = {"batch_size": 8, "verbose": 0, **options}

    def program(model: Any) -> Any:
        history = model.fit(x, y, shuffle=False, **given).history
        return history, model.evaluate(x, y, **given), model.predict(x, **given)

    return program


def on_scalars(*made: Any) -> Any:
    return keras.Sequential([keras.Input((1,)), *made])


@covers("test_calling_model_with_mixed_precision")
def test_mixed_precision_ends_in_float32() -> None:
    def make() -> Any:
        dense = layers.Dense(4, dtype="mixed_float16")
        return keras.Sequential([keras.Input((3,)), dense, layers.Softmax(dtype="float32")])

    program = trained(numbers(16, 3), numbers(16, 4))
    predicted = Pair(make, optimizer="sgd", loss="mse").same(program)[2]
    assert predicted.dtype == np.float32


@covers("test_no_target_model", "test_distribution_strategy_with_symbolic_add_loss")
def test_a_model_without_targets() -> None:
    class Adds(layers.Layer):
        def call(self, inputs: Any) -> Any:
            self.add_loss(ops.mean(inputs))
            return inputs

    def make() -> Any:
        return keras.Sequential([keras.Input((10,)), layers.Dense(4, "relu"), Adds()])

    Pair(make, optimizer="sgd").same(trained(numbers(16, 10)))


@covers("test_fit_with_dictionary_in_the_dataset_b135161171")
def test_a_loss_of_several_inputs_of_a_dict() -> None:
    class Loss(layers.Layer):
        def call(self, predicted: Any, label: Any, weight: Any) -> Any:
            each = keras.losses.binary_crossentropy(label, ops.sigmoid(predicted))
            self.add_loss(ops.mean(each * weight))
            return predicted

    def make() -> Any:
        shapes = {"image": (4, 4, 3), "label": (4, 4, 1), "weight": (4, 4)}
        inputs = {name: keras.Input(shape, name=name) for name, shape in shapes.items()}
        predicted = layers.Conv2D(1, 1)(inputs["image"])
        return keras.Model(inputs, Loss()(predicted, inputs["label"], inputs["weight"]))

    arrays = {"image": numbers(8, 4, 4, 3), "weight": numbers(8, 4, 4) ** 2}
    rows = slices({**arrays, "label": (numbers(8, 4, 4, 1) > 0).astype(np.float32)}).batch(4)
    Pair(make, optimizer="adam").same(lambda model: model.fit(rows, verbose=0).history)


@covers("test_gradients_are_none")
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_weight_that_is_not_used_stays() -> None:
    class Extra(layers.Dense):
        def build(self, shape: Any) -> None:
            self.extra = self.add_weight(shape=(), initializer="ones")
            super().build(shape)

    def program(model: Any) -> Any:
        before = model.layers[0].kernel.numpy()
        model.fit(numbers(16, 4), numbers(16, 4), batch_size=8, shuffle=False, verbose=0)
        assert not np.allclose(before, model.layers[0].kernel)
        assert float(model.layers[0].extra.value) == 1.0
        return model.get_weights()

    def make() -> Any:
        return keras.Sequential([keras.Input((4,)), Extra(4)])

    Pair(make, optimizer="adam", loss="mse").same(program)


@pytest.mark.long
@covers("test_fit_eval_and_predict_with_optimizer")
@pytest.mark.parametrize(
    "name",
    ["adadelta", "adagrad", "adam", "adamax", "ftrl", "nadam", "rmsprop", "sgd", "lion", "adamw"],
)
def test_optimizers(name: str) -> None:
    def program(model: Any) -> Any:
        model.fit(x, x, batch_size=4, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    x = numbers(8, 1)
    Pair(lambda: on_scalars(layers.Dense(1)), optimizer=name, loss="mse").same(program)


@covers("test_learning_phase_value")
def test_layers_know_whether_the_model_trains() -> None:
    # Of a row of ones and weights of ones a layer that drops nearly all leaves nothing.
    with mirrored(2).scope():
        model = on_scalars(layers.Dense(1, kernel_initializer="ones"), layers.Dropout(0.9999))
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    x = np.ones((16, 1), np.float32)
    history = model.fit(x, x, batch_size=8, epochs=3, verbose=0).history
    assert min(history["mae"]) == 1.0
    assert model.evaluate(x, x, batch_size=8, verbose=0) == [0.0, 0.0]
    assert model.predict(x, batch_size=8, verbose=0).tolist() == x.tolist()


@covers("test_regularizer_loss", "test_distribution_strategy_with_callable_add_loss")
def test_a_loss_of_a_weight_counts_once() -> None:
    class Add(layers.Layer):
        def build(self, shape: Any) -> None:
            self.v = self.add_weight(shape=(), initializer="ones", regularizer=lambda value: value)

        def call(self, inputs: Any) -> Any:
            return inputs + self.v

    x = np.ones((2, 1), np.float32)

    def program(model: Any) -> Any:
        model.fit(x, x, batch_size=2, verbose=0)
        return model.get_weights()

    # The loss is 1 + 2 v, so that a step of 1 makes v -1.
    pair = Pair(lambda: on_scalars(Add()), optimizer="sgd", loss=lambda _, y: ops.mean(y))
    for model in pair.models:
        model.optimizer.learning_rate = 1.0
    assert pair.same(program) == [-1.0]


@pytest.mark.long
@covers(
    "test_distribution_strategy_on_sequential_model",
    "test_distribution_strategy_on_functional_model",
)
@pytest.mark.parametrize("kind", ["sequential", "functional", "subclassed"])
def test_kinds_of_models(kind: str) -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(2, "relu")

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

    def make() -> Any:
        if kind == "sequential":
            return keras.Sequential([layers.Dense(2, "relu")])
        inputs = keras.Input((3,))
        made = layers.Dense(2, "relu")
        return Own() if kind == "subclassed" else keras.Model(inputs, made(inputs))

    program = trained(numbers(16, 3), numbers(16, 2))
    Pair(make, optimizer="sgd", loss="mse").same(program)


class Difference(layers.Layer):
    """Three times the difference of two weights."""

    def build(self, shape: Any) -> None:
        self.v1 = self.add_weight(shape=(), initializer="ones")
        self.v2 = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs: Any) -> Any:
        return 0 * inputs + 3 * self.v1 - 3 * self.v2


@covers("test_gradient_clipping")
def test_the_gradient_of_all_rows_is_clipped() -> None:
    x = np.ones((8, 1), np.float32)

    for replicas in (1, 2):
        with mirrored(replicas).scope():
            model = on_scalars(Difference())
            model.compile(keras.optimizers.SGD(1.0, clipvalue=2.0), "mae")
        model.fit(x, x, batch_size=8, verbose=0)
        assert model.get_weights() == [3.0, -1.0]


@covers("test_custom_gradient_transformation")
def test_an_optimizer_that_changes_gradients() -> None:
    class Signed(keras.optimizers.SGD):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            super().update_step(ops.ones_like(gradient), variable, learning_rate)

    x = np.ones((8, 1), np.float32)
    for strategy in (mirrored(1), mirrored(2)):
        with strategy.scope():
            model = on_scalars(Difference())
            model.compile(Signed(1.0), "mae")
        model.fit(x, x, batch_size=8, verbose=0)
        assert model.get_weights() == [0.0, 0.0]


@pytest.mark.long
@covers("test_distribution_strategy_one_dimensional")
def test_classes_are_of_one_dimension() -> None:
    def make() -> Any:
        return keras.Sequential([keras.Input((10,)), layers.Dense(3, "softmax")])

    x, y = numbers(16, 10), np.arange(16) % 3
    metrics = ["sparse_categorical_accuracy"]
    loss = "sparse_categorical_crossentropy"
    Pair(make, optimizer="sgd", loss=loss, metrics=metrics).same(trained(x, y))


@covers("test_distribution_strategy_with_loss_reduction_types")
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean"])
def test_reductions_of_losses(reduction: str) -> None:
    x, y = numbers(8, 1), numbers(8, 1)
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    pair = Pair(lambda: on_scalars(layers.Dense(1)), optimizer="sgd", loss=loss)
    pair.same(trained(x, y, batch_size=4))


def size(values: Any) -> Any:
    return ops.sum(ops.abs(values), -1)


class Sized(layers.Layer):
    """Adds a loss of the size of its inputs."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def call(self, inputs: Any) -> Any:
        self.add_loss(self.scale * ops.mean(size(inputs)))
        return inputs


class Measured(keras.Model):
    """Counts the sizes of a hidden layer and of the outputs in metrics of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.hidden, self.last = keras.metrics.Mean("hidden"), keras.metrics.Mean("last")

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.hidden.update_state(size(y_pred["hidden"]))
        self.last.update_state(size(y_pred["last"]))
        return super().compute_metrics(x, y, y_pred, sample_weight)


@pytest.mark.long
@covers(
    "test_distribution_strategy_with_add_metric_in_call",
    "test_distribution_strategy_with_add_metric_object",
    "test_distribution_strategy_with_add_metric_outside_call",
    "MultipleAddLossAndMetricCalls.test_fit_and_evaluate",
)
@pytest.mark.parametrize("is_reused", [False, True])
def test_metrics_and_losses_of_hidden_values(is_reused: bool) -> None:
    def make() -> Any:
        inputs = keras.Input((4,))
        base = keras.Sequential([keras.Input((4,)), layers.Dense(4, "relu")])
        hidden = base(inputs) - base(ops.zeros_like(inputs)) if is_reused else base(inputs)
        last = Sized(0.01)(layers.Dense(3)(Sized(0.1)(hidden)))
        return Measured(inputs, {"hidden": hidden, "last": last})

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    crossentropy = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="entropy")
    pair = Pair(make, optimizer="sgd", loss={"last": loss})
    x, y = numbers(16, 4), np.arange(16) % 3
    pair.same(trained(x, y))
    found = pair.models[1].evaluate(x, y, batch_size=8, return_dict=True, verbose=0)
    crossentropy.update_state(y, pair.models[1].predict(x, verbose=0)["last"])
    total = 0.1 * found["hidden"] + 0.01 * found["last"] + float(crossentropy.result())
    assert found["loss"] == pytest.approx(total, rel=1e-4)
