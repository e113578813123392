"""Runs the example of Ray Train on two nodes of Ray; workers write the loss of each step.

    python -m tests.multi_worker.programs.ray_on_two_nodes FOLDER [killed | removed | drilled]

Worker 1 is killed, or its node is removed, for which there is a third one, while worker 0 waits for
it in the step after `LAST`. It happens once: a file in the folder says that it did. `drilled`:
workers are killed at `KILLS` random moments.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import ray

from tests.multi_worker.programs.random_kills import RandomKill

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "examples"))
train_ray: Any = import_module("train_ray")
ray_train: Any = train_ray.ray_train
STEPS, STEPS_A_CHECKPOINT, LAST = 30, 12, 16
KILLS = 2


def train_loop(config: dict[str, Any]) -> float:
    """Train as the example does."""
    how, folder = config.pop("how"), Path(config["directory"])
    rank = ray_train.get_context().get_world_rank()
    random_kill = RandomKill(folder, rank, KILLS if how == "drilled" else 0)

    def on_step(step: int, loss: Any) -> None:
        with open(folder / f"losses-{rank}", "a") as file:
            file.write(json.dumps([os.getpid(), step, float(loss)]) + "\n")
        random_kill.after_step()
        time.sleep(0.1 if how == "drilled" else 0)
        failed = folder / "failed"
        if how in ("killed", "removed") and rank == 1 and step == LAST and not failed.exists():
            # It waits until Ray has taken the checkpoint. Worker 0 is in its next step then.
            ray_train.get_all_reported_checkpoints()
            failed.write_text(ray.get_runtime_context().get_node_id())
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    result: float = train_ray.train(train_ray.Plan(**config), on_step)
    random_kill.wait()
    return result


def remove_failed(cluster: Any, folder: Path) -> None:
    """Remove the node that the file names, once it is there."""
    while not (found := folder / "failed").exists() or not found.read_text():
        time.sleep(0.05)
    node = next(node for node in cluster.worker_nodes if node.node_id == found.read_text())
    cluster.remove_node(node, allow_graceful=False)


def main(folder: str, how: str = "") -> None:
    """Train, and print what Ray reports."""
    # Worker 1 is not on the first node, which has no cores.
    cluster: Any = import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0}
    )
    for _ in range(3 if how == "removed" else 2):
        cluster.add_node(num_cpus=1)
    ray.init(cluster.address, runtime_env={"working_dir": str(ROOT / "examples")})
    if how == "removed":
        Thread(target=remove_failed, args=(cluster, Path(folder)), daemon=True).start()
    plan = train_ray.Plan(folder, STEPS, STEPS_A_CHECKPOINT)
    try:
        failures = KILLS if how == "drilled" else 1
        trainer = train_ray.make_trainer(
            train_loop, plan, 2, failures, placement_strategy="STRICT_SPREAD"
        )
        trainer.train_loop_config["how"] = how
        result = trainer.fit()
        print("SAYS", json.dumps([result.metrics, result.return_value]))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
