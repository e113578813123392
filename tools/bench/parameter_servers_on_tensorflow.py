"""Closures per second on TensorFlow's ParameterServerStrategy, whose servers run in this process.

`parameter_servers.py` starts it as a file, with any Python that has TensorFlow: it imports nothing
of graphdist.
"""

from __future__ import annotations

import socket
import sys
import time
from importlib import import_module
from typing import Any  # Any: TensorFlow ships no types


def unused_ports(count: int) -> list[int]:
    """Return ports that no process listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for socket_of_port in sockets:
        socket_of_port.bind(("localhost", 0))
    ports = [socket_of_port.getsockname()[1] for socket_of_port in sockets]
    for socket_of_port in sockets:
        socket_of_port.close()
    return ports


def make_strategy(tf: Any, num_workers: int) -> Any:
    """Return a strategy of workers and one server, all in this process."""
    first, *others = [f"localhost:{port}" for port in unused_ports(num_workers + 1)]
    spec = tf.train.ClusterSpec({"worker": others, "ps": [first]})
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=num_workers + 1)
    for task in range(num_workers):
        tf.distribute.Server(spec, "worker", task, protocol="grpc", config=config)
    tf.distribute.Server(spec, "ps", 0, protocol="grpc")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(resolver)


def main(num_workers: int, rows: int, columns: int, batch: int, closures: int) -> None:
    """Print closures per second."""
    tf: Any = import_module("tensorflow")

    strategy = make_strategy(tf, num_workers)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = tf.Variable(tf.ones((rows, columns)) / rows)

    def make_dataset() -> Any:
        x, y = tf.ones((batch, rows)), tf.zeros((batch, columns))
        return tf.data.Dataset.from_tensors((x, y)).repeat().prefetch(2)

    def step(iterator: Any) -> Any:
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights - y) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    compiled = tf.function(step)
    iterator = iter(coordinator.create_per_worker_dataset(make_dataset))
    for count in (max(20, closures // 5), closures):
        start = time.perf_counter()
        for _ in range(count):
            coordinator.schedule(compiled, args=(iterator,))
        coordinator.join()
        seconds = time.perf_counter() - start
    print(closures / seconds, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
