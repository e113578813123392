"""What resolvers do beside the recorded cases: other clusters, wrong ones, recorded answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import graphdist as gd
from graphdist.cluster import roles
from graphdist.cluster.slurm import expand_hostlist

STEP = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "1,2",
}


def test_specs_compare_by_what_they_say() -> None:
    spec = gd.cluster.ClusterSpec({"worker": ["a:1", "b:1"]})
    assert spec == gd.cluster.ClusterSpec({"worker": {"1": "b:1", 0: "a:1"}})
    assert spec == {"worker": ["a:1", "b:1"]} == spec
    assert spec != {"worker": ["a:1"]}
    assert gd.cluster.ClusterSpec(spec) == spec
    assert not gd.cluster.ClusterSpec({})
    assert spec.job_tasks("worker") == ["a:1", "b:1"]
    sparse = gd.cluster.ClusterSpec({"worker": {2: "c:1", 0: "a:1"}})
    assert sparse.job_tasks("worker") == ["a:1", None, "c:1"]
    assert sparse.task_indices("worker") == [0, 2]
    assert gd.cluster.ClusterSpec({"worker": []}).job_tasks("worker") == []


@pytest.mark.parametrize(
    "cluster", [["a:1"], {"worker": "a:1"}, {"worker": [1]}, {1: ["a:1"]}, None, {"worker": None}]
)
def test_what_is_no_cluster(cluster: Any) -> None:
    with pytest.raises(gd.ArgumentTypeError):
        gd.cluster.ClusterSpec(cluster)


def test_slurm_nodes_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in STEP.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    resolver = gd.cluster.SlurmClusterResolver()
    addresses = ["n9:8888", "n10:8888", "n10:8889"]
    assert resolver.cluster_spec() == {"worker": addresses}
    assert (resolver.task_type, resolver.task_id) == ("worker", 2)
    assert resolver.num_accelerators() == {"GPU": 0}


def test_slurm_gives_each_task_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in STEP.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    gd.cluster.SlurmClusterResolver(gpus_per_node=4, gpus_per_task=2).cluster_spec()
    assert gd.config.visible_gpus() == "2,3"  # the second task of its node


@pytest.mark.parametrize("text", ["n[1", "n1]", "a,,b", "n[a-b]", "n[1-]", "[", "n[]"])
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(gd.ArgumentError, match="no list of Slurm nodes"):
        expand_hostlist(text)


def test_pods_are_reached_at_their_own_address() -> None:
    status = SimpleNamespace(phase="Running", host_ip="1.1.1.1", pod_ip="10.0.0.7")
    pod = SimpleNamespace(metadata=SimpleNamespace(name="a"), status=status)
    client = SimpleNamespace(
        list_pod_for_all_namespaces=lambda label_selector: SimpleNamespace(items=[pod])
    )
    resolver = gd.cluster.KubernetesClusterResolver(tf_server_port=9, override_client=client)
    assert resolver.cluster_spec() == {"worker": ["10.0.0.7:9"]}
    resolver.task_type, resolver.task_id = "worker", 0
    assert resolver.master() == "grpc://10.0.0.7:9"


def test_a_tpu_is_given_by_its_addresses() -> None:
    resolver = gd.cluster.TPUClusterResolver("grpc://a:1, b:2", coordinator_name="c")
    assert resolver.cluster_spec() == {"worker": ["a:1", "b:2"]}
    resolver = gd.cluster.TPUClusterResolver("a:1", coordinator_name="c", coordinator_address="d:1")
    assert resolver.cluster_spec() == {"worker": ["a:1"], "c": ["d:1"]}


def test_a_tpu_needs_a_place() -> None:
    with pytest.raises(gd.ArgumentError, match="by project and zone"):
        gd.cluster.TPUClusterResolver("pod")


def test_settings_of_a_resolver_can_be_changed() -> None:
    spec = gd.cluster.ClusterSpec({"worker": ["a:1", "b:1"]})
    resolver = gd.cluster.UnionResolver(gd.cluster.SimpleClusterResolver(spec))
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "grpc"
    assert resolver.master("worker", resolver.task_id) == "grpc://b:1"


def test_order_of_workers() -> None:
    cluster = {"worker": {3: "d:1", 1: "b:1"}, "chief": ["a:1"], "ps": ["p:1"]}
    assert roles.worker_addresses(cluster) == ["a:1", "b:1", "d:1"]
    assert roles.worker_addresses({}) == []
