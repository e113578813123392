"""Which strategy a model trains on, and the mistakes that are told."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import graphdist as gd
import graphdist.keras
from graphdist.keras.installed import require_jax
from graphdist.keras.models import strategy_of_model
from tests.keras.models import classifier, mirrored, rows
from tests.multi_worker.launch import environment


def plain() -> Any:
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, "softmax")], name="plain")


def test_the_scope_in_which_a_model_is_made_is_its_strategy() -> None:
    strategy = mirrored()
    with strategy.scope():
        sequential = plain()
        inputs = keras.Input((4,))
        functional = keras.Model(inputs, layers.Dense(1)(inputs))
    assert strategy_of_model(sequential) is strategy
    assert strategy_of_model(functional) is strategy
    assert strategy_of_model(plain()) is None


def test_the_scope_in_which_a_model_is_compiled_is_its_strategy() -> None:
    strategy, model = mirrored(), plain()
    with strategy.scope():
        model.compile("sgd", "mse")
    assert strategy_of_model(model) is strategy


def test_distribute_takes_the_open_scope_or_the_strategy() -> None:
    strategy = mirrored()
    assert graphdist.keras.distribute(plain(), strategy).name == "plain"
    model = plain()
    with strategy.scope():
        graphdist.keras.distribute(model)
    assert strategy_of_model(model) is strategy


def test_a_model_has_one_strategy() -> None:
    model = graphdist.keras.distribute(plain(), mirrored())
    with mirrored().scope(), pytest.raises(gd.errors.ContextError) as raised:
        model.compile("sgd", "mse")
    assert "model 'plain' belongs to" in str(raised.value)


def test_only_models_are_distributed() -> None:
    layer: Any = layers.Dense(1)
    with pytest.raises(gd.errors.ArgumentTypeError, match="takes a Keras model, not Dense"):
        graphdist.keras.distribute(layer, mirrored())


def test_a_model_made_outside_is_not_trained_in_a_scope_unless_it_is_compiled_there() -> None:
    model, (x, y) = plain(), rows(4)
    model.compile("sgd", "sparse_categorical_crossentropy")
    with mirrored().scope(), pytest.raises(gd.errors.ContextError) as raised:
        model.fit(x, y, verbose=0)
    assert "model 'plain' was made and compiled outside the scope" in str(raised.value)
    assert "graphdist.keras.distribute(model)" in str(raised.value)


def test_another_backend_is_refused() -> None:
    with pytest.raises(gd.errors.UnsupportedError, match="Keras runs on torch, graphdist on jax"):
        require_jax("torch")


@pytest.mark.long
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_another_backend_of_the_environment_is_refused(backend: str) -> None:
    command = [sys.executable, "-c", "import graphdist.keras"]
    variables = environment(KERAS_BACKEND=backend)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100)
    assert f"Keras runs on {backend}, graphdist on jax" in done.stderr
    assert "set KERAS_BACKEND=jax" in done.stderr


def test_a_model_with_its_own_functions_of_steps_is_refused() -> None:
    class Own(keras.Sequential):
        def make_train_function(self, force: bool = False) -> Any:
            return None

    with pytest.raises(gd.errors.UnsupportedError, match="Own has its own make_train_function"):
        graphdist.keras.distribute(Own(), mirrored())


def test_a_custom_step_that_sums_no_gradients_is_refused() -> None:
    class Still(keras.Sequential):
        def train_step(self, state: Any, data: Any) -> Any:
            return {"loss": 0.0}, state

    with mirrored().scope():
        model = Still([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(gd.errors.UnsupportedError) as raised:
        model.fit(rows(4)[0], np.ones((4, 1)), verbose=0)
    assert "train_step of Still does not call self.optimizer.stateless_apply" in str(raised.value)


def test_a_batch_smaller_than_the_replicas_is_told() -> None:
    with mirrored(4).scope():
        model = classifier()
    with pytest.warns(UserWarning, match=r"a batch of 2 rows for model .* leaves replicas without"):
        model.train_on_batch(*rows(2))


class Counter(layers.Layer):
    """Counts its calls in Python."""

    def __init__(self) -> None:
        super().__init__(name="counter")
        self.calls = 0

    def call(self, inputs: Any) -> Any:
        self.calls += 1
        return inputs


def test_a_layer_with_state_in_python_is_told() -> None:
    with mirrored().scope():
        model = classifier(Counter())
    with pytest.warns(UserWarning, match="layer 'counter' sets its attribute 'calls'"):
        model.train_on_batch(*rows(4))


def test_a_loop_of_ones_own_tells_nothing_of_state_in_python() -> None:
    layer = Counter()
    mirrored().run(lambda: layer(np.ones((2, 4), np.float32)))
    assert layer.calls


class Memory(layers.Layer):
    """Keeps its inputs in a list."""

    def __init__(self) -> None:
        super().__init__(name="memory")
        self.seen: list[Any] = []

    def call(self, inputs: Any) -> Any:
        self.seen.append(inputs)
        return inputs


def test_a_layer_that_keeps_values_in_a_list_is_told() -> None:
    with mirrored().scope():
        model = classifier(Memory())
    with pytest.warns(UserWarning, match="layer 'memory' sets its attribute 'seen'"):
        model.train_on_batch(*rows(4))


@pytest.mark.parametrize("kind", [layers.LSTM, lambda *_, **s: layers.RNN(layers.GRUCell(2), **s)])
def test_a_state_for_each_row_is_refused(kind: Any) -> None:
    with mirrored().scope():
        inputs = keras.Input((3, 2), batch_size=4)
        model = keras.Model(inputs, layers.Dense(1)(kind(2, stateful=True, name="rows")(inputs)))
        model.compile("sgd", "mse")
    with pytest.raises(gd.errors.UnsupportedError, match="layer 'rows' is stateful"):
        model.fit(np.ones((4, 3, 2)), np.ones((4, 1)), batch_size=4, verbose=0)


def test_run_eagerly_is_told() -> None:
    with mirrored().scope():
        model = classifier(run_eagerly=True)
    with pytest.warns(UserWarning, match="run_eagerly of model 'classifier' has no effect"):
        model.train_on_batch(*rows(4))


@pytest.mark.long
def test_a_saved_model_is_a_plain_one_and_trains_where_it_is_loaded(tmp_path: Path) -> None:
    x, y = rows()
    with mirrored().scope():
        model = classifier()
    model.fit(x, y, batch_size=8, verbose=0)
    model.save(tmp_path / "model.keras")
    elsewhere = keras.models.load_model(tmp_path / "model.keras")
    strategy = mirrored(3)
    with strategy.scope():
        again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is keras.Sequential
    assert strategy_of_model(elsewhere) is None
    assert strategy_of_model(again) is strategy
    histories = [
        each.fit(x, y, batch_size=8, verbose=0, shuffle=False).history
        for each in (model, elsewhere, again)
    ]
    for history in histories[1:]:
        np.testing.assert_allclose(history["loss"], histories[0]["loss"], rtol=1e-5)


def test_a_copied_model_is_no_part_of_the_strategy() -> None:
    with mirrored().scope():
        model = classifier()
    model.train_on_batch(*rows(4))
    twin = copy.deepcopy(model)
    assert strategy_of_model(twin) is None
    np.testing.assert_array_equal(twin.get_weights()[0], model.get_weights()[0])


def test_a_fit_inside_another_scope_is_refused() -> None:
    with mirrored().scope():
        model = classifier()
    with mirrored().scope(), pytest.raises(gd.errors.ContextError, match="do not mix"):
        model.fit(*rows(4), verbose=0)
