"""Workers of which the last forks: the child fails, or goes on after the worker was killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import numpy as np

import graphdist as gd

ending = sys.argv[1]
strategy = gd.MultiWorkerMirroredStrategy()


@gd.function
def step(x: Any) -> Any:
    return strategy.reduce("SUM", strategy.run(lambda x: x, args=(x,)), axis=None)


one = strategy.experimental_distribute_values_from_function(lambda context: np.float32(1))
step(one)
if strategy.cluster_resolver.task_id == 1:
    child = os.fork()
    if not child:
        if ending == "the child fails":
            error = KeyError("the child's own")
            sys.excepthook(KeyError, error, None)
        else:
            time.sleep(60)
        os._exit(1)
    if ending == "the worker is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
try:
    sums = [float(step(one)) for _ in range(3)]
except gd.WorkerError as error:
    print("SAYS", json.dumps(error.what), flush=True)
    raise
print("SAYS", json.dumps(sums), flush=True)
