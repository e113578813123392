"""Trains where JAX, or a launcher, connects the processes; the arguments say what each does.

`launched.py ADDRESS COUNT INDEX [what]`: this program initializes JAX; without an address a
launcher has to. `what` is a strategy to make, or how a worker fails.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import jax
import numpy as np

import graphdist as gd
from tests.multi_worker.programs.training import train

address, count, index, what = [*sys.argv[1:], "train"][:4]
if address != "launcher":
    jax.distributed.initialize(address, int(count), int(index))


def strategy() -> Any:
    """Make the strategy that the test names."""
    match what:
        case "mirrored":
            return gd.MirroredStrategy()
        case "own devices":
            return gd.MirroredStrategy(["cpu:0"])
        case "default":
            gd.function(lambda x: x + 1)(np.ones(3))
    return gd.MultiWorkerMirroredStrategy()


if what == "late" and jax.process_index() == 1:
    time.sleep(15)
made = strategy()
if what == "killed" and jax.process_index() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
print("SAYS", json.dumps(train(made)), flush=True)
