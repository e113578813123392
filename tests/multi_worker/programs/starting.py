"""Makes the strategy; with an argument, with so many logical devices on worker 1."""

from __future__ import annotations

import json
import os
import sys

import graphdist as gd

if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1 and len(sys.argv) > 1:
    gd.config.set_logical_cpu_devices(int(sys.argv[1]))
gd.MultiWorkerMirroredStrategy()
