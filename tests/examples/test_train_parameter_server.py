"""The example of parameter servers learns to read digits, while a worker is killed."""

from __future__ import annotations

import pytest
import train_parameter_server
from train_digits import Settings

import graphdist as gd


@pytest.mark.long
def test_digits_are_learned_although_a_worker_dies() -> None:
    strategy = gd.ParameterServerStrategy(num_workers=2, num_servers=2)
    # Asynchronous runs differ. After 450 steps they are on both sides of 0.97.
    assert train_parameter_server.train(strategy, Settings(), steps=900, kills=True) >= 0.97
    strategy.shutdown()
