"""The digits example trains, and its losses are those of one device without graphdist."""

import jax
import numpy as np
import optax
import pytest
import train_digits
from train_digits import Settings

import graphdist as gd


@pytest.fixture(scope="module")
def strategy() -> gd.Strategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def train_plain(settings: Settings) -> list[float]:
    """Train on one device with JAX alone, and return the loss of every step."""
    optimizer = optax.adam(settings.learning_rate)
    params = train_digits.init_params(settings.seed)
    state = optimizer.init(params)

    @jax.jit
    def step(
        params: train_digits.Params, state: optax.OptState, batch: dict[str, jax.Array]
    ) -> tuple[train_digits.Params, optax.OptState, jax.Array]:
        loss, grads = jax.value_and_grad(train_digits.loss_fn)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    batches = train_digits.ShuffledBatches(train_digits.load_data()[0], settings)
    losses = []
    for _ in range(settings.epochs):
        for batch in batches:
            params, state, loss = step(params, state, batch)
            losses.append(float(loss))
    return losses


@pytest.mark.long
def test_it_learns_as_on_one_device(
    strategy: gd.Strategy, capsys: pytest.CaptureFixture[str]
) -> None:
    losses, accuracy = train_digits.train(strategy, Settings(epochs=10))
    first_epoch = train_plain(Settings(epochs=1))
    assert len(first_epoch) == 22
    np.testing.assert_allclose(losses[:22], first_epoch, rtol=1e-5)
    assert np.mean(losses[-22:]) < 0.1 * np.mean(losses[:22])
    assert accuracy >= 0.97
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert last_line.startswith("epoch 10   loss ")
    assert last_line.endswith(f"test accuracy {accuracy:.1%}")


def test_a_step_reduces_each_gradient_once(strategy: gd.Strategy) -> None:
    step, arguments = train_digits.make_step(strategy, batch_size=8)
    gradients = train_digits.init_params(0)
    collectives = step.trace(*arguments).lower().collectives
    assert {collective.kind for collective in collectives} == {"all_reduce"}
    # The gradients and the loss, nothing twice.
    floats = 1 + sum(leaf.size for leaf in jax.tree.leaves(gradients))
    assert sum(collective.bytes for collective in collectives) == 4 * floats


def test_the_collectives_are_shown(
    strategy: gd.Strategy, capsys: pytest.CaptureFixture[str]
) -> None:
    train_digits.print_collectives(strategy, Settings())
    _, all_reduce, *_ = capsys.readouterr().out.splitlines()
    assert all_reduce.startswith("all_reduce mean")
    assert "39,724 bytes" in all_reduce
    assert "train_digits.py:" in all_reduce
