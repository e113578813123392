"""Programs leave behind what they do on one device, on any number of replicas and cores."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import optax
import pytest

from tests.cores.training import PROGRAMS, strategy_on, trained

MESHES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "1x2": (1, 2, {}),
    "2x2": (2, 2, {}),
    "1x4": (1, 4, {}),
    "2x4": (2, 4, {}),
    "4x2": (4, 2, {}),
    "2x2 in slices": (2, 2, {"shard_parameters": True, "shard_update": True}),
    "4x2 in groups": (4, 2, {"shard_parameters": 2}),
}
OPTIMIZERS: dict[str, Any] = {
    "adafactor": optax.adafactor(0.05, min_dim_size_to_factor=4),
    "clip and momentum": optax.chain(
        optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9, nesterov=True)
    ),
    "lamb": optax.lamb(0.01),
    "every second step": optax.MultiSteps(optax.sgd(0.1), 2),
}


@cache
def alone(name: str) -> dict[str, np.ndarray[Any, Any]]:
    return trained(PROGRAMS[name], strategy_on(1, 1))


def check_close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_training(name: str, mesh: str) -> None:
    replicas, cores, options = MESHES[mesh]
    if name == "convnet" and replicas > 1:  # the statistics of its batch are those of a replica
        expected = trained(PROGRAMS[name], strategy_on(replicas, 1))
    else:
        expected = alone(name)
    check_close(trained(PROGRAMS[name], strategy_on(replicas, cores, **options)), expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    program = PROGRAMS["mlp"]
    expected = trained(program, strategy_on(1, 1), OPTIMIZERS[name], steps=4)
    check_close(trained(program, strategy_on(2, 2), OPTIMIZERS[name], steps=4), expected)
