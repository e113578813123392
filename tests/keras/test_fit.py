"""What users of Keras do around `fit`, under a strategy and without one."""

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
from tests.keras.models import classifier, mirrored, rows, scope_of

Result = Any


def same(program: Callable[[], Result], tolerance: float = 1e-5) -> tuple[Result, Result]:
    """Run a program on two replicas and without a strategy, and compare what it returns."""
    results = []
    for strategy in (None, mirrored(2)):
        with scope_of(strategy):
            results.append(program())
    alone, together = results
    for here, there in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(here, there, rtol=tolerance, atol=tolerance)
    return alone, together


def fitted(model: Any, **arguments: Any) -> dict[str, Any]:
    given = {"batch_size": 7, "epochs": 2, "verbose": 0, **arguments}
    history: dict[str, Any] = model.fit(*rows(), **given).history
    return history


def test_collectives_of_fit_have_the_line_that_calls_fit() -> None:
    with scope_of(mirrored(2)):
        model, (x, y) = classifier(), rows()
        model.fit(x, y, batch_size=8, verbose=0)
    traced = model.train_function.program.latest
    (collective,) = traced.lower().collectives
    frame = collective.source.frame
    assert frame.file == __file__
    assert frame.text == "model.fit(x, y, batch_size=8, verbose=0)"
    products = [node for node in traced.graph.nodes if node.op.name == "jax.dot_general"]
    files = [[each.file for each in node.source.frames] for node in products]
    assert all("keras" in inner[0] and inner[-1] == __file__ for inner in files)


@pytest.mark.long
def test_on_batch() -> None:
    def program() -> Result:
        model, (x, y) = classifier(), rows()
        return [
            model.train_on_batch(x[:5], y[:5]),
            model.test_on_batch(x[:3], y[:3]),
            model.predict_on_batch(x[:3]),
        ]

    same(program)


@pytest.mark.long
def test_class_weight_and_validation() -> None:
    def program() -> Result:
        weights = {0: 1.0, 1: 2.0, 2: 0.5}
        return fitted(classifier(), class_weight=weights, validation_split=0.3)

    same(program)


@pytest.mark.long
@pytest.mark.parametrize("steps", [2, 3])
def test_steps_per_execution(steps: int) -> None:
    def program() -> Result:
        model = classifier(steps_per_execution=steps)
        return fitted(model), model.predict(rows()[0], batch_size=7, verbose=0)

    same(program)


@pytest.mark.long
def test_callbacks(tmp_path: Path) -> None:
    def program() -> Result:
        folder = tmp_path / gd.get_strategy().__class__.__name__
        losses: list[float] = []
        callbacks = [
            keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras"),
            keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
            keras.callbacks.BackupAndRestore(folder / "backup"),
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: losses.append(float(logs["loss"]))
            ),
        ]
        model = classifier()
        history = fitted(model, callbacks=callbacks)
        saved = keras.models.load_model(folder / "2.keras")
        return history, losses, saved.get_weights(), saved.evaluate(*rows(), verbose=0)

    same(program)


@pytest.mark.long
def test_callbacks_that_set_weights_and_rates() -> None:
    def program() -> Result:
        average = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        model = classifier(optimizer=keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5))
        averaged = fitted(model, callbacks=[average], validation_data=rows())
        plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9.0)
        reduced = classifier(optimizer="sgd")
        fitted(reduced, epochs=3, callbacks=[plateau, keras.callbacks.TerminateOnNaN()])
        return averaged, model.get_weights(), float(reduced.optimizer.learning_rate)

    assert same(program)[1][2] < 0.01


