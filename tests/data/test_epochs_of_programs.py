"""Epochs in one call are to the bit the loops outside, for each program of the benchmark."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import graphdist as gd
from graphdist.tools.bench.programs import TINY
from graphdist.tools.bench.systems import Graphdist

REPLICAS = 2


@pytest.mark.parametrize("name", sorted(TINY))
def test_an_epoch_is_the_loop_outside(name: str) -> None:
    program = TINY[name]
    devices = [f"cpu:{device}" for device in range(REPLICAS)]
    strategy = gd.MirroredStrategy(devices, **program.strategy_options)
    rows = program.rows * REPLICAS
    # Six batches, the last with half the rows.
    elements = program.model.batch(np.random.default_rng(1), 5 * rows + rows // 2)
    dataset = strategy.experimental_distribute_dataset(
        gd.data.Dataset.from_tensor_slices(elements).batch(rows)
    )

    outside = Graphdist(program, strategy)
    total: Any = np.float32(0)
    step = gd.function(lambda total, batch: total + outside.function(batch))
    for batch in dataset:
        total = step(total, batch)
    inside = Graphdist(program, strategy)
    found = dataset.reduce(
        np.float32(0), lambda total, batch: total + inside.function(batch), steps_per_execution=4
    )
    assert float(found) == float(total)
    assert inside.results() == outside.results()
    variables = zip(
        jax.tree.leaves(inside.variables), jax.tree.leaves(outside.variables), strict=True
    )
    for mine, theirs in variables:
        np.testing.assert_array_equal(mine.read_value(), theirs.read_value())
