"""Trains a decoder whose replicas have two cores, and says the losses and what is saved."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import graphdist as gd
from tests.cores.training import PROGRAMS, step_of


def train(strategy: Any, prefix: str) -> list[Any]:
    """Return the losses, the sums of the parameters, and these again from a checkpoint."""
    step, batch, params = step_of(PROGRAMS["decoder"], strategy)
    losses = [float(step(batch)) for _ in range(3)]
    path = gd.train.Checkpoint(params=params).save(prefix)
    sums = {name: float(np.sum(np.asarray(v.read_value()))) for name, v in params.items()}
    for variable in params.values():
        variable.assign(np.zeros(variable.shape, np.float32))
    gd.train.Checkpoint(params=params).restore(path).assert_consumed()
    again = {name: float(np.sum(np.asarray(v.read_value()))) for name, v in params.items()}
    return [losses, sums, again]


if __name__ == "__main__":
    path, stored, cores = sys.argv[1:]
    strategy = gd.MultiWorkerMirroredStrategy(
        cores_per_replica=int(cores), shard_parameters=stored == "slices"
    )
    print("SAYS", json.dumps(train(strategy, path)))
