"""Workers of which one fails while JAX is joined, while devices start, or while a step compiles."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import jax
import numpy as np

import graphdist as gd

phase, fault, victim = sys.argv[1], sys.argv[2], int(sys.argv[3])
index = gd.cluster.TFConfigClusterResolver().task_id


def fail() -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    raise KeyError("the user's own")


def failing(*given: Any, **named: Any) -> Any:
    time.sleep(1)  # the others wait for it by then
    fail()


def slow_compilation(*given: Any) -> Any:
    time.sleep(300)


if index == victim:
    if phase == "joining":
        jax.distributed.initialize = failing
    elif phase == "devices":
        jax.devices = failing
    else:
        jax.stages.Lowered.compile = failing  # type: ignore[method-assign]
elif phase == "compiling":
    jax.stages.Lowered.compile = slow_compilation  # type: ignore[assignment, method-assign]

strategy = gd.MultiWorkerMirroredStrategy()
if index == victim and phase == "between":
    fail()


@gd.function
def step(x: Any) -> Any:
    return strategy.reduce("SUM", strategy.run(lambda x: x + 1, args=(x,)), axis=None)


step(strategy.experimental_distribute_values_from_function(lambda context: np.float32(1)))
