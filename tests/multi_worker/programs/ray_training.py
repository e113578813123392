"""Trains in a JaxTrainer of Ray on two workers, and prints what each reports."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["RAY_TRAIN_V2_ENABLED"] = "1"

import ray.train
from ray.train.v2.jax import JaxTrainer

from tests.multi_worker.programs.training import train


def train_loop(config: dict[str, Any]) -> None:
    """Train as two processes of graphdist-run do, and write the result."""
    import graphdist as gd  # in the worker: it must not touch devices before

    result = train(gd.MultiWorkerMirroredStrategy())
    rank = ray.train.get_context().get_world_rank()
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(result))
    ray.train.report({"loss": result[0][-1]})


if __name__ == "__main__":
    folder = tempfile.mkdtemp(dir=sys.argv[1])
    trainer = JaxTrainer(
        train_loop,
        train_loop_config={"folder": folder},
        scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=ray.train.RunConfig(storage_path=folder),
    )
    print(trainer.fit().error)
    for rank in range(2):
        print("SAYS", Path(folder, f"{rank}.json").read_text())
