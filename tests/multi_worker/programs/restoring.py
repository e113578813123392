"""Workers that restore, each the checkpoint of its name or none, after both have saved two.

Their initial values differ.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import graphdist as gd

folder, *names = sys.argv[1:]
strategy = gd.MultiWorkerMirroredStrategy()
with strategy.scope():  # each worker has another initial value
    value = gd.Variable(np.full(3, strategy.cluster_resolver.task_id, np.float32), name="value")
checkpoint = gd.train.Checkpoint(value=value, epoch=0)
for epoch, name in enumerate(("first", "second"), 1):
    checkpoint.epoch = epoch
    value.assign(np.full(3, epoch, np.float32))
    checkpoint.write(Path(folder, name))
checkpoint.sync()
mine = names[strategy.cluster_resolver.task_id]
try:
    checkpoint.restore(Path(folder, mine) if mine else None)
    print("SAYS", json.dumps([np.asarray(value.read_value()).tolist(), checkpoint.epoch]))
except gd.WorkerError as error:
    print("SAYS", json.dumps(error.what), flush=True)
