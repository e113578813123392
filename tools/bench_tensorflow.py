"""The small training step of the benchmark on TensorFlow's MirroredStrategy, in its own process.

Run by `graphdist.tools.bench` where TensorFlow is installed; prints the median seconds of a step.
The program is that of the other peers: layers of tanh(x @ w + b), mean of squares, gradients
averaged over two logical CPU devices, plain gradient descent.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any  # Any: TensorFlow ships no types

import numpy as np


def measure(layers: int, width: int, batch: int) -> float:
    """Return the median seconds of a step on two logical CPU devices."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, devices)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    rng = np.random.default_rng(0)
    with strategy.scope():
        variables: list[Any] = []
        for _ in range(layers):
            matrix = rng.standard_normal((width, width)) / width**0.5
            variables.append(tf.Variable(matrix.astype("f")))
            variables.append(tf.Variable(np.zeros(width, "f")))

    def replica_fn(x: Any) -> Any:
        with tf.GradientTape() as tape:
            for matrix, bias in zip(variables[::2], variables[1::2], strict=True):
                x = tf.tanh(x @ matrix + bias)
            loss = tf.reduce_mean(x**2)
        gradients = tape.gradient(loss, variables)
        context = tf.distribute.get_replica_context()
        for variable, gradient in zip(
            variables, context.all_reduce("MEAN", gradients), strict=True
        ):
            variable.assign_sub(0.01 * gradient)
        return loss

    def reduced(x: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    step = tf.function(reduced)

    x = np.random.default_rng(1).standard_normal((batch, width)).astype("f")
    parts = np.split(x, 2)
    distributed = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group])
    )
    for _ in range(5):
        step(distributed).numpy()
    seconds = []
    for _ in range(30):
        start = time.perf_counter()
        step(distributed).numpy()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    print(measure(*map(int, sys.argv[1:4])))
