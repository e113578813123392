"""Workers that train and save with few files to open, until they are told that it is enough."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np

import graphdist as gd

folder, num_files = Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, num_files))
strategy = gd.MultiWorkerMirroredStrategy()
with strategy.scope():
    total = gd.Variable(np.zeros(4), aggregation=gd.VariableAggregation.SUM)
manager = gd.train.CheckpointManager(gd.train.Checkpoint(total=total), folder / "saved", 2)


@gd.function
def step(x: Any) -> None:
    strategy.run(lambda x: total.assign_add(x), args=(x,))


ones = strategy.experimental_distribute_values_from_function(lambda context: np.ones(4, np.float32))
steps = 0
is_enough = False
while not is_enough:
    step(ones)
    steps += 1
    if steps % 20 == 0:
        manager.save()
        answers = strategy.experimental_distribute_values_from_function(
            lambda context: float((folder / "enough").exists())
        )
        is_enough = (
            float(strategy.reduce("SUM", answers, axis=None)) == strategy.num_replicas_in_sync
        )
        if steps == 20:
            (address, *_) = strategy.cluster_resolver.cluster_spec().as_dict()["worker"]
            print("ADDRESS", address, flush=True)
manager.sync()
restored = gd.Variable(np.zeros(4))
gd.train.Checkpoint(total=restored).restore(manager.latest_checkpoint).assert_consumed()
print("SAYS", json.dumps([steps, float(total.host_value()[0]), float(restored.host_value()[0])]))
