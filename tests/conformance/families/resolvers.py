"""Cluster resolvers and the rules of a cluster's roles."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any  # Any: the values of any program
from unittest import mock

import graphdist as gd
from graphdist.cluster import roles
from graphdist.cluster.slurm import expand_hostlist, expand_tasks_per_node
from tests.conformance.encode import attempt
from tests.conformance.environment import Environment, NoProgramError, Program

ANY: Any = gd.cluster
"""The resolvers without their annotations, for wrong arguments."""

VARIABLES = ("TF_CONFIG", "SLURM_", "TPU_NAME", "CUDA_VISIBLE_DEVICES")


def simple(jobs: Any, **options: Any) -> gd.cluster.SimpleClusterResolver:
    """Return the resolver of these jobs."""
    return gd.cluster.SimpleClusterResolver(gd.cluster.ClusterSpec(jobs), **options)


class Pods:
    """A Kubernetes client that gives recorded answers: names, phases and addresses of pods."""

    def __init__(self, *pods: tuple[str, str, str]) -> None:
        self._pods = pods

    def list_pod_for_all_namespaces(self, label_selector: str) -> Any:
        return SimpleNamespace(
            items=[
                SimpleNamespace(
                    metadata=SimpleNamespace(name=name),
                    status=SimpleNamespace(phase=phase, host_ip=address),
                )
                for name, phase, address in self._pods
            ]
        )


class Instances:
    """Both clients of Compute Engine, with recorded answers: the addresses of a group."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses

    def list_instances(self, request: Any) -> Any:
        return [SimpleNamespace(instance=f"zone/{place}") for place in range(len(self._addresses))]

    def get(self, request: Any) -> Any:
        address = self._addresses[int(request["instance"])]
        return SimpleNamespace(network_interfaces=[SimpleNamespace(network_i_p=address)])


