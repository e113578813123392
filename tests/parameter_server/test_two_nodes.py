"""Servers and workers on two nodes of a cluster of Ray, of which one is removed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any  # Any: Ray's nodes, and users' functions

import pytest

import graphdist as gd
from graphdist.coordinator import ClusterCoordinator

pytestmark = [
    pytest.mark.filterwarnings("ignore:this cluster of Ray has no authentication"),
    pytest.mark.filterwarnings("ignore:os.fork"),  # Ray's, which starts programs
]
ray: Any = import_module("ray")
ON_BOTH = {"num_cpus": 0, "resources": {"worker": 1}, "scheduling_strategy": "SPREAD"}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Return a cluster whose nodes are added by the test."""
    made = import_module("ray.cluster_utils").Cluster()
    yield made
    ray.shutdown()
    made.shutdown()


def counter(strategy: Any, name: str = "count") -> gd.Variable:
    with strategy.scope():
        return gd.Variable(0.0, name=name)


def node_of_worker() -> str:
    found: str = ray.get_runtime_context().get_node_id()
    return found


@pytest.mark.long
def test_the_functions_of_a_removed_node_are_run_by_the_other(cluster: Any) -> None:
    # Only the first node has cores, which servers ask for.
    cluster.add_node(num_cpus=2, resources={"worker": 4})
    second = cluster.add_node(num_cpus=0, resources={"worker": 4})
    strategy = gd.ParameterServerStrategy(
        num_workers=2, num_servers=2, address=cluster.address, worker_options=ON_BOTH
    )
    coordinator = ClusterCoordinator(strategy)
    count = counter(strategy)
    nodes = coordinator.create_per_worker_resources(node_of_worker)

    @gd.function
    def step(node: Any) -> Any:
        count.assign_add(1.0, read_value=False)
        return node

    before = coordinator.worker_processes()
    values = [coordinator.schedule(step, args=(nodes,)) for _ in range(100)]
    coordinator.join()
    assert {value.fetch() for value in values} == {node["NodeID"] for node in ray.nodes()}
    values = [coordinator.schedule(step, args=(nodes,)) for _ in range(200)]
    values[5].fetch()
    cluster.remove_node(second, allow_graceful=False)
    coordinator.join()
    traffic = coordinator.traffic
    assert traffic.closures == 300
    assert float(count) == 300 + traffic.written_twice
    # The worker of that node ends soon after it, and is started again on the one that is left.
    deadline = time.monotonic() + 60
    while (after := coordinator.worker_processes()) == before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sum(process in before for process in after) == 1
    values = [coordinator.schedule(step, args=(nodes,)) for _ in range(20)]
    coordinator.join()
    assert second.unique_id not in {value.fetch() for value in values}
    strategy.shutdown()
    assert ray.is_initialized()


def run_until_it_fails(coordinator: ClusterCoordinator, step: Any) -> None:
    while True:
        coordinator.schedule(step)
        coordinator.join(timeout=60)


@pytest.mark.long
def test_a_server_on_a_removed_node_is_named(cluster: Any) -> None:
    cluster.add_node(num_cpus=0, resources={"worker": 2})
    second = cluster.add_node(num_cpus=2)
    strategy = gd.ParameterServerStrategy(
        num_workers=2, address=cluster.address, worker_options=ON_BOTH
    )
    coordinator = ClusterCoordinator(strategy)
    count = counter(strategy)
    step = gd.function(lambda: count.assign_add(1.0, read_value=False))
    coordinator.schedule(step).fetch()
    for _ in range(200):
        coordinator.schedule(step)
    cluster.remove_node(second, allow_graceful=False)
    began = time.monotonic()
    with pytest.raises(gd.ServerLostError, match=r"server 0 has died.*'count'"):
        run_until_it_fails(coordinator, step)
    with pytest.raises(gd.ServerLostError, match="'count'"):
        count.read_value()
    assert time.monotonic() - began < 60
    strategy.shutdown()


@pytest.mark.long
def test_servers_of_a_cluster_that_the_program_joined_listen_at_their_machine(cluster: Any) -> None:
    cluster.add_node(num_cpus=2)
    ray.init(cluster.address, logging_level="ERROR")
    strategy = gd.ParameterServerStrategy(num_workers=1)
    (server,) = strategy.servers.actors
    assert ray.get(server.address.remote())[0] == ray.util.get_node_ip_address()
    assert float(counter(strategy)) == 0
    strategy.shutdown()
    assert ray.is_initialized()
