"""What the launcher is tried on: no devices, no waiting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

task = json.loads(os.environ["TF_CONFIG"])
index, count = task["task"]["index"], len(task["cluster"]["worker"])
match sys.argv[1]:
    case "say":
        print("SAYS", json.dumps([index, count, os.environ.get("JAX_NUM_CPU_DEVICES"), sys.argv]))
        print("to stderr", file=sys.stderr)
    case "fail" if index == 1:
        raise KeyError("the user's own")
    case "once":  # the first time worker 1 fails, then all is well
        marker = Path(sys.argv[2])
        print("SAYS", count)
        if index == 1 and not marker.exists():
            marker.touch()
            sys.exit(3)
    case "catch":
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print("SAYS", json.dumps("caught"))))
        print("READY", flush=True)
        time.sleep(60)
    case "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("READY", flush=True)
        time.sleep(60)
    case _:
        child = subprocess.Popen(["sleep", "60"]) if sys.argv[1] == "child" else None
        print("READY", os.getpid(), child.pid if child else "", flush=True)
        time.sleep(60)
