"""Data for `fit`, `evaluate` and `predict` under a strategy: arrays, datasets, partial batches."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import graphdist as gd
from tests.keras.distribution import Batches, Pair, covers, numbers, slices
from tests.keras.models import mirrored

pytestmark = pytest.mark.filterwarnings("ignore:.*was compiled 8 times")  # tests share a model


def one_output() -> Any:
    return keras.Sequential([keras.Input((3,)), layers.Dense(4)])


def two_outputs() -> Any:
    a, b = keras.Input((3,), name="input_a"), keras.Input((5,), name="input_b")
    return keras.Model([a, b], [layers.Dense(7)(a), layers.Dense(7)(b)])


@functools.cache
def made_pair() -> Pair:
    metrics = ["mae", "categorical_accuracy"]
    return Pair(one_output, optimizer="sgd", loss="mse", metrics=metrics)


@pytest.fixture
def pair() -> Pair:
    return made_pair().begun_again()


@pytest.fixture(scope="module")
def pair_of_two() -> Pair:
    return Pair(two_outputs, optimizer="sgd", loss="mse")


def evaluated(x: Any, y: Any = None, **options: Any) -> Any:
    """Return the program that evaluates a model, and counts batches."""

    def program(model: Any) -> Any:
        counted = Batches()
        found = model.evaluate(x, y, verbose=0, callbacks=[counted], **options)
        return found, len(counted.ended["test"])

    return program


@pytest.mark.long
@covers(
    "test_calculating_input_params_no_steps_no_batch_size",
    "test_calculating_input_params_with_steps_no_batch_size",
    "test_calculating_input_params_no_steps_with_batch_size",
    "test_calculating_input_params_with_steps_with_batch_size",
)
@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize(
    ("rows", "steps", "batch_size", "expected"),
    [
        (64, None, None, 2),
        (20, None, None, 1),
        (64, 1, None, 1),
        (64, 2, None, 2),
        (64, None, 16, 4),
        (64, 5, 4, 5),
        (64, 4, 32, 2),  # there are not enough rows: Keras warns, and takes those that are there
    ],
)
def test_how_many_batches_there_are(
    pair: Pair, rows: int, steps: int | None, batch_size: int | None, expected: int
) -> None:
    x, y = numbers(rows, 3), numbers(rows, 4)
    assert pair.same(evaluated(x, y, steps=steps, batch_size=batch_size))[1] == expected


@covers("test_calling_model_with_numpy_arrays")
def test_arrays(pair: Pair) -> None:
    x, y = numbers(32, 3), numbers(32, 4)

    def program(model: Any) -> Any:
        fitted = model.fit(x, y, batch_size=8, shuffle=False, validation_data=(x, y), verbose=0)
        evaluations = [model.evaluate(x, y, batch_size=size, verbose=0) for size in (8, 32)]
        predictions = [model.predict(x, batch_size=size, verbose=0) for size in (8, 32)]
        return fitted.history, evaluations, predictions

    pair.same(program)


@pytest.mark.long
@covers(
    "test_calling_model_with_nested_numpy_arrays",
    "test_flatten_predict_outputs",
    "test_predict_multi_output_model_with_partial_batch",
    "test_predict_multi_output_model_with_dataset_with_partial_batch",
)
def test_lists_of_arrays_and_of_outputs(pair_of_two: Pair) -> None:
    x, y = [numbers(10, 3), numbers(10, 5)], [numbers(10, 7), numbers(10, 7)]
    by_name = slices({"input_a": x[0], "input_b": x[1]}).batch(4)

    def program(model: Any) -> Any:
        fitted = model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        evaluation = model.evaluate(x, y, batch_size=4, verbose=0)
        predicted = [model.predict(x, batch_size=4, verbose=0), model.predict(by_name, verbose=0)]
        return fitted.history, evaluation, predicted

    for outputs in pair_of_two.same(program)[2]:
        assert [output.shape for output in outputs] == [(10, 7), (10, 7)]


@covers("test_fit_with_tuple_and_dict_dataset_inputs")
def test_datasets_of_tuples_and_of_dicts(pair_of_two: Pair) -> None:
    a, b, y = numbers(8, 3), numbers(8, 5), numbers(8, 7)
    of_tuples = slices((a, b), (y, y)).repeat().batch(4)
    of_dicts = slices({"input_a": a, "input_b": b}, (y, y)).repeat().batch(4)

    def program(model: Any) -> Any:
        fit = [model.fit(each, steps_per_epoch=2, verbose=0) for each in (of_tuples, of_dicts)]
        return [each.history for each in fit]

    pair_of_two.same(program)


@covers("test_match_model_input_matches_with_dataset_tensors")
def test_inputs_are_matched_by_name() -> None:
    def make(named: bool) -> Any:
        last, first = keras.Input((2,), name="z_last"), keras.Input((3,), name="a_first")
        joined = layers.Dense(2)(layers.Concatenate()([last, first]))
        return keras.Model({"z_last": last, "a_first": first} if named else [last, first], joined)

    rows = slices({"z_last": numbers(8, 2), "a_first": numbers(8, 3)}, numbers(8, 2)).batch(4)
    histories = []
    for named in (True, False):
        keras.utils.set_random_seed(1)
        with mirrored(2).scope():
            model = make(named)
            model.compile("sgd", "mse")
        histories.append(model.fit(rows, verbose=0).history)
    assert histories[0] == histories[1]


@covers("test_numpy_with_sample_weights", "test_dataset_with_sample_weights")
def test_weights_of_rows() -> None:
    def make() -> Any:
        return keras.Sequential([keras.Input((1,)), layers.Dense(1, kernel_initializer="ones")])

    pair = Pair(make, optimizer="rmsprop", loss="mse")
    x, y = np.arange(4.0, dtype=np.float32)[:, None], np.array([[2], [4], [6], [8]], np.float32)
    weights = np.array([0.25, 0.5, 0.75, 1.0], np.float32)
    # Squares of 2, 3, 4 and 5; of two batches with weights (1 + 4.5) / 2 and (12 + 25) / 2.
    for found, expected in (
        (pair.same(evaluated(x, y, batch_size=2, sample_weight=weights)), 10.625),
        (pair.same(evaluated(slices(x, y, weights).batch(2))), 10.625),
        (pair.same(evaluated(x, y, batch_size=2)), 13.5),
        (pair.same(evaluated(slices(x, y).batch(2))), 13.5),
    ):
        assert found == (pytest.approx(expected), 2)


@pytest.mark.long
@covers(
    "test_evaluate_with_partial_batch",
    "test_predict_with_partial_batch",
    "test_evaluate_with_dataset_with_partial_batch",
    "test_predict_with_dataset_with_partial_batch",
)
@pytest.mark.parametrize("size", [4, 6])
def test_partial_batches(pair: Pair, size: int) -> None:
    x, y = numbers(10, 3), numbers(10, 4)
    steps = -(-len(x) // size)

    def program(model: Any) -> Any:
        of_arrays = {"batch_size": size, "verbose": 0}
        return [
            [model.evaluate(x, y, **of_arrays), model.evaluate(x, y, steps=steps, **of_arrays)],
            model.evaluate(slices(x, y).batch(size), verbose=0),
            [model.predict(x, **of_arrays), model.predict(x, steps=steps, **of_arrays)],
            model.predict(slices(x).batch(size), verbose=0),
        ]

    (first, *others), evaluated, *_ = pair.same(program)
    whole = pair.models[0].evaluate(x, y, batch_size=10, verbose=0)
    for each in (first, *others, evaluated):
        np.testing.assert_allclose(each, whole, rtol=1e-5)


@covers("test_calling_model_on_same_dataset", "test_fit_eval_and_predict_methods_on_dataset")
def test_a_dataset_is_used_again(pair: Pair) -> None:
    x, y = numbers(8, 3), numbers(8, 4)
    rows = slices(x, y).repeat().batch(4)

    def program(model: Any) -> Any:
        steps = {"steps_per_epoch": 2, "validation_data": rows, "validation_steps": 2}
        histories = [model.fit(rows, verbose=0, **steps).history for _ in range(2)]
        evaluation = model.evaluate(rows, steps=2, verbose=0)
        return histories, evaluation, model.predict(slices(x).repeat().batch(4), steps=2, verbose=0)

    assert pair.same(program)[2].shape == (8, 4)


@covers("test_model_interleaved_eval_same_as_direct_eval")
def test_validation_is_the_same_as_evaluation(pair: Pair) -> None:
    model, rows = pair.models[1], slices(numbers(8, 3), numbers(8, 4)).batch(4)
    history = model.fit(rows, epochs=2, validation_data=rows, verbose=0).history
    pair.begun_again()
    names = ("loss", "mae", "categorical_accuracy")
    for epoch in range(2):
        model.fit(rows, verbose=0)
        found = model.evaluate(rows, verbose=0, return_dict=True)
        assert [history[f"val_{name}"][epoch] for name in names] == [found[name] for name in names]


@covers(
    "test_fit_eval_and_predict_methods_on_dataset_without_steps",
    "test_predict_on_dataset_with_unknown_cardinality_without_steps",
    "test_on_dataset_with_unknown_cardinality_without_steps",
    "test_on_dataset_with_unknown_cardinality",
)
@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize("is_known", [True, False])
def test_a_dataset_is_the_same_as_arrays(pair: Pair, is_known: bool) -> None:
    x, y = numbers(12, 3), numbers(12, 4)

    def dataset(*tensors: Any) -> Any:
        rows = slices(*tensors)
        return (rows if is_known else rows.filter(lambda *row: True)).batch(4)

    assert (dataset(x).cardinality() == -2) is not is_known
    model = pair.models[1]
    found: list[Any] = []
    for data, targets, options in ((x, y, {"batch_size": 4}), (None, None, {})):
        pair.begun_again()
        rows, inputs = (dataset(x, y), dataset(x)) if data is None else (x, x)
        fitted = model.fit(rows, targets, epochs=2, shuffle=False, verbose=0, **options)
        found.append(
            [
                list(fitted.history.values()),
                model.evaluate(rows, targets, verbose=0, **options),
                model.predict(inputs, verbose=0, **options).tolist(),
            ]
        )
    assert found[0] == found[1]


@covers("test_dataset_wrong_input_shape")
def test_rows_of_another_shape_are_refused(pair: Pair) -> None:
    rows = slices(numbers(8, 5), numbers(8, 4)).batch(4)
    with pytest.raises(ValueError, match="incompatible"):
        pair.models[1].fit(rows, verbose=0)


@covers("test_dataset_external_batch_input_validation")
def test_elements_may_be_batches_already(pair: Pair) -> None:
    rows = slices(numbers(3, 4, 3), numbers(3, 4, 4))
    assert pair.same(evaluated(rows))[1] == 3


@pytest.mark.filterwarnings("ignore:.*ran out of data")  # Keras says so where it saw no end coming
@covers("test_predict_on_dataset_shard_options_file_multi_worker_mirrored")
def test_one_file_is_read_in_full_on_a_worker(tmp_path: Path) -> None:
    rows = numbers(10, 3)
    np.savetxt(tmp_path / "rows.txt", rows)
    strategy = gd.MultiWorkerMirroredStrategy(devices=["cpu:0", "cpu:1"])
    with strategy.scope():
        model = one_output()
        model.compile("sgd", "mse")

    def read(path: str) -> Iterator[Any]:
        for line in Path(path).read_text().splitlines():
            yield np.array(line.split(), np.float32)

    dataset = gd.data.Dataset.from_files([str(tmp_path / "rows.txt")], read)
    predicted = model.predict(dataset.batch(4), verbose=0)
    np.testing.assert_allclose(predicted, model.predict(rows, batch_size=4, verbose=0), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*ran out of data")
@covers("test_distributed_dataset", "test_distributed_datasets_from_function")
@pytest.mark.parametrize("is_from_function", [False, True])
def test_distributed_datasets(pair: Pair, is_from_function: bool) -> None:
    from graphdist.keras.models import strategy_of_model

    strategy: Any = strategy_of_model(pair.models[1])
    x, y = numbers(16, 3), numbers(16, 4)

    def distributed(size: int) -> Any:
        if is_from_function:  # the elements are the replicas' own
            return strategy.distribute_datasets_from_function(
                lambda context: slices(x, y).batch(size // 2)
            )
        return strategy.experimental_distribute_dataset(slices(x, y).batch(size))

    def program(model: Any) -> Any:
        is_alone = model is pair.models[0]
        rows, others = (
            slices(x, y).batch(size) if is_alone else distributed(size) for size in (4, 8)
        )
        counted = Batches()
        fitted = model.fit(rows, validation_data=others, epochs=2, callbacks=[counted], verbose=0)
        batches = {name: len(ended) for name, ended in counted.ended.items()}
        assert (batches["train"], batches["test"], counted.epochs) == (8, 4, 2)
        return fitted.history

    pair.same(program)


@pytest.mark.long
@pytest.mark.parametrize("targets", ["numbers", "a column of numbers", "scores"])
def test_weights_of_classes_hold_for_datasets(targets: str) -> None:
    x, classes = numbers(20, 3), np.arange(20) % 3
    y: Any = {
        "numbers": classes,
        "a column of numbers": classes[:, None],
        "scores": np.eye(4, dtype=np.float32)[classes],
    }[targets]
    kind = "categorical_crossentropy" if targets == "scores" else "sparse_categorical_crossentropy"
    weights = {0: 0.5, 2: 3.0}
    losses = []
    for strategy in (None, mirrored(2)):
        keras.utils.set_random_seed(1)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model = keras.Sequential([keras.Input((3,)), layers.Dense(4, "softmax")])
            model.compile("sgd", kind)
        given = (x, y) if strategy is None else (slices(x, y).batch(8),)
        options: Any = {"batch_size": 8, "shuffle": False} if strategy is None else {}
        history = model.fit(*given, epochs=2, verbose=0, class_weight=weights, **options).history
        losses.append(history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
