"""Runs another program of this folder in a process that has initialized JAX.

`initialized.py ADDRESS COUNT INDEX PROGRAM ARGUMENTS..`; the address `launcher` leaves the
initialization to the strategy.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import jax

address, count, index, program, *arguments = sys.argv[1:]
if address != "launcher":
    jax.distributed.initialize(address, int(count), int(index))
path = Path(__file__).with_name(f"{program}.py")
sys.argv = [str(path), *arguments]
runpy.run_path(str(path), run_name="__main__")
