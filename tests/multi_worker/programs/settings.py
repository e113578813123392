"""Runs a step under settings of JAX's that hold for one thread, and says what came of it."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np

import graphdist as gd


def results(strategy: gd.Strategy) -> list[Any]:
    """Return dtypes and sums of a step on 1/3 with 64 bits and without, and how it refuses nan."""
    step = gd.function(
        lambda x: strategy.run(lambda x: gd.get_replica_context().all_reduce("SUM", x), (x,))
    )
    found: list[Any] = []
    third = np.ones(1) / 3
    for has_64_bits in (False, True, False):
        with jax.enable_x64(has_64_bits):
            (value, *_) = strategy.experimental_local_results(step(third))
            found.append([str(value.dtype), float(value[0])])
    with strategy.scope():
        w = gd.Variable(np.ones(1, np.float32), name="w")
    divide = gd.function(lambda: strategy.run(lambda: w.assign(w / 0 * 0)))
    with jax.debug_nans(True):
        try:
            divide()
        except gd.errors.InvalidNumberError as error:
            found.append(error.what)
    with jax.disable_jit():
        try:
            step(third)
        except gd.errors.UnsupportedError as error:
            found.append(error.what)
    return [*found, float(w.read_value()[0])]


if __name__ == "__main__":
    print("SAYS", json.dumps(results(gd.MultiWorkerMirroredStrategy())))
