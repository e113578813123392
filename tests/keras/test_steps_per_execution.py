"""`steps_per_execution`: one program runs several steps, with the results of single ones.

Executions of one step and of several are compared to the bit where XLA rounds both programs alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import graphdist as gd
import graphdist.keras
from graphdist.keras import steps
from tests.keras.models import batches, classifier, mirrored, rows

pytestmark = pytest.mark.filterwarnings("ignore:.*(shuffle=True|ran out of data)")

ROWS = 60  # in batches of 7: 8 batches, and a last batch of 4 rows


def assert_same(one: Any, other: Any, tolerance: float = 0) -> None:
    for here, there in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(here, there, rtol=tolerance, atol=tolerance)


def fitted(model: Any, **arguments: Any) -> list[Any]:
    """Train, evaluate and predict; return everything that the user gets."""
    x, y = rows(ROWS)
    given = {"batch_size": 7, "epochs": 2, "verbose": 0, **arguments}
    history = model.fit(x, y, **given).history
    evaluated = model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True)
    return [history, evaluated, model.predict(x, batch_size=7, verbose=0), model.get_weights()]


def same_as_single_steps(
    program: Callable[..., Any], replicas: int = 2, several: Any = 3, tolerance: float = 0
) -> None:
    """Compare what a program returns that compiles with `steps_per_execution=1` and several."""
    results = []
    for number in (1, several):
        keras.utils.set_random_seed(1)
        with mirrored(replicas).scope():
            results.append(program(steps_per_execution=number))
    single, joined = results
    assert_same(single, joined, tolerance)


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_with_equal_and_unequal_rows(replicas: int) -> None:
    same_as_single_steps(lambda **given: fitted(classifier(**given)), replicas)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*leaves replicas without any")
def test_replicas_without_rows() -> None:
    same_as_single_steps(lambda **given: fitted(classifier(**given), batch_size=2, epochs=1), 4)


LAYERS: dict[str, Callable[[], Any]] = {
    "dropout": lambda: layers.Dropout(0.5, seed=3),
    "normalized": layers.BatchNormalization,
    "normalized by all rows": graphdist.keras.SynchronizedBatchNormalization,
    "regularized": lambda: layers.Dense(4, kernel_regularizer="l2"),
    "adding losses": lambda: layers.ActivityRegularization(l2=0.1),
    "frozen": lambda: layers.Dense(4, trainable=False),
    "recurrent": lambda: keras.Sequential([layers.Reshape((4, 2)), layers.GRU(3)]),
    "convolutions": lambda: keras.Sequential(
        [layers.Reshape((4, 2)), layers.Conv1D(3, 2), layers.Flatten()]
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    same_as_single_steps(lambda **given: fitted(classifier(LAYERS[name](), **given)))


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "scheduled": lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 12)),
    "averaged": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=5),
    "accumulating": lambda: keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2),
    "scaling losses": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(), dynamic_growth_steps=4
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    def program(**given: Any) -> Any:
        model = classifier(optimizer=OPTIMIZERS[name](), **given)
        return fitted(model), [np.asarray(each) for each in model.optimizer.variables]

    # A moving average of the weights is fused differently in a loop.
    same_as_single_steps(program, tolerance=1e-6 if name == "averaged" else 0)


@pytest.mark.long
def test_mixed_precision() -> None:
    def program(**given: Any) -> Any:
        keras.config.set_dtype_policy("mixed_float16")
        try:
            return fitted(classifier(**given))
        finally:
            keras.config.set_dtype_policy("float32")

    same_as_single_steps(program)


@pytest.mark.long
def test_weights_of_rows_and_classes_and_validation() -> None:
    def program(**given: Any) -> Any:
        model = classifier(weighted_metrics=["accuracy"], **given)
        weights, (x, y) = np.linspace(0, 1, ROWS), rows(50)
        return [
            fitted(model, sample_weight=weights, validation_data=(x, y, weights[:50])),
            fitted(model, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, validation_split=0.3),
            model.train_on_batch(x, y),
            model.test_on_batch(x[:9], y[:9]),
            model.predict_on_batch(x[:9]),
            fitted(model),
        ]

    same_as_single_steps(program)


@pytest.mark.long
def test_several_inputs_and_outputs() -> None:
    def program(**given: Any) -> Any:
        left, right = keras.Input((2,), name="left"), keras.Input((2,), name="right")
        joined = layers.Concatenate()([layers.Dense(3)(left), right])
        outputs = {"a": layers.Dense(1, name="a")(joined), "b": layers.Dense(2, name="b")(joined)}
        model = keras.Model({"left": left, "right": right}, outputs)
        model.compile("sgd", {"a": "mse", "b": "mae"}, **given)
        x, _ = rows(ROWS)
        named, targets = {"left": x[:, :2], "right": x[:, 2:]}, {"a": x[:, :1], "b": x[:, 1:3]}
        history = model.fit(named, targets, batch_size=7, epochs=2, verbose=0).history
        return history, model.predict(named, batch_size=7, verbose=0)

    same_as_single_steps(program)


class OwnStep(keras.Sequential):
    """A model with the custom step that Keras documents for JAX, and nested logs."""

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state
        x, y = data[:2]

        def loss_of(trainable: Any, others: Any) -> Any:
            predicted, others = self.stateless_call(trainable, others, x)
            return self.compute_loss(x, y, predicted), others

        (loss, others), grads = jax.value_and_grad(loss_of, has_aux=True)(trainable, others)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        logs = {"mine": loss * 2, "more": {"largest": jax.numpy.max(x)}}
        return logs, (trainable, others, optimizer, metrics)


@pytest.mark.long
def test_a_custom_step_logs_its_last_batch() -> None:
    logged: list[Any] = []

    def program(**given: Any) -> Any:
        model = OwnStep([keras.Input((4,)), layers.Dense(3, "softmax")])
        model.compile("adam", "sparse_categorical_crossentropy", **given)
        logs: list[Any] = []
        keep = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs=logs, kept=logs: kept.append(logs)
        )
        model.fit(*rows(ROWS), batch_size=7, verbose=0, callbacks=[keep])
        logged.append(logs)
        return model.get_weights()

    same_as_single_steps(program)
    single, joined = logged
    assert_same(single[2::3], joined)


@pytest.mark.long
@pytest.mark.parametrize("options", [{"shard_update": True}, {"shard_parameters": True}], ids=str)
def test_sharded_state(options: Any) -> None:
    results = []
    for number in (1, 3):
        with mirrored(2, **options).scope():
            results.append(fitted(classifier(steps_per_execution=number)))
    single, joined = results
    assert_same(single, joined)


@pytest.mark.long
def test_datasets_of_graphdist() -> None:
    def program(**given: Any) -> Any:
        dataset = gd.data.Dataset.from_tensor_slices(rows(ROWS)).batch(7)
        distributed = gd.get_strategy().experimental_distribute_dataset(dataset)
        model = classifier(**given)
        return [
            model.fit(each, epochs=2, verbose=0).history
            for each in (dataset, distributed, dataset.filter(lambda x, y: True))
        ]

    same_as_single_steps(program)


@pytest.mark.long
def test_a_generator_may_change_its_arrays_after_it_has_given_them() -> None:
    def reusing() -> Iterator[Any]:
        x, y = np.empty((7, 4), np.float32), np.empty(7, np.int32)
        for new_x, new_y in list(batches(ROWS))[:-1]:
            x[...], y[...] = new_x, new_y
            yield x, y
            x[...], y[...] = np.nan, 0

    def program(**given: Any) -> Any:
        return classifier(**given).fit(reusing(), verbose=0).history

    same_as_single_steps(program)


@pytest.mark.long
def test_batches_before_a_failure_are_trained_on() -> None:
    def failing() -> Iterator[Any]:
        for index, batch in enumerate(batches(ROWS)):
            if index == 5:
                raise OSError("no more disk")
            yield batch

    def program(**given: Any) -> Any:
        model = classifier(**given)
        with pytest.raises(OSError, match="no more disk"):
            model.fit(failing(), verbose=0)
        return int(model.optimizer.iterations), model.get_weights()

    same_as_single_steps(program)


@pytest.mark.long
def test_what_changes_between_executions_takes_effect() -> None:
    class Changing(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 6:
                self.model.optimizer.learning_rate = 0.5
                self.model.set_weights([weight * 0.9 for weight in self.model.get_weights()])

    def program(**given: Any) -> Any:
        model = classifier(optimizer="sgd", **given)
        first = fitted(model, callbacks=[Changing()])
        model.optimizer.learning_rate = 0.01
        second = fitted(model)
        model.layers[0].trainable = False
        model.compile("sgd", "sparse_categorical_crossentropy", **given)
        return first, second, fitted(model)

    same_as_single_steps(program)


@pytest.mark.long
@pytest.mark.parametrize("when", ["between", "during"])
def test_other_trainable_weights_without_compiling_again_are_told(when: str) -> None:
    with mirrored(2).scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(4)], name="two")
        model.compile("sgd", "mse", steps_per_execution=3)

    def freeze(batch: int, logs: Any = None) -> None:
        model.layers[0].trainable = batch < 3

    x, _ = rows(ROWS)
    if when == "between":
        model.fit(x, x, verbose=0)
        freeze(3)
    callback = keras.callbacks.LambdaCallback(on_train_batch_begin=freeze)
    expected = "have changed during" if when == "during" else "'two' has other variables"
    with pytest.raises(gd.errors.ArgumentError, match=expected):
        model.fit(x, x, batch_size=7, verbose=0, callbacks=[callback])
    model.compile("sgd", "mse", steps_per_execution=3)
    frozen = model.layers[0].get_weights()
    model.fit(x, x, batch_size=7, verbose=0)
    assert_same(frozen, model.layers[0].get_weights())
    model.layers[0].trainable = True
    assert model.evaluate(x, x, verbose=0) > 0


@pytest.mark.parametrize("number", [1, 3])
def test_an_output_that_is_equal_on_all_replicas_has_all_rows(number: int) -> None:
    with mirrored(2).scope():
        inputs = keras.Input((4,))
        outputs = [layers.Dense(2)(inputs), layers.Lambda(keras.ops.ones_like)(inputs)]
        model = keras.Model(inputs, outputs)
        model.compile("sgd", steps_per_execution=number)
    predicted = model.predict(rows(ROWS)[0], batch_size=8, verbose=0)
    assert [array.shape for array in predicted] == [(ROWS, 2), (ROWS, 4)]


@pytest.mark.long
def test_a_model_is_compiled_again_saved_and_loaded(tmp_path: Path) -> None:
    names = iter("ab")

    def program(**given: Any) -> Any:
        number = given["steps_per_execution"]
        model = classifier(**given)
        results = [fitted(model)]
        file = tmp_path / f"{next(names)}.keras"
        model.save(file)
        loaded = keras.models.load_model(file)
        assert loaded.steps_per_execution == number
        results += [fitted(model), fitted(loaded)]
        model.steps_per_execution = 2 * number
        results.append(fitted(model))
        model.compile("adam", "sparse_categorical_crossentropy", steps_per_execution=number + 1)
        return [*results, fitted(model)]

    same_as_single_steps(program)


@pytest.mark.long
def test_training_stops_after_the_execution_in_which_a_callback_says_so() -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 5

    iterations = []
    for callback in (Stop(), keras.callbacks.TerminateOnNaN()):
        with mirrored(2).scope():
            model = classifier(optimizer="sgd", steps_per_execution=3)
        x, y = rows(ROWS)
        if not isinstance(callback, Stop):
            x[25] = np.nan  # in the fourth batch
        model.fit(x, y, batch_size=7, epochs=3, shuffle=False, verbose=0, callbacks=[callback])
        iterations.append(int(model.optimizer.iterations))
    assert iterations == [6, 6]


@pytest.mark.long
def test_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "steps_worth", lambda seconds: 4)
    same_as_single_steps(lambda **given: fitted(classifier(**given)), several="auto")
