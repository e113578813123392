"""JAX's coordination service: a process of a cluster joins it and leaves it.

By default JAX aborts the process when another process fails; `jax_enable_recoverability` leaves
failures to graphdist. JAX still aborts when its service, which runs in worker 0, disappears. So the
other workers connect to the service through a relay that hides the service's end from JAX
(`relay.py`), and JAX's own heartbeats, which would reveal the end, are a day apart. A process whose
service is gone must not disconnect from the service: JAX would wait for an answer, even when its
client is garbage collected.

A launcher (Slurm, Open MPI, ..) tells each process where the others are, and JAX reads that itself
(`LaunchedJaxService`). Then only the function of jaxlib that creates JAX's client sees the address
of the service. So this function is replaced by one that connects through the relay.

Gloo, which runs the collectives of CPUs, listens at the address that the machine's own name
resolves to, and JAX has no setting for that. The function of jaxlib that creates Gloo's collectives
takes an address. So this function is replaced by one that passes this worker's address in the
cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any  # Any: jaxlib has no types for it

import jax
import jaxlib._jax as jaxlib_extension  # type: ignore[import-not-found]

from graphdist.runtime.processes.addresses import (
    address_towards,
    join_address,
    resolved,
    split_address,
)
from graphdist.runtime.processes.relay import Relay

_SECONDS_UNTIL_JAX_ABORTS = 2 * 24 * 3600
"""JAX's limit for a silent service. graphdist raises an exception that names the worker; JAX would
end the process, while the user's code handles that exception."""


@dataclass(frozen=True)
class ServiceAddress:
    """The address of JAX's service: process 0 listens at `bind`, others connect to `host`."""

    host: str
    port: int
    bind: str
    own_address: str
    """The IP address at which other processes reach this process."""


class JaxService:
    """The connection of this process, `index` of `count`, to the service of a cluster.

    If the relay fails, its thread calls `crashed` with the reason.
    """

    _relay: Relay | None = None

    def __init__(
        self, place: ServiceAddress, count: int, index: int, crashed: Callable[[str], None]
    ) -> None:
        """Describe the service; `join` connects to it."""
        self._place, self._count, self._index, self._crashed = place, count, index, crashed

    def join(self, start_seconds: float) -> None:
        """Start the service in process 0, join it, and start the devices of all processes.

        It waits for the other processes, at most `start_seconds`, and cannot be interrupted.
        """
        jax.config.update("jax_enable_recoverability", True)
        jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        self._initialize(max(1, int(start_seconds)))
        jax.devices()

    def _initialize(self, start_seconds: int) -> None:
        place = self._place
        _bind_gloo(place.own_address)
        address = join_address(place.host, place.port)
        jax.distributed.initialize(
            address if self._index == 0 else self._relayed(place.host, place.port),
            self._count,
            self._index,
            local_device_ids=None,
            cluster_detection_method="deactivate",
            initialization_timeout=start_seconds,
            heartbeat_timeout_seconds=_SECONDS_UNTIL_JAX_ABORTS,
            coordinator_bind_address=join_address(place.bind, place.port),
        )

    def _relayed(self, host: str, port: int) -> str:
        """Start a relay to the service, and return the address to connect to instead."""
        self._relay = Relay(host, port, self._crashed)
        self._relay.start()
        return self._relay.address

    def leave(self, timeout_seconds: float) -> bool:
        """Disconnect from the service; return whether that succeeded within `timeout_seconds`."""

        def shut_down() -> None:
            with suppress(Exception):  # the service of a job that fails may be gone already
                jax.distributed.shutdown()

        thread = threading.Thread(target=shut_down, name="graphdist-shutdown", daemon=True)
        thread.start()
        thread.join(timeout_seconds)
        if thread.is_alive():
            return False
        if self._relay is not None:
            self._relay.stop()
        return True


class LaunchedJaxService(JaxService):
    """The service of processes that a launcher started, which JAX finds by itself.

    `method` is JAX's name of the way to find it; None lets JAX choose.
    """

    def __init__(self, method: str | None, crashed: Callable[[str], None]) -> None:
        """Describe the service; `join` connects to it."""
        self._method, self._crashed = method, crashed

    def _initialize(self, start_seconds: int) -> None:
        extension: Any = jaxlib_extension
        connect = extension.get_distributed_runtime_client

        def connect_through_relay(address: str, index: int, **options: Any) -> Any:
            host, port = split_address(address)
            _bind_gloo(address_towards(host) or resolved(host, port)[0])
            return connect(address if index == 0 else self._relayed(host, port), index, **options)

        extension.get_distributed_runtime_client = connect_through_relay
        try:
            jax.distributed.initialize(
                cluster_detection_method=self._method,
                initialization_timeout=start_seconds,
                heartbeat_timeout_seconds=_SECONDS_UNTIL_JAX_ABORTS,
            )
        finally:
            extension.get_distributed_runtime_client = connect


def _bind_gloo(address: str) -> None:
    extension: Any = jaxlib_extension
    made_with = getattr(extension.make_gloo_tcp_collectives, "func", None)
    make = made_with or extension.make_gloo_tcp_collectives
    extension.make_gloo_tcp_collectives = partial(make, hostname=address)
