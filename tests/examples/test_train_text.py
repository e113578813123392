"""The text example trains, and its losses are those of one device without graphdist."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import train_text
from train_text import Settings

import graphdist as gd

SMALL = Settings(steps=25, batch_size=8, context=16, layers=1, width=32, learning_rate=1e-2)


def train_plain(settings: Settings, steps: int) -> list[float]:
    """Train on one device with JAX alone, and return the bits per character of every step."""
    characters, text = train_text.load_text()
    optimizer = train_text.make_optimizer(settings)
    params = train_text.init_params(jax.random.key(settings.seed), settings, len(characters))
    state = optimizer.init(params)

    @jax.jit
    def step(
        params: optax.Params, state: optax.OptState, batch: jax.Array
    ) -> tuple[optax.Params, optax.OptState, jax.Array]:
        loss, grads = jax.value_and_grad(train_text.loss_fn)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    bits = []
    for batch, _ in zip(train_text.windows(text, settings), range(steps), strict=False):
        params, state, loss = step(params, state, batch)
        bits.append(float(loss) / math.log(2))
    return bits


@pytest.mark.long
def test_bits_fall_as_on_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    bits, params = train_text.train(gd.MirroredStrategy(["cpu:0", "cpu:1"]), SMALL)
    assert len(bits) == SMALL.steps
    np.testing.assert_allclose(bits[:10], train_plain(SMALL, 10), rtol=1e-5)
    assert bits[0] == pytest.approx(math.log2(len(train_text.load_text()[0])), rel=0.02)
    assert np.mean(bits[-5:]) < 5.5
    assert "step   25   " in capsys.readouterr().out

    prompt = jnp.asarray(train_text.load_text()[1][: SMALL.context])
    written = train_text.sample(params, prompt, jax.random.key(0), length=3)
    assert written.shape == (3,)


@pytest.mark.long
def test_first_steps_are_synchronous_and_the_variables_go_on() -> None:
    settings = replace(SMALL, steps=10)
    devices = ["cpu:0", "cpu:1"]
    expected, _ = train_text.train(gd.MirroredStrategy(devices), settings)
    local = gd.MirroredStrategy(devices, sync_every=3)
    bits, params = train_text.train(
        local, settings, first=gd.MirroredStrategy(devices), first_steps=4
    )
    np.testing.assert_array_equal(bits[:4], expected[:4])
    # The first local step begins from what the synchronous ones have reached.
    np.testing.assert_allclose(bits[4], expected[4], rtol=1e-5)
    assert bits[5:] != expected[5:]
    assert len(bits) == 10
    assert jax.tree.all(jax.tree.map(lambda leaf: bool(jnp.isfinite(leaf).all()), params))


@pytest.mark.long
def test_a_place_is_predicted_from_those_before_it() -> None:
    params = train_text.init_params(jax.random.key(1), SMALL, characters=10)
    text = jax.random.randint(jax.random.key(2), (1, 8), 0, 10)
    predict = jax.jit(train_text.predict)
    logits = predict(params, text)
    changed = predict(params, text.at[0, 5].add(1))
    np.testing.assert_array_equal(logits[:, :5], changed[:, :5])
    assert not np.allclose(logits[:, 5:], changed[:, 5:])


@pytest.mark.long
def test_a_step_can_be_traced_for_inspection() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    step, (batch,) = train_text.make_step(strategy, batch_size=4, context=8, layers=1, width=32)
    by_value = step.trace(batch).lower()
    with strategy.scope():
        by_spec = step.trace(gd.PerReplicaSpec((2, 9), np.int32)).lower()
    assert by_value.as_text("graph") == by_spec.as_text("graph")
    assert {collective.kind for collective in by_value.collectives} == {"all_reduce"}
