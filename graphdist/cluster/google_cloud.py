"""Clusters on Google Cloud: a group of instances of Compute Engine, the hosts of a Cloud TPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any  # Any: the client of another package, and answers as it gives them

from graphdist.cluster.resolver import TaskResolver
from graphdist.cluster.spec import ClusterSpec
from graphdist.config import tpu_name, tpu_worker_id
from graphdist.errors import (
    ArgumentError,
    ArgumentTypeError,
    ContextError,
    UnsupportedError,
)
from graphdist.quoted import quoted
from graphdist.runtime.devices import count_accelerators
from graphdist.runtime.extras import require_package
from graphdist.runtime.processes.addresses import join_address


class GCEClusterResolver(TaskResolver):
    """The running instances of an instance group, in order of their addresses, one task each.

    All instances are tasks of one job, `task_type`, and listen at one port. `task_id` is the index
    of this process and may be set later; setting `task_type` raises `ContextError`.

    `service` is a pair of Google's clients, `InstanceGroupsClient` and `InstancesClient` of
    `google.cloud.compute_v1`. By default the clients are made with `credentials`, which needs the
    extra `gce`; raises `MissingExtraError` without this extra.
    """

    def __init__(
        self,
        project: str,
        zone: str,
        instance_group: str,
        port: int,
        task_type: str = "worker",
        task_id: int | None = 0,
        rpc_layer: str | None = "grpc",
        credentials: Any = "default",
        service: Any = None,
    ) -> None:
        self._place = {"project": project, "zone": zone}
        self._instance_group, self._port = instance_group, port
        self._task_type, self._task_id, self._rpc_layer = task_type, task_id, rpc_layer
        if service is None:
            require_package("google.cloud.compute_v1", type(self).__name__)
            from google.cloud import compute_v1

            chosen = _chosen(credentials)
            service = (
                compute_v1.InstanceGroupsClient(credentials=chosen),
                compute_v1.InstancesClient(credentials=chosen),
            )
        if not isinstance(service, tuple):
            raise _no_client(service, "(InstanceGroupsClient(..), InstancesClient(..))")
        self._groups, self._instances = service

    @property
    def task_type(self) -> str | None:
        """Return the name of the only job, which cannot be set."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        raise ContextError(
            f"task_type of a GCEClusterResolver is {self._task_type!r} and cannot change",
            hint="give it to the constructor: it names the one job",
        )

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses of the instances; asks the service."""
        listed = self._groups.list_instances(
            request={
                **self._place,
                "instance_group": self._instance_group,
                "instance_groups_list_instances_request_resource": {"instance_state": "RUNNING"},
            }
        )
        addresses = sorted(self._address(item.instance.rpartition("/")[2]) for item in listed)
        return ClusterSpec({self._task_type or "worker": addresses})

    def _address(self, name: str) -> str:
        instance = self._instances.get(request={**self._place, "instance": name})
        address = next((each.network_i_p for each in instance.network_interfaces), None)
        if not address:
            raise ContextError(f"instance {name!r} has no address in a network")
        return join_address(address, self._port)


def _chosen(credentials: Any) -> Any:
    """Return credentials for Google's clients; None lets the clients find the default ones."""
    return None if credentials == "default" else credentials


def _no_client(service: Any, clients: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"service is {quoted(service)}, no client of the libraries google-cloud-*",
        hint=f"give service={clients}, or leave it out",
    )


_PORT = 8470


class TPUClusterResolver(TaskResolver):
    """The hosts of a Cloud TPU.

    `tpu` is its name, "local" for the TPUs of this host alone, or the addresses of its hosts, as in
    "grpc://10.0.0.1:8470,10.0.0.2:8470"; by default the environment variable `TPU_NAME`. A name is
    looked up in a project and zone with `service`, a `TpuClient` of `google.cloud.tpu_v2`. By
    default the client is made with `credentials`, which needs the extra `gce`. `coordinator_name`
    and `coordinator_address` add a job of one task. `task_id` is the index of this host in its TPU.

    Raises `ArgumentError` without a name, or without project and zone where they are needed,
    `MissingExtraError` without the extra, `UnsupportedError` for a `discovery_url`, which Google's
    client does not have.

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
        if discovery_url is not None:
            raise UnsupportedError(
                f"discovery_url is {discovery_url!r}: TPUs are looked up without a discovery",
                hint="to ask another endpoint give service=TpuClient(client_options=..)",
            )
        self._name = tpu or tpu_name()
        if not self._name:
            raise ArgumentError(
                "TPUClusterResolver is given no TPU, and TPU_NAME is not set",
                hint="give the TPU's name, its hosts' addresses, or 'local' for the TPUs here",
            )
        self._task_type, self._task_id = job_name, tpu_worker_id() or 0
        self._rpc_layer = "grpc"
        self._coordinator = {}
        if coordinator_name and coordinator_address:
            self._coordinator = {coordinator_name: [coordinator_address]}
        self._node = f"projects/{project}/locations/{zone}/nodes/{self._name}"
        self._service = service
        if self._needs_service and not (project and zone):
            raise ArgumentError(
                f"TPU {self._name!r} is looked up by project and zone, which are not given",
                hint="give project and zone, or the addresses of its hosts",
            )
        if self._needs_service and service is None:
            require_package("google.cloud.tpu_v2", type(self).__name__)
            from google.cloud import tpu_v2

            self._service = tpu_v2.TpuClient(credentials=_chosen(credentials))
        if self._needs_service and not hasattr(self._service, "get_node"):
            raise _no_client(service, "TpuClient(..)")

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

    def get_master(self) -> str:
        """Return the address of the first host."""
        return self.master()

    def get_job_name(self) -> str | None:
        """Return the name of the job of the hosts."""
        return self.task_type

    def _accelerators(self) -> Mapping[str, int]:
        """Return how many TPUs this host has."""
        return {"TPU": count_accelerators().get("TPU", 0)}

    @property
    def _needs_service(self) -> bool:
        return self._name != "local" and ":" not in str(self._name)

    def _addresses(self) -> list[str]:
        if not self._needs_service:
            listed = str(self._name).removeprefix("grpc://")
            return [address.strip() for address in listed.split(",")]
        node = self._service.get_node(request={"name": self._node})
        if node.state.name != "READY":
            raise ContextError(
                f"TPU {self._name!r} is in state {node.state.name!r}, not 'READY'",
                hint="wait until it is ready",
            )
        endpoints = node.network_endpoints
        if not endpoints or not all(endpoint.ip_address for endpoint in endpoints):
            raise ContextError(
                f"TPU {self._name!r} has hosts without an address: {quoted(endpoints)}",
                hint="wait until it is ready",
            )
        return [join_address(each.ip_address, each.port or _PORT) for each in endpoints]
