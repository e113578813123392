"""The cluster of the hosts of a Cloud TPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any  # Any: the client of another package, and answers as it gives them

from graphdist.cluster.compute_engine import google_service
from graphdist.cluster.resolver import ClusterResolver, with_protocol
from graphdist.cluster.spec import ClusterSpec
from graphdist.config import tpu_name, tpu_worker_id
from graphdist.errors import ArgumentError, ContextError
from graphdist.quoted import quoted
from graphdist.runtime.devices import count_accelerators
from graphdist.runtime.processes.addresses import join_address
from graphdist.tracing.user_lines import here

_SERVICE = "tpu", "v1"
_PORT = 8470


class TPUClusterResolver(ClusterResolver):
    """The hosts of a Cloud TPU.

    `tpu` is its name, "local" for the TPUs of this host alone, or the addresses of its hosts, as in
    "grpc://10.0.0.1:8470,10.0.0.2:8470"; by default the environment variable `TPU_NAME`. A name is
    looked up in a project and zone with Google's client: the extra `gce`, unless `service` is
    given, what `googleapiclient.discovery.build` returns for "tpu". `coordinator_name` and
    `coordinator_address` add a job of one task. `task_id` is the number of this host in its TPU.

    Raises `ArgumentError` without a name, or without project and zone where they are needed,
    `MissingExtraError` without the client.

    >>> TPUClusterResolver("local").cluster_spec()
    ClusterSpec({})
    """

    def __init__(
        self,
        tpu: str | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
        credentials: Any = "default",
        service: Any = None,
        discovery_url: str | None = None,
    ) -> None:
        self._name = tpu or tpu_name()
        if not self._name:
            raise ArgumentError(
                "TPUClusterResolver is given no TPU, and TPU_NAME is not set",
                source=here(),
                hint="give the TPU's name, its hosts' addresses, or 'local' for the TPUs here",
            )
        self._task_type, self._task_id = job_name, tpu_worker_id() or 0
        self._rpc_layer = "grpc"
        self._coordinator = {}
        if coordinator_name and coordinator_address:
            self._coordinator = {coordinator_name: [coordinator_address]}
        self._place = f"projects/{project}/locations/{zone}/nodes/{self._name}"
        self._service = service
        if self._needs_service and not (project and zone):
            raise ArgumentError(
                f"TPU {self._name!r} is looked up in a project and a zone, which are not given",
                source=here(),
                hint="give project and zone, or the addresses of its hosts",
            )
        if self._needs_service and service is None:
            self._service = google_service(*_SERVICE, credentials, type(self).__name__)

    @staticmethod
    def connect(
        tpu: str | None = None, zone: str | None = None, project: str | None = None
    ) -> TPUClusterResolver:
        """Return the resolver of a TPU; JAX connects to the TPU when it is first used."""
        return TPUClusterResolver(tpu, zone, project)

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses of the hosts, none for "local"; may ask the service.

        Raises `ContextError` for a TPU that is not ready.
        """
        if self._name == "local":
            return ClusterSpec({})
        assert self._task_type is not None
        return ClusterSpec({self._task_type: self._addresses(), **self._coordinator})

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, by default the first; "" for "local"."""
        if self._name == "local":
            return ""
        kind = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        address = self.cluster_spec().task_address(kind, index)
        return with_protocol(address, rpc_layer or self.rpc_layer)

    def get_master(self) -> str:
        """Return the address of the first host."""
        return self.master()

    def get_job_name(self) -> str | None:
        """Return the name of the job of the hosts."""
        return self.task_type

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> Mapping[str, int]:
        """Return how many TPUs this host has."""
        return {"TPU": count_accelerators().get("TPU", 0)}

    @property
    def _needs_service(self) -> bool:
        return self._name != "local" and ":" not in str(self._name)

    def _addresses(self) -> list[str]:
        if not self._needs_service:
            listed = str(self._name).removeprefix("grpc://")
            return [address.strip() for address in listed.split(",")]
        nodes = self._service.projects().locations().nodes()
        node = nodes.get(name=self._place).execute()
        if node.get("state") not in (None, "READY"):
            raise ContextError(
                f"TPU {self._name!r} is in state {node['state']!r}, not 'READY'",
                source=here(),
                hint="wait until it is ready",
            )
        endpoints = node.get("networkEndpoints", ())
        if not endpoints or not all(endpoint.get("ipAddress") for endpoint in endpoints):
            raise ContextError(
                f"TPU {self._name!r} has hosts without an address: {quoted(endpoints)}",
                source=here(),
                hint="wait until it is ready",
            )
        return [
            join_address(endpoint["ipAddress"], endpoint.get("port", _PORT))
            for endpoint in endpoints
        ]
