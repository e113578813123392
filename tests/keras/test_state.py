"""Where the values of a model are stored during `fit`, and what of the program is seen."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from graphdist.keras.batches import split
from graphdist.keras.models import placement_of
from graphdist.keras.state import ModelState
from tests.keras.models import classifier, mirrored, rows


def state_of(model: Any) -> ModelState:
    state = placement_of(model)._state
    assert state is not None
    return state


def wide(strategy: Any) -> Any:
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(4096), layers.Dense(8)])
        model.compile("adam", "mse")
    return model


def bytes_on_a_device(model: Any, variables: list[Any]) -> int:
    """Return what the first device holds of these variables of Keras during `fit`."""
    held = [each.variable.storage.held for each in state_of(model).held(variables)]
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
        bytes_held[replicas] = [bytes_on_a_device(model, each) for each in (slots, kernels)]
    assert bytes_held[1][0] == 2 * 4096 * 4 * 5  # two moments of a kernel and a bias
    assert [2 * each for each in bytes_held[2]] == bytes_held[1]


def test_keras_keeps_no_values_during_an_epoch() -> None:
    with mirrored().scope():
        model = classifier()
    kept = []

    def look(batch: int, logs: Any) -> None:
        kept.append(sum(each._value is not None for each in model.variables))

    watch = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    model.fit(*rows(), batch_size=8, verbose=0, callbacks=[watch])
    assert kept == [0, 0, 0]


def test_values_that_keras_did_not_change_are_not_copied_again() -> None:
    with mirrored().scope():
        model = classifier()
    model.fit(*rows(), batch_size=8, verbose=0)
    state = state_of(model)
    held = state.held(list(model.variables))
    values = [each.keras.value for each in held]
    assert all(each.is_current(value) for each, value in zip(held, values, strict=True))
    model.layers[0].kernel.assign(model.layers[0].kernel * 2)
    assert not held[0].is_current(model.layers[0].kernel.value)


def test_variables_that_a_model_no_longer_has_are_forgotten() -> None:
    with mirrored().scope():
        model = classifier()
    model.fit(*rows(8), verbose=0)
    before = len(state_of(model)._held)
    for _ in range(2):
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(*rows(8), verbose=0)
    assert len(state_of(model)._held) == before


def test_a_step_has_one_all_reduce_for_gradients_and_metrics() -> None:
    with mirrored().scope() as strategy:
        model = classifier()
        model.train_on_batch(*rows(8))
        lowered = model.train_function.program.trace(split((*rows(8), None), strategy)).lower()
    assert [collective.kind for collective in lowered.collectives] == ["all_reduce"]
