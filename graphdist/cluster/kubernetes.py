"""The cluster of pods that carry a label, as a Kubernetes API server lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any  # Any: the client of another package, and pods as it gives them

from graphdist.cluster.resolver import TaskResolver
from graphdist.cluster.spec import ClusterSpec
from graphdist.errors import ArgumentError, ContextError
from graphdist.runtime.extras import require_package
from graphdist.runtime.processes.addresses import join_address


class KubernetesExecutableLocation(Enum):
    """Where the program runs, which decides how it authenticates to the API server."""

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


class KubernetesClusterResolver(TaskResolver):
    """The running pods with given labels, in order of their names, one task each.

    `job_to_label_mapping` has for each job the label selectors of its pods. All pods listen at one
    port. Kubernetes does not tell which task this process is: set `task_type` and `task_id`, for
    instance to the completion index of an indexed Job.

    Needs the extra `kubernetes`, unless `override_client` is given, an object with
    `list_pod_for_all_namespaces(label_selector=...)`. Raises `MissingExtraError` without the extra,
    and `ArgumentError` for an unknown location. `cluster_spec` raises `ContextError` for a pod that
    does not run (yet).
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: KubernetesExecutableLocation = (
            KubernetesExecutableLocation.WITHIN_CLUSTER
        ),
    ) -> None:
        self._selectors = dict(job_to_label_mapping or {"worker": ["job-name=tensorflow"]})
        self._port, self._rpc_layer = tf_server_port, rpc_layer
        self._client = override_client or _client(executable_location)

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses of all pods by job; asks the API server."""
        return ClusterSpec(
            {
                job: [
                    join_address(_address(pod), self._port)
                    for selector in selectors
                    for pod in self._pods(selector)
                ]
                for job, selectors in self._selectors.items()
            }
        )

    def _pods(self, selector: str) -> list[Any]:
        listed = self._client.list_pod_for_all_namespaces(label_selector=selector)
        pods = sorted(listed.items, key=lambda pod: pod.metadata.name)
        for pod in pods:
            if pod.status.phase != "Running":
                raise ContextError(
                    f"pod {pod.metadata.name!r} is in phase {pod.status.phase!r}, not 'Running'",
                    hint="wait for all pods: their addresses are not final before they run",
                )
        return pods


def _address(pod: Any) -> str:
    """Return the address of a pod, or of its host if the pod has no address."""
    address = getattr(pod.status, "pod_ip", None) or pod.status.host_ip
    if not address:
        raise ContextError(
            f"pod {pod.metadata.name!r} runs, and has no address yet",
            hint="wait for all pods, and ask again",
        )
    return address


def _client(location: KubernetesExecutableLocation) -> Any:
    if not isinstance(location, KubernetesExecutableLocation):
        raise ArgumentError(
            f"executable_location is {location!r}, not a KubernetesExecutableLocation"
        )
    require_package("kubernetes", "KubernetesClusterResolver")
    from kubernetes import client, config

    if location is KubernetesExecutableLocation.OFF_CLUSTER:
        config.load_kube_config()
    else:
        config.load_incluster_config()
    return client.CoreV1Api()
