"""Trains models whose replicas have several cores, and says the losses and what is saved."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.cores.training import PROGRAMS, Params, Program, step_of


def _loss(strategy: gd.Strategy, p: Params, x: jax.Array) -> jax.Array:
    hidden = jax.nn.gelu(x @ p["up"]) @ p["down"]
    return jnp.mean(((hidden @ p["head"]) @ p["square"] - jnp.tile(x, 8)) ** 2)


BLOCKS = Program(
    {"up": (16, 1024), "down": (1024, 16), "head": (16, 128), "square": (128, 128)},
    _loss,
    lambda numbers: numbers.normal(size=(8, 16)).astype(np.float32),
    {"up": (None, "sharded"), "down": ("sharded", None), "square": ("sharded", None)},
)
"""Parameters that the replicas shard, too: along another dimension, or along the same."""


def train(strategy: Any, prefix: str) -> list[Any]:
    """Return the losses, the sums of the parameters, and these again from a checkpoint.

    Of two models.
    """
    said: list[Any] = []
    for name, program in {"decoder": PROGRAMS["decoder"], "blocks": BLOCKS}.items():
        step, batch, params = step_of(program, strategy)
        losses = [float(step(batch)) for _ in range(3)]
        path = gd.train.Checkpoint(params=params).save(f"{prefix}-{name}")
        sums = _sums(params)
        for variable in params.values():
            variable.assign(np.zeros(variable.shape, np.float32))
        gd.train.Checkpoint(params=params).restore(path).assert_consumed()
        said.append([losses, sums, _sums(params)])
    return said


def _sums(params: dict[str, gd.Variable]) -> dict[str, float]:
    return {name: float(np.sum(np.abs(np.asarray(v)))) for name, v in params.items()}


def read(strategy: Any) -> list[Any]:
    """Return what an input of two batches gives in all, and what unequal values raise."""

    @gd.function
    def total(rows: Any) -> jax.Array:
        return strategy.reduce("SUM", strategy.run(jnp.sum, args=(rows,)), axis=None)

    rows = np.arange(32, dtype=np.float32).reshape(16, 2)
    batches = gd.data.Dataset.from_tensor_slices(rows).shuffle(16).batch(8)
    dataset = strategy.experimental_distribute_dataset(batches)
    said: list[Any] = [sum(float(total(batch)) for batch in dataset)]
    worker = strategy.devices.workers.index
    attempts: list[Callable[[], Any]] = [
        lambda: strategy.experimental_distribute_values_from_function(lambda _: np.full(2, worker)),
        lambda: next(iter(strategy.experimental_distribute_dataset([rows + worker]))),
    ]
    for unequal in attempts:
        try:
            unequal()
        except gd.WorkerError as error:
            said.append(str(error).splitlines()[0])
    return said


if __name__ == "__main__":
    path, stored, cores = sys.argv[1:]
    strategy = gd.MultiWorkerMirroredStrategy(
        cores_per_replica=int(cores), shard_parameters=stored == "slices"
    )
    print("SAYS", json.dumps([train(strategy, path), read(strategy)]))