@contextmanager
def variables(given: Mapping[str, str]) -> Iterator[None]:
    """Set these variables and no others about clusters; afterwards all are as they were."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(VARIABLES)}
    with mock.patch.dict(os.environ, {**kept, **given}, clear=True):
        yield


def _tf_config(env: Environment) -> Any:
    config = env.input["TF_CONFIG"]
    text = config if isinstance(config, str) else json.dumps(config)
    with variables({"TF_CONFIG": text}):
        if env.label == "tf_config/malformed":
            return gd.cluster.TFConfigClusterResolver().cluster_spec()
        if env.label == "tf_config/overrides":
            resolver = gd.cluster.TFConfigClusterResolver("worker", 0, "grpc")
            before = [resolver.task_type, resolver.task_id, resolver.rpc_layer, resolver.master()]
            resolver.task_id = 1
            return [*before, resolver.task_id]
        resolver = gd.cluster.TFConfigClusterResolver()
        return [
            attempt(lambda: resolver.cluster_spec().as_dict()),
            attempt(lambda: resolver.task_type),
            attempt(lambda: resolver.task_id),
            attempt(lambda: resolver.rpc_layer),
            attempt(lambda: resolver.environment),
            attempt(resolver.master),
            attempt(resolver.master, "worker", 0, "grpc+x"),
        ]


def _slurm(env: Environment) -> Any:
    if "hostlist" in env.input:
        return expand_hostlist(env.input["hostlist"])
    if "expr" in env.input:
        return expand_tasks_per_node(env.input["expr"])
    make = gd.cluster.SlurmClusterResolver
    with variables(env.input["env"]):
        if env.label == "slurm/jobs_ps_worker":
            resolver = make(env.input["jobs"], 8888, 2, 1, 2, False)
            return [resolver.cluster_spec().as_dict(), resolver.get_task_info()]
        if env.label == "slurm/too_many_gpus":
            return make(gpus_per_node=1, gpus_per_task=1)
        resolver = make(env.input.get("jobs"))
        return [
            resolver.cluster_spec().as_dict(),
            resolver.get_task_info(),
            resolver.master(),
            resolver.num_accelerators(),
            os.environ.get("CUDA_VISIBLE_DEVICES"),
        ]


def _simple() -> Any:
    resolver = simple(
        {"worker": ["a:1", "b:2"]}, task_type="worker", task_id=0, num_accelerators={"GPU": 8}
    )
    return [
        resolver.cluster_spec().as_dict(),
        resolver.task_type,
        resolver.task_id,
        resolver.master(),
        resolver.master("worker", 1),
        resolver.master("worker", 1, "grpc"),
        resolver.num_accelerators(),
        resolver.environment,
        resolver.rpc_layer,
    ]


def _union(*clusters: Any) -> Callable[[], Any]:
    return lambda: gd.cluster.UnionResolver(*map(simple, clusters)).cluster_spec().as_dict()


def _first_wins() -> Any:
    first = simple(
        {"worker": ["a:1"]},
        task_type="worker",
        task_id=0,
        rpc_layer="grpc",
        master="m0",
        num_accelerators={"GPU": 1},
    )
    second = simple({"ps": ["p:1"]}, task_type="ps", task_id=3, master="m1")
    union = gd.cluster.UnionResolver(first, second)
    return [
        union.task_type,
        union.task_id,
        union.rpc_layer,
        union.environment,
        union.num_accelerators(),
        union.master(),
    ]


def _override_of_zero() -> Any:
    first = simple({"worker": ["a:1"]}, task_type="worker", task_id=7)
    union = gd.cluster.UnionResolver(first, task_type="ps", task_id=0)
    return [union.task_type, union.task_id]


def _kubernetes() -> Any:
    pods = Pods(("pod-b", "Running", "10.0.0.2"), ("pod-a", "Running", "10.0.0.1"))
    resolver = gd.cluster.KubernetesClusterResolver({"worker": ["x"]}, override_client=pods)
    return [
        resolver.cluster_spec().as_dict(),
        resolver.task_type,
        resolver.task_id,
        resolver.master(),
        resolver.master("worker", 1),
    ]


def _pending() -> Any:
    pods = Pods(("pod-b", "Pending", "10.0.0.2"))
    return gd.cluster.KubernetesClusterResolver(override_client=pods).cluster_spec()


def _compute_engine() -> Any:
    clients = Instances("10.0.0.2", "10.0.0.1")
    resolver = gd.cluster.GCEClusterResolver("p", "z", "g", 8470, service=(clients, clients))
    before = [
        resolver.cluster_spec().as_dict(),
        resolver.task_type,
        resolver.task_id,
        resolver.master(),
        attempt(setattr, resolver, "task_type", "ps"),
    ]
    resolver.task_id = 1
    return [*before, resolver.task_id]


def _without(package: str, make: Callable[[], Any]) -> Callable[[], Any]:
    """Return what makes a resolver where a package is not installed."""

    def program() -> Any:
        with mock.patch.dict(sys.modules, {package: None}):
            return make()

    return program


def _tpu_here() -> Any:
    resolver = gd.cluster.TPUClusterResolver("local")
    return [
        attempt(lambda: resolver.cluster_spec().as_dict() or None),
        attempt(resolver.master),
        attempt(lambda: resolver.task_type),
        attempt(lambda: resolver.task_id),
        attempt(resolver.get_job_name),
    ]


SPARSE = {"worker": {0: "a:1", 2: "b:2"}}
PROGRAMS: dict[str, Callable[[], Any]] = {
    "simple": _simple,
    "simple_dict_instead_of_spec": lambda: ANY.SimpleClusterResolver({"worker": ["a:1"]}),
    "simple_bad_master": lambda: simple({"worker": ["a:1"]}, master=3),
    "simple_no_accel": lambda: simple({"worker": ["a:1"]}).num_accelerators(),
    "simple_missing_task": lambda: simple({"worker": ["a:1"]}).master("worker", 5),
    "union_lists": _union({"worker": ["a:1", "b:2"]}, {"worker": ["c:3"], "ps": ["p:1"]}),
    "union_dict_and_list": _union(SPARSE, {"worker": {1: "c:3"}}),
    "union_conflict": _union(SPARSE, {"worker": {2: "c:3", 5: "d:1"}}),
    "union_list_then_sparse_conflict": _union(
        {"worker": ["a:1", "b:1"]}, {"worker": {1: "c:3", 5: "d:1"}}
    ),
    "union_no_args": lambda: gd.cluster.UnionResolver(),
    "union_bad_arg": lambda: ANY.UnionResolver("x"),
    "union_bad_kwarg": lambda: ANY.UnionResolver(simple({"worker": ["a:1"]}), banana=1),
    "union_first_wins": _first_wins,
    "union_task_id_zero_override": _override_of_zero,
    "k8s_missing_client": _without("kubernetes", gd.cluster.KubernetesClusterResolver),
    "k8s_fake": _kubernetes,
    "k8s_not_running": _pending,
    "gce_missing_client": _without(
        "google.cloud.compute_v1", lambda: gd.cluster.GCEClusterResolver("p", "z", "g", 8470)
    ),
    "gce_fake": _compute_engine,
    "abstract": lambda: ANY.ClusterResolver(),
    "tpu_no_name": lambda: gd.cluster.TPUClusterResolver(),
    "tpu_local": _tpu_here,
}
BY_PART: dict[str, Program] = {"tf_config": _tf_config, "slurm": _slurm}


def resolver(env: Environment) -> Any:
    """Run a case of a resolver."""
    if env.parts[0] in BY_PART:
        return BY_PART[env.parts[0]](env)
    if env.label not in PROGRAMS:
        raise NoProgramError(f"no program for {env.name}")
    with variables({}):
        return PROGRAMS[env.label]()


def multi_worker_util(env: Environment) -> Any:
    """Run a case of the roles in a cluster."""
    cluster, kind, index = (env.input[name] for name in ("cluster", "task_type", "task_id"))
    return [
        attempt(roles.is_chief, cluster, kind, index),
        attempt(roles.worker_count, cluster, kind),
        attempt(roles.id_in_cluster, cluster, kind, index),
        attempt(roles.collective_leader, cluster, kind, index),
        attempt(roles.coordination_leader, cluster),
    ]
