"""Workers of which one ends before the others: while a checkpoint is written, or at its end."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

import graphdist as gd
from graphdist.runtime.files import checkpoint

ending, victim, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
strategy = gd.MultiWorkerMirroredStrategy()
index = strategy.cluster_resolver.task_id
is_victim = index == victim
with strategy.scope():
    total = gd.Variable(np.zeros(4, np.float32), name="total")


def say(what: Any) -> None:
    print("SAYS", json.dumps(what), flush=True)


def slow(*given: Any) -> Any:
    time.sleep(1.5)
    return write(*given)


write = vars(checkpoint)["write_arrays"]
vars(checkpoint)["write_arrays"] = slow  # every worker is still writing when one ends


@gd.function
def step(x: Any) -> None:
    def replica(x: Any) -> None:
        total.assign_add(gd.get_replica_context().all_reduce("SUM", x))

    strategy.run(replica, args=(x,))


one = strategy.experimental_distribute_values_from_function(lambda context: np.ones(4, np.float32))
for _ in range(3):
    step(one)
if ending == "interrupted at the end":
    if is_victim:
        interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.daemon = True
        interrupt.start()
    else:
        time.sleep(3)
        say("done")
    sys.exit()
gd.train.Checkpoint(total=total).write(os.path.join(folder, "last"))
if is_victim and ending in ("raises", "raises, and others catch it"):
    raise KeyError("the user's own")
if is_victim and ending == "is interrupted":
    os.kill(os.getpid(), signal.SIGINT)
if is_victim and ending == "returns":
    sys.exit()
try:
    while True:
        step(one)
except gd.WorkerError as error:
    say(error.what)
    time.sleep(3)  # the user's own last words
    say("saved")
    if ending == "raises, and others catch it":
        sys.exit()
    raise
