"""The compilation of a step for 64 replicas, one of which has other shapes: see `overheads.py`.

It has a process of its own, with 64 devices. Prints the seconds of both compilations, unequal
first.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any  # Any: distributed values

import jax
import numpy as np

import graphdist as gd
from graphdist.tools.bench.models import Mlp
from graphdist.tools.bench.programs import BenchProgram
from graphdist.tools.bench.systems import Graphdist

REPLICAS, LAYERS, WIDTH, ROUNDS = 64, 20, 16, 5
PROGRAM = BenchProgram("unequal", "", Mlp(LAYERS, WIDTH), rows=4)


def compile_seconds(strategy: gd.Strategy, rows: list[int]) -> float:
    """Return the seconds from the trace to the executable, for replicas with these rows."""

    def batch_of(context: gd.ValueContext) -> Any:
        return {"x": np.ones((rows[context.replica_id_in_sync_group], WIDTH), "f")}

    batch = strategy.experimental_distribute_values_from_function(batch_of)
    step = Graphdist(PROGRAM, strategy).function
    jax.clear_caches()
    start = time.perf_counter()
    step.trace(batch).lower().compile()
    return time.perf_counter() - start


def main() -> None:
    """Measure in turns and print the medians."""
    gd.config.set_logical_cpu_devices(REPLICAS)
    strategy = gd.MirroredStrategy()
    uniform, unequal = [4] * REPLICAS, [4] * (REPLICAS - 1) + [1]
    compile_seconds(strategy, uniform)
    rounds = [
        (compile_seconds(strategy, unequal), compile_seconds(strategy, uniform))
        for _ in range(ROUNDS)
    ]
    print(json.dumps([statistics.median(seconds) for seconds in zip(*rounds, strict=True)]))


if __name__ == "__main__":
    main()
