"""Ports for tests that start servers."""

from __future__ import annotations

from graphdist.runtime.processes.addresses import ReservedPort


def free_port(host: str) -> int:
    """Return a port of an IP address that nothing listens at."""
    port = ReservedPort(host)
    port.close()
    return port.number
