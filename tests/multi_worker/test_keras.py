"""A Keras model that several processes train together, with `fit` and in a loop of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import graphdist as gd
from tests.multi_worker.launch import run
from tests.multi_worker.programs import keras_fit, keras_own_loop

PROGRAMS: dict[str, Callable[[gd.Strategy], Any]] = {
    "keras_fit": keras_fit.train,
    "keras_own_loop": keras_own_loop.train,
}


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("in slices",)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_two_processes_train_as_one_does(program: str, options: tuple[str, ...]) -> None:
    outcome = run(2, program, *options)
    assert outcome.status == 0, outcome.err
    alone = PROGRAMS[program](gd.OneDeviceStrategy("cpu:0"))
    for worker in range(2):
        (said,) = outcome.said[worker]
        assert list(said) == list(alone)
        for theirs, ours in zip(jax.tree.leaves(said), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)
