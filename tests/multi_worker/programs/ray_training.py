"""Trains in a JaxTrainer of Ray on two workers, and prints what each reports."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["RAY_TRAIN_V2_ENABLED"] = "1"

from tests.multi_worker.programs.training import train

train_module: Any = import_module("ray.train")  # which chooses its version by the variable above


def train_loop(config: dict[str, Any]) -> None:
    """Train as two processes of graphdist-run do, and write the result."""
    import graphdist as gd  # in the worker: it must not touch devices before

    result = train(gd.MultiWorkerMirroredStrategy())
    rank = train_module.get_context().get_world_rank()
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(result))
    train_module.report({"loss": result[0][-1]})


if __name__ == "__main__":
    folder = tempfile.mkdtemp(dir=sys.argv[1])
    trainer = import_module("ray.train.v2.jax").JaxTrainer(
        train_loop,
        train_loop_config={"folder": folder},
        scaling_config=train_module.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=train_module.RunConfig(storage_path=folder),
    )
    print(trainer.fit().error)
    for rank in range(2):
        print("SAYS", Path(folder, f"{rank}.json").read_text())
