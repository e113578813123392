"""The example of several workers, of which one is killed at a random moment of each start.

`killed_at_random.py FOLDER STEPS KILLS`: each worker writes its losses to files in the folder.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3] / "examples"))

from train_digits import Settings
from train_multi_worker import Plan, train

import graphdist as gd
from tests.multi_worker.programs.random_kills import RandomKill

folder, steps, kills = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
random_kill = RandomKill(folder, rank, kills)
strategy = gd.MultiWorkerMirroredStrategy()
assert strategy.cluster_resolver.task_id == rank


def write(step: int, loss: Any) -> None:
    with open(folder / f"losses-{rank}-{os.getpid()}", "a") as file:
        file.write(f"{step} {float(loss).hex()}\n")
    random_kill.after_step()
    time.sleep(0.02 if kills else 0)


train(strategy, Settings(), Plan(str(folder / "checkpoints"), steps, 8), write)
random_kill.wait()
