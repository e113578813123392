"""Workers that make steps until Ctrl-C comes; one of them may come to no step at all."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

import graphdist as gd

comes = sys.argv[1] == "all" or gd.cluster.TFConfigClusterResolver().task_id == 0
strategy = gd.MultiWorkerMirroredStrategy()
with strategy.scope():
    count = gd.Variable(np.zeros(4), name="count", aggregation=gd.VariableAggregation.MEAN)


@gd.function
def step(x: Any) -> None:
    strategy.run(lambda x: count.assign_add(x), args=(x,))


ones = strategy.experimental_distribute_values_from_function(lambda context: np.ones(4, np.float32))
for _ in range(3):
    step(ones)
print("SAYS", json.dumps("steps"), flush=True)
done = 3
try:
    try:
        while True:
            if not comes:
                time.sleep(600)
            step(ones)
            done += 1
    except Exception as error:
        print("SAYS", json.dumps(f"swallowed {error}"), flush=True)
except KeyboardInterrupt:
    try:
        value: object = float(count.host_value()[0]) - done
    except gd.RuntimeFailure as error:
        value = error.what
    print("SAYS", json.dumps(value), flush=True)
    raise