@pytest.mark.needs("tensorboard")
def test_tensorboard_writes_what_it_writes_on_one_device(tmp_path: Path) -> None:
    import tensorflow

    def scalars(folder: Path, tags: set[str]) -> dict[str, list[float]]:
        """Return the scalars that were written, but for the speed; note all tags."""
        found: dict[str, list[float]] = {}
        for file in sorted(folder.glob("*/events*")):
            for event in tensorflow.compat.v1.train.summary_iterator(str(file)):
                for value in event.summary.value:
                    tags.add(f"{file.parent.name}/{value.tag}")
                    array = tensorflow.make_ndarray(value.tensor)
                    if array.dtype == np.float32 and "per_second" not in value.tag:
                        found.setdefault(f"{file.parent.name}/{value.tag}", []).append(float(array))
        return found

    def program(folder: Path) -> Result:
        callback = keras.callbacks.TensorBoard(folder, histogram_freq=1, update_freq=2)
        fitted(classifier(), callbacks=[callback], validation_data=rows())
        return scalars(folder, tags)

    tags: set[str] = set()
    folders = iter("ab")
    _, written = same(lambda: program(tmp_path / next(folders)))
    assert {"train/epoch_loss", "train/batch_loss", "validation/epoch_accuracy"} <= set(written)
    assert len(written["train/epoch_loss"]) == 2
    assert any("kernel/histogram" in tag for tag in tags)


@pytest.mark.long
def test_training_is_resumed_from_a_backup(tmp_path: Path) -> None:
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

    def program(folder: Path) -> Result:
        backup = keras.callbacks.BackupAndRestore(folder)
        with pytest.raises(KeyboardInterrupt):
            fitted(classifier(), epochs=4, callbacks=[backup, Stop()])
        resumed = classifier()
        history = fitted(resumed, epochs=4, callbacks=[keras.callbacks.BackupAndRestore(folder)])
        return history, resumed.get_weights()

    strategies = iter("ab")
    history, _ = same(lambda: program(tmp_path / next(strategies)))[1]
    assert len(history["loss"]) < 4


