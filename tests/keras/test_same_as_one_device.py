"""Models trained under a strategy and without one: the same losses, metrics and weights.

The batches have 7, 7, 7 and 1 rows, so that replicas have unequal numbers of rows, or none.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest

import graphdist as gd
from tests.keras.models import MODELS, mirrored, trained

STRATEGIES: dict[str, Callable[[], gd.Strategy]] = {
    "mirrored": lambda: mirrored(2),
    "four replicas": lambda: mirrored(4),
    "one device": lambda: gd.OneDeviceStrategy("cpu:1"),
    "state in slices": lambda: mirrored(2, shard_update=True, shard_parameters=True),
    "central storage": lambda: gd.CentralStorageStrategy(["cpu:0", "cpu:1"]),
}
PAIRS = [(name, "mirrored") for name in MODELS] + [
    ("dense", strategy) for strategy in STRATEGIES if strategy != "mirrored"
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "strategy"), PAIRS)
def test_training_is_the_same(name: str, strategy: str) -> None:
    alone = trained(MODELS[name], None)
    together = trained(MODELS[name], STRATEGIES[strategy]())
    assert list(together["history"]) == list(alone["history"])
    for here, there in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-5)
