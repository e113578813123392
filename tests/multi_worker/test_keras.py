"""A Keras model that several processes train together."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import graphdist as gd
from tests.multi_worker.launch import run
from tests.multi_worker.programs.keras_fit import train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("options", [(), ("in slices",)])
def test_two_processes_train_as_one_does(options: tuple[str, ...]) -> None:
    outcome = run(2, "keras_fit", *options)
    assert outcome.status == 0, outcome.err
    alone = train(gd.OneDeviceStrategy("cpu:0"))
    for worker in range(2):
        (said,) = outcome.said[worker]
        assert list(said) == list(alone)
        for theirs, ours in zip(jax.tree.leaves(said), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)
