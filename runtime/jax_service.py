"""JAX's coordination service: how a process of a cluster joins it, and leaves it.

JAX is told to leave failures to us (`jax_enable_recoverability`): by itself it aborts the process.
It does so all the same when its service disappears, which is in worker 0. So the others reach that
through a relay, which keeps it from them (`relay.py`). A process whose service is gone cannot take
leave of it: JAX would wait for an answer, also where its client is only dropped.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import jax

from graphdist.runtime.addresses import listener_host, split_address
from graphdist.runtime.relay import Relay


class JaxService:
    """This process's part in the service of a cluster: one of `count`, number `index`."""

    def __init__(
        self, address: str, count: int, index: int, start_seconds: float, silence_seconds: float
    ) -> None:
        """Start the service in process 0, and join it; the limits are those of `Patience`."""
        jax.config.update("jax_enable_recoverability", True)
        jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        host, port = split_address(address)
        self._relay: Relay | None = None
        if index != 0:
            self._relay = Relay(host, port)
            self._relay.start()
            address = self._relay.address
        jax.distributed.initialize(
            address,
            count,
            index,
            local_device_ids=None,
            cluster_detection_method="deactivate",
            initialization_timeout=max(1, int(start_seconds)),
            # Longer than ours, which comes with a name.
            heartbeat_timeout_seconds=int(2 * silence_seconds) + 10,
            coordinator_bind_address=f"{listener_host(host)}:{port}" if index == 0 else None,
        )
        if self._relay is not None:
            self._relay.hides_loss = True

    def leave(self, timeout_seconds: float) -> bool:
        """Take leave, and return whether that was done in time; the service may go meanwhile."""

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
