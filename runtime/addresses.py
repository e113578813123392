"""Addresses of workers: what they say, and what listens there."""

from __future__ import annotations

import errno
import socket

from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.buffers import RuntimeFailure

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class WorkerError(RuntimeFailure):
    """A worker that did not start, died, left, or does something else than the others."""


def split_address(address: str, at: Source = UNKNOWN) -> tuple[str, int]:
    """Return host and port of an address like "host:port"; raises `WorkerError` for another."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise WorkerError(f"the address {address!r} of a worker is not like 'host:port'", source=at)
    return host.strip("[]"), int(port)


def listener_host(host: str) -> str:
    """Return the address to listen at for a host: loopback for itself, else all interfaces."""
    return "127.0.0.1" if host in LOOPBACK else "0.0.0.0"


def listen(host: str, port: int, who: str, at: Source = UNKNOWN) -> socket.socket:
    """Return a socket bound to a port; raises `WorkerError` if that is not possible."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((listener_host(host), port))
        listener.listen(128)  # a port in use is noticed here
    except OSError as error:
        listener.close()
        in_use = error.errno == errno.EADDRINUSE
        raise WorkerError(
            f"{who} cannot listen at port {port}: {error.strerror}",
            source=at,
            hint="another program has the port: end it, or choose another" if in_use else "",
        ) from error
    return listener


def free_port(host: str) -> int:
    """Return a port that nothing listens at."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port