@pytest.mark.long
def test_a_callback_reads_and_writes_weights_after_each_batch() -> None:
    class Shrink(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.set_weights([weight * 0.9 for weight in self.model.get_weights()])

    def program() -> Result:
        model = classifier()
        return fitted(model, callbacks=[Shrink()]), model.get_weights()

    same(program)


@pytest.mark.long
def test_weights_optimizer_and_layers_may_change_between_fits() -> None:
    def program() -> Result:
        model = classifier()
        histories = [fitted(model)]
        model.set_weights([weight / 2 for weight in model.get_weights()])
        histories.append(fitted(model))
        model.layers[0].trainable = False
        model.compile("sgd", "sparse_categorical_crossentropy")
        histories.append(fitted(model))
        return histories, model.get_weights()

    same(program)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "clipped": lambda: keras.optimizers.AdamW(1e-2, clipnorm=0.1),
    "averaged": lambda: keras.optimizers.SGD(
        0.1, momentum=0.9, global_clipnorm=0.1, use_ema=True, ema_overwrite_frequency=2
    ),
    "accumulating": lambda: keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2),
    "scheduled": lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 6)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_see_the_gradient_of_the_global_batch(name: str) -> None:
    def program() -> Result:
        model = classifier(optimizer=OPTIMIZERS[name]())
        return fitted(model), model.get_weights()

    same(program)


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "rounds", "tolerance"),
    [
        ("mixed_bfloat16", True, 1e-5),
        ("mixed_bfloat16", False, 5e-4),  # Keras by itself rounds each value
        ("mixed_float16", False, 1e-5),
    ],
)
def test_mixed_precision(
    policy: str, rounds: bool, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rounds:
        monkeypatch.setattr("graphdist.runtime.cpu_operations.chains_of_bfloat16", lambda graph: {})

    def program() -> Result:
        keras.config.set_dtype_policy(policy)
        try:
            return fitted(classifier(auto_scale_loss=True))
        finally:
            keras.config.set_dtype_policy("float32")

    same(program, tolerance)


class Addition(layers.Layer):
    """Adds a loss of its inputs."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(keras.ops.mean(inputs**2))
        return inputs


@pytest.mark.long
def test_losses_of_layers() -> None:
    same(lambda: fitted(classifier(Addition(), layers.ActivityRegularization(l2=0.1))))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*(shuffle=True|ran out of data)")
def test_datasets_of_keras_and_generators() -> None:
    x, y = rows()

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            chosen = slice(6 * index, 6 * index + 6)
            return x[chosen], y[chosen]

    def generated() -> Iterator[Any]:
        for start in range(0, len(x), 6):
            yield x[start : start + 6], y[start : start + 6]

    def program() -> Result:
        model = classifier()
        histories = [model.fit(data, verbose=0).history for data in (generated(), Batches())]
        return histories, model.predict(Batches(), verbose=0)

    same(program)


@pytest.mark.long
def test_inputs_by_name_and_numbers_of_steps() -> None:
    x, y = rows()

    def program() -> Result:
        keras.utils.set_random_seed(1)
        left, right = keras.Input((2,), name="left"), keras.Input((2,), name="right")
        joined = layers.Concatenate()([layers.Dense(3)(left), right])
        model = keras.Model({"left": left, "right": right}, layers.Dense(3, "softmax")(joined))
        model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
        named = {"left": x[:, :2], "right": x[:, 2:]}
        history = model.fit(
            named,
            y,
            batch_size=5,
            epochs=2,
            steps_per_epoch=2,
            validation_data=(named, y, np.linspace(0, 1, len(y))),
            validation_steps=3,
            verbose=0,
        )
        return history.history, model.evaluate(named, y, batch_size=5, steps=2, verbose=0)

    same(program)


class OwnStep(keras.Model):
    """A model with the custom step that Keras documents for JAX."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3, "softmax")

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def loss_of(self, trainable: Any, others: Any, x: Any, y: Any) -> Any:
        predicted, others = self.stateless_call(trainable, others, x)
        return self.compute_loss(x, y, predicted), others

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state
        gradient = jax.value_and_grad(self.loss_of, has_aux=True)
        (loss, others), grads = gradient(trainable, others, *data[:2])
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        return {"mine": loss * 2}, (trainable, others, optimizer, metrics)


@pytest.mark.long
def test_a_custom_train_step() -> None:
    def program() -> Result:
        keras.utils.set_random_seed(1)
        model = OwnStep()
        model.compile("adam", "sparse_categorical_crossentropy")
        return fitted(model), model.get_weights()

    same(program)


def test_each_replica_drops_others_and_replica_0_what_one_device_drops() -> None:
    # From weights of zeros and one row of ones a replica, a step leaves in each weight the target
    # of the replicas that kept it.
    def weights(strategy: gd.Strategy | None, targets: Any) -> Any:
        with scope_of(strategy):
            kernel = layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            model = keras.Sequential([keras.Input((1000,)), layers.Dropout(0.5, seed=3), kernel])
            model.compile(keras.optimizers.SGD(0.5), "mse")
        model.train_on_batch(np.ones((len(targets), 1000), np.float32), np.array(targets)[:, None])
        return np.round(model.get_weights()[0][:, 0])

    of_both = weights(mirrored(2), [1.0, 10.0])
    assert {0, 1, 10, 11} == set(of_both)
    np.testing.assert_array_equal(of_both % 10 == 1, weights(None, [1.0]) > 0)
    assert 0.4 < np.mean((of_both % 10 == 1) == (of_both >= 10)) < 0.6


def test_batch_normalization_is_per_replica_and_averages_are_means() -> None:
    with mirrored(2).scope():
        layer = layers.BatchNormalization(momentum=0.5)
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile("sgd", "mse")
    x = np.array([[0.0], [2.0], [10.0], [14.0], [0.0]], np.float32)
    model.train_on_batch(x[:4], x[:4])
    # The means of the replicas are 1 and 12, their variances 1 and 4.
    np.testing.assert_allclose(layer.moving_mean, [0.5 * 6.5])
    np.testing.assert_allclose(layer.moving_variance, [0.5 + 0.5 * 2.5])
    model.train_on_batch(x[2:3] * 0 + 4, x[:1])  # a replica without rows does not count
    np.testing.assert_allclose(layer.moving_mean, [0.5 * 3.25 + 0.5 * 4])


def test_a_sum_that_the_models_own_loss_calls_is_over_the_global_batch() -> None:
    total = keras.losses.MeanSquaredError(reduction="sum")

    class Own(keras.Sequential):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **options: Any) -> Any:
            return total(y, y_pred)

    def weights() -> list[Any]:
        keras.utils.set_random_seed(1)
        model = Own([keras.Input((4,)), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01))
        x, y = rows(7)
        model.train_on_batch(x, y[:, None].astype(np.float32))
        return list(model.get_weights())

    same(weights)
