"""The Keras example trains."""

import pytest
import train_keras
from train_digits import Settings

import graphdist as gd


@pytest.mark.long
def test_it_learns() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    losses, accuracy = train_keras.train(strategy, Settings(epochs=4))
    assert losses[-1] < losses[0] / 4
    assert accuracy > 0.85
