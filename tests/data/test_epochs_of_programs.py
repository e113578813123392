"""Epochs in one call are the loops outside, for each program of the benchmark.

XLA compiles a step in a loop and a step alone apart, and on some processors a sum of one of the two
is rounded otherwise in its last bit. So the programs agree closely, and to the bit where nothing is
rounded.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import graphdist as gd
from graphdist.tools.bench.programs import TINY
from graphdist.tools.bench.systems import Graphdist

REPLICAS = 2


@pytest.mark.long
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
    np.testing.assert_allclose(found, total, rtol=1e-6)
    mine, theirs = inside.results(), outside.results()
    assert mine.keys() == theirs.keys()
    for metric, value in mine.items():
        np.testing.assert_allclose(value, theirs[metric], rtol=1e-6)
    variables = zip(
        jax.tree.leaves(inside.variables), jax.tree.leaves(outside.variables), strict=True
    )
    for variable, expected in variables:
        np.testing.assert_allclose(
            variable.read_value(), expected.read_value(), rtol=1e-5, atol=1e-7
        )


def test_an_epoch_is_to_the_bit_the_loop_outside_where_nothing_is_rounded() -> None:
    strategy = gd.MirroredStrategy([f"cpu:{device}" for device in range(REPLICAS)])
    images = np.random.default_rng(0).integers(-4, 5, (21, 6, 6, 2)).astype(np.float32)
    dataset = strategy.experimental_distribute_dataset(
        gd.data.Dataset.from_tensor_slices(images).batch(4)
    )

    def trained(epoch: bool) -> tuple[float, np.ndarray[Any, Any]]:
        with strategy.scope():
            kernel = gd.Variable(np.ones((3, 3, 2, 1), np.float32), name="kernel")

        def correlation(kernel: jax.Array, images: jax.Array) -> jax.Array:
            layout = ("NHWC", "HWIO", "NHWC")
            found = jax.lax.conv_general_dilated(
                images, kernel, (1, 1), "SAME", dimension_numbers=layout
            )
            return found.sum()

        def replica(images: jax.Array) -> jax.Array:
            value, gradient = jax.value_and_grad(correlation)(kernel.read_value(), images)
            total = gd.get_replica_context().all_reduce("SUM", gradient)
            # The sign, so that the kernel stays among small integers.
            kernel.assign_sub(jax.numpy.sign(total))
            return value

        def step(total: jax.Array, images: jax.Array) -> jax.Array:
            return total + strategy.reduce("SUM", strategy.run(replica, (images,)), axis=None)

        if epoch:
            total = dataset.reduce(np.float32(0), step, steps_per_execution=3)
        else:
            total, run = jax.numpy.float32(0), gd.function(step)
            for images in dataset:
                total = run(total, images)
        return float(total), np.asarray(kernel.read_value())

    inside, outside = trained(epoch=True), trained(epoch=False)
    assert inside[0] == outside[0] != 0
    assert (inside[1] != 1).any()
    np.testing.assert_array_equal(inside[1], outside[1])
