"""Where the values of a model are stored during `fit`, and what of the program is seen."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import keras
import pytest
from keras import layers

import graphdist as gd
from graphdist.keras.placed_variables import placed_variable
from graphdist.keras.stacked_batches import split
from tests.keras.models import classifier, mirrored, rows


def wide(strategy: Any) -> Any:
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(4096), layers.Dense(8)])
        model.compile("adam", "mse")
    return model


def bytes_on_a_device(variables: list[Any]) -> int:
    """Return what the first device holds of these variables of Keras."""
    held = [placed_variable(each).variable.storage.held for each in variables]
    first = [shard.data for array in held for shard in array.addressable_shards[:1]]
    return sum(array.nbytes for array in first)


def test_the_state_of_the_optimizer_is_in_slices() -> None:
    x = rows(8)[0]
    bytes_held = {}
    for replicas in (1, 2):
        model = wide(mirrored(replicas, shard_update=replicas > 1, shard_parameters=replicas > 1))
        model.fit(x, x[:, :1] * [[1.0] * 8], verbose=0)
        slots = [each for each in model.optimizer.variables if each.shape[-1:] == (4096,)]
        kernels = [model.layers[0].kernel, model.layers[1].kernel]
        bytes_held[replicas] = [bytes_on_a_device(each) for each in (slots, kernels)]
    assert bytes_held[1][0] == 2 * 4096 * 4 * 5  # two moments of a kernel and a bias
    assert [2 * each for each in bytes_held[2]] == bytes_held[1]


def test_keras_holds_no_values_of_a_model_on_a_strategy() -> None:
    with mirrored().scope():
        model = classifier()
    model.fit(*rows(), batch_size=8, verbose=0)
    model.get_weights()
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    assert not [each.path for each in variables if any(map(takes_memory, vars(each).values()))]


def takes_memory(value: Any) -> bool:
    return isinstance(value, jax.Array) and not value.is_deleted()


@pytest.mark.long
def test_keras_copies_no_value_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    with mirrored().scope():
        model = classifier()
    model.fit(*rows(), batch_size=8, verbose=0)
    read: list[str] = []
    whole = gd.Variable.read_value

    def noted(variable: gd.Variable) -> Any:
        read.append(variable.name)
        return whole(variable)

    monkeypatch.setattr(gd.Variable, "read_value", noted)
    model.fit(*rows(), batch_size=8, epochs=3, verbose=0)
    assert not read
    model.layers[0].get_weights()
    assert read == [each.path for each in model.layers[0].weights]


@pytest.mark.long
def test_variables_that_a_model_no_longer_has_are_released() -> None:
    with mirrored().scope():
        model = classifier()
    model.fit(*rows(8), verbose=0)
    slots = [weakref.ref(placed_variable(each).variable) for each in model.optimizer.variables]
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(*rows(8), verbose=0)
    gc.collect()
    assert not [slot for slot in slots if slot() is not None]


def test_a_step_has_one_all_reduce_for_gradients_and_metrics() -> None:
    with mirrored().scope() as strategy:
        model = classifier()
        model.train_on_batch(*rows(8))
        lowered = model.train_function.program.trace(split((*rows(8), None), strategy)).lower()
    assert [collective.kind for collective in lowered.collectives] == ["all_reduce"]
