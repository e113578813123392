"""Steps that all workers take together, until one of them does something else."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import numpy as np

import graphdist as gd

fault, victim = sys.argv[1], int(sys.argv[2])
options = gd.CommunicationOptions(timeout_seconds=4 if fault == "stop" else None)
strategy = gd.MultiWorkerMirroredStrategy(communication_options=options)
is_victim = strategy.cluster_resolver.task_id == victim


@gd.function
def step(x: Any) -> Any:
    def replica(x: Any) -> Any:
        if is_victim and fault == "differ":
            x = x + 1
        return gd.get_replica_context().all_reduce("SUM", x)

    return strategy.reduce("MEAN", strategy.run(replica, args=(x,)), axis=None)


if is_victim and fault == "variable":
    with strategy.scope():
        gd.Variable([1.0, 2.0])
elif fault == "variable":
    with strategy.scope():
        gd.Variable(1)

one = strategy.experimental_distribute_values_from_function(lambda context: np.float32(1))
for number in range(100):
    try:
        step(one)
    except gd.WorkerError as error:
        if fault == "kill":
            print("SAYS", json.dumps([number, error.what]), flush=True)
        raise
    if is_victim and number == 5:
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault in ("stop", "silent"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "raise":
            raise KeyError("the user's own")
        if fault == "leave":
            break
