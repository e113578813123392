"""Models on replicas of two cores: the losses, outputs and weights of one device."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import graphdist as gd
import graphdist.keras
from tests.keras.models import MODELS, mirrored, trained

TWO_OF_TWO: dict[str, Any] = {"replicas": 4, "cores_per_replica": 2}
SHARDED = (None, "sharded")
CORES = {"*up/kernel": SHARDED, "*up/bias": ("sharded",), "*down/kernel": ("sharded", None)}


def shards_of(variable: Any) -> set[tuple[int, ...]]:
    held = graphdist.keras.variable_of(variable).stored.on_devices.held
    return {shard.data.shape for shard in held.addressable_shards}


def perceptron() -> Any:
    keras.utils.set_random_seed(1)
    hidden = [layers.Dense(16, "gelu", name="up"), layers.LayerNormalization()]
    model = keras.Sequential(
        [keras.Input((4,)), *hidden, layers.Dense(3, name="down")], name="perceptron"
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def used(strategy: gd.Strategy | None, cores: Any = None) -> dict[str, Any]:
    """Train, evaluate and predict, the last batches smaller than the others."""
    model = perceptron()
    if strategy is not None:
        graphdist.keras.distribute(model, strategy, cores=cores)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(22, 4)).astype("f"), random.integers(0, 3, 22)
    history = model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), verbose=0)
    return {
        "history": history.history,
        "evaluated": model.evaluate(x, y, batch_size=8, verbose=0),
        "predicted": model.predict(x, batch_size=8, verbose=0),
        "weights": model.get_weights(),
        "slots": [np.asarray(each) for each in model.optimizer.variables],
    }


def check_close(found: Any, expected: Any) -> None:
    for here, there in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("cores", [None, CORES, "auto"], ids=["mirrored", "sharded", "auto"])
def test_use_is_that_of_one_device(cores: Any) -> None:
    check_close(used(mirrored(**TWO_OF_TWO), cores), used(None))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in MODELS if name != "dropout"])
def test_models_train_on_replicas_of_two_cores(name: str) -> None:
    check_close(trained(MODELS[name], mirrored(**TWO_OF_TWO)), trained(MODELS[name], mirrored(2)))


def test_weights_and_slots_are_in_shards() -> None:
    with mirrored(**TWO_OF_TWO).scope():
        model = graphdist.keras.distribute(perceptron(), cores=CORES)
        model.fit(np.ones((4, 4), "f"), np.zeros(4, int), verbose=0)
    up, down = model.get_layer("up"), model.get_layer("down")
    assert [shards_of(each) for each in (up.kernel, up.bias, down.kernel, down.bias)] == [
        {(4, 8)},
        {(8,)},
        {(8, 3)},
        {(3,)},
    ]
    slots = {each.path.partition("/")[2]: shards_of(each) for each in model.optimizer.variables}
    assert (
        slots["perceptron_up_kernel_momentum"] == slots["perceptron_up_kernel_velocity"] == {(4, 8)}
    )
    assert np.asarray(up.kernel).shape == tuple(up.kernel.shape) == (4, 16)


def test_weights_are_saved_in_full(tmp_path: Any) -> None:
    with mirrored(**TWO_OF_TWO).scope():
        model = graphdist.keras.distribute(perceptron(), cores=CORES)
        model.fit(np.ones((4, 4), "f"), np.zeros(4, int), verbose=0)
    model.save_weights(tmp_path / "w.weights.h5")
    alone = perceptron()
    alone.optimizer.build(alone.trainable_variables)
    alone.load_weights(tmp_path / "w.weights.h5")
    check_close(alone.get_weights(), model.get_weights())
    model.set_weights([2 * each for each in alone.get_weights()])
    check_close(model.get_weights(), [2 * each for each in alone.get_weights()])
    assert shards_of(model.get_layer("up").kernel) == {(4, 8)}


def test_what_does_not_fit_is_refused() -> None:
    strategy, model = mirrored(**TWO_OF_TWO), perceptron()
    with pytest.raises(gd.ArgumentError, match=r"pattern 'up/kernel', and none of \d+ variables"):
        graphdist.keras.distribute(model, strategy, cores={"up/kernel": SHARDED})
    for wrong, message in (
        ({"*up/kernel": SHARDED, "*down/kernel": SHARDED}, "dimension 1 has 3 elements, which 2"),
        ({"*up/kernel": SHARDED, "*up/bias": SHARDED}, "for a shape of 1 dimensions"),
        ({"*up/kernel": (None, "split")}, "'split' is neither None nor 'sharded'"),
    ):
        with pytest.raises(gd.ArgumentError, match=message):
            graphdist.keras.distribute(model, strategy, cores=wrong)
    model.predict(np.ones((4, 4), "f"), verbose=0)
    assert shards_of(model.get_layer("up").kernel) == {(4, 16)}  # nothing was said


def test_a_model_without_weights_is_refused() -> None:
    model = keras.Sequential([layers.Dense(2)])
    with pytest.raises(gd.ContextError, match="the model has none yet"):
        graphdist.keras.distribute(model, mirrored(**TWO_OF_TWO), cores={"*": SHARDED})


def test_weights_in_use_stay_as_they_are() -> None:
    with mirrored(**TWO_OF_TWO).scope():
        model = perceptron()
        model.predict(np.ones((4, 4), "f"), verbose=0)
        with pytest.raises(
            gd.ContextError, match=r"'perceptron/up/kernel' is stored on .* already"
        ):
            graphdist.keras.distribute(model, cores=CORES)
