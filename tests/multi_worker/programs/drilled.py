"""The example of several workers, that says each step it takes until it is told to end."""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3] / "examples"))

from train_digits import Settings
from train_multi_worker import Plan, train

import graphdist as gd

parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--steps-a-checkpoint", type=int, required=True)
parser.add_argument("--steps-wait", action="store_true")
parser.add_argument("--in-slices", action="store_true", help="the optimizer's state")
arguments = vars(parser.parse_args())
shard_update = arguments.pop("in_slices")
plan = Plan(**arguments)

faulthandler.register(signal.SIGUSR1, all_threads=True)
print("PID", os.getpid(), flush=True)
strategy = gd.MultiWorkerMirroredStrategy(shard_update=shard_update)


def report(step: int, loss: Any) -> None:
    print("STEP", step, float(loss).hex(), flush=True)


train(strategy, Settings(), plan, report)
