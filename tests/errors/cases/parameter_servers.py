"""Parameter servers that died or are not there, partitioners, and variables in shards."""

from __future__ import annotations

import os
import signal

import jax.numpy as jnp

import graphdist as gd
from graphdist.experimental import partitioners
from graphdist.parameter_server.closures import ClosureQueue, RemoteValue, Waiting
from graphdist.parameter_server.ray_cluster import ray
from tests.errors.refusal import Refused


def parameter_server_that_died(refused: Refused) -> None:
    strategy = gd.ParameterServerStrategy(num_workers=1)
    with strategy.scope():
        count = gd.Variable(0.0, name="count")
    os.kill(ray().get(strategy.servers.actors[0].process.remote()), signal.SIGKILL)
    with refused(RuntimeError):
        count.read_value()
    strategy.shutdown()


def parameter_server_function_that_was_cancelled(refused: Refused) -> None:
    queue, value = ClosureQueue(), RemoteValue()
    queue.put(Waiting(0, 0, b"", value))
    queue.close()
    with refused(RuntimeError):
        value.fetch()


def parameter_server_cluster_without_servers(refused: Refused) -> None:
    cluster = gd.cluster.ClusterSpec({"worker": ["a:1"]})
    with refused(ValueError):
        gd.ParameterServerStrategy(gd.cluster.SimpleClusterResolver(cluster))


def parameter_server_coordinator_of_another_strategy(refused: Refused) -> None:
    with refused(TypeError):
        gd.coordinator.ClusterCoordinator(gd.OneDeviceStrategy("cpu:0"))


def partitioner_of_a_scalar(refused: Refused) -> None:
    with refused(IndexError):
        partitioners.FixedShardsPartitioner(2)((), "float32")


def partitioner_of_no_bytes(refused: Refused) -> None:
    with refused(ValueError):
        partitioners.MaxSizePartitioner(0)


def shards_of_other_rows(refused: Refused) -> None:
    first, second = gd.Variable(jnp.ones((2, 3)), "first"), gd.Variable(jnp.ones((2, 4)), "second")
    with refused(ValueError):
        gd.ShardedVariable([first, second])


def shards_without_such_a_row(refused: Refused) -> None:
    table = gd.ShardedVariable([gd.Variable(jnp.ones((2, 3)))], "table")
    with refused(IndexError):
        table[2]


def shards_that_are_uneven(refused: Refused) -> None:
    parts = [gd.Variable(jnp.ones((rows, 1))) for rows in (1, 3)]
    table = gd.ShardedVariable(parts, "table")
    with refused(NotImplementedError):
        table.scatter_add(gd.IndexedSlices(jnp.ones((1, 1)), jnp.array([0])))
