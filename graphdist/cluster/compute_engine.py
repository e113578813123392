"""The cluster of the instances of a group on Google Compute Engine."""

from __future__ import annotations

from typing import Any  # Any: the client of another package, and answers as it gives them

from graphdist.cluster.resolver import ClusterResolver
from graphdist.cluster.spec import ClusterSpec
from graphdist.errors import ContextError, MissingExtraError
from graphdist.runtime.processes.addresses import join_address
from graphdist.tracing.user_lines import here


class GCEClusterResolver(ClusterResolver):
    """The running instances of an instance group, in order of their addresses, one task each.

    All are of one job, `task_type`, and listen at one port. `task_id` says which this process is
    and may be set later; setting `task_type` raises `ContextError`.

    Needs the extra `gce`, unless `service` is given, what `googleapiclient.discovery.build` returns
    for "compute"; raises `MissingExtraError` without it. `credentials` go to that function.
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
        self._project, self._zone = project, zone
        self._instance_group, self._port = instance_group, port
        self._task_type, self._task_id, self._rpc_layer = task_type, task_id, rpc_layer
        self._service = service or google_service("compute", "v1", credentials, type(self).__name__)

    @property
    def task_type(self) -> str | None:
        """Return the one job there is; it cannot be set."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        raise ContextError(
            f"task_type of a GCEClusterResolver is {self._task_type!r} and stays so",
            source=here(),
            hint="give it to the constructor: it names the one job",
        )

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses of the instances; asks the service."""
        groups = self._service.instanceGroups()
        request = groups.listInstances(
            project=self._project,
            zone=self._zone,
            instanceGroup=self._instance_group,
            body={"instanceState": "RUNNING"},
            orderBy="name",
        )
        addresses = []
        while request is not None:
            response = request.execute()
            for item in response.get("items", ()):
                addresses.append(self._address(item["instance"].rpartition("/")[2]))
            request = groups.listInstances_next(
                previous_request=request, previous_response=response
            )
        return ClusterSpec({self._task_type or "worker": sorted(addresses)})

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, by default this one."""
        return self._own_address(task_type, task_id, rpc_layer)

    def _address(self, name: str) -> str:
        instances = self._service.instances()
        instance = instances.get(project=self._project, zone=self._zone, instance=name).execute()
        address = next((each.get("networkIP") for each in instance["networkInterfaces"]), None)
        if not address:
            raise ContextError(f"instance {name!r} has no address in a network", source=here())
        return join_address(address, self._port)


def google_service(name: str, version: str, credentials: Any, what: str) -> Any:
    """Return Google's client of one of its services; raises `MissingExtraError` without it."""
    try:
        from googleapiclient import discovery
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs the package google-api-python-client, which is not installed",
            source=here(),
            hint='pip install "graphdist[gce]"',
        ) from error
    given = None if credentials == "default" else credentials  # the library finds the default ones
    return discovery.build(name, version, credentials=given)
