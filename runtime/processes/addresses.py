"""Addresses of workers: their text, the IP addresses they resolve to, and sockets that listen.

A worker listens only at its own address in the cluster. A name may not resolve to that address:

* Debian and other systems resolve a machine's own name to 127.0.1.1, which other machines cannot
  reach. If the cluster has several machines, a worker uses its address on the route to another
  worker.
* In a container, or behind a load balancer, other workers connect to an address that the worker
  itself does not have. Then the user sets the address at which the worker listens.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import sys
from collections.abc import Sequence

from graphdist.ir.errors import RuntimeFailure
from graphdist.ir.source import UNKNOWN, Source
from graphdist.quoted import quoted

BIND_VARIABLE = "GRAPHDIST_WORKER_BIND"
_LARGEST_PORT = 65535
_LONGEST_NAME = 254
"""The most characters of a domain name with a dot at its end (RFC 1035)."""


class WorkerError(RuntimeFailure):
    """A worker did not start, died, left, or runs another program than the other workers."""


def split_address(address: str, at: Source = UNKNOWN) -> tuple[str, int]:
    """Return host and port of an address like "host:port"; raise `WorkerError` for another text.

    >>> split_address("10.0.0.1:2222"), split_address("[fd00::1]:2222")
    (('10.0.0.1', 2222), ('fd00::1', 2222))
    """
    written, _, digits = address.rpartition(":")
    is_bracketed = written.startswith("[") and written.endswith("]")
    host = written[1:-1] if is_bracketed else written
    if is_bracketed != (":" in host) or not is_host(host) or not _is_number(digits):
        hint = "write an IPv6 address in brackets: '[fd00::1]:2222'" if ":" in host else ""
        raise WorkerError(
            f"the address {quoted(address)} of a worker is not like 'host:port'",
            source=at,
            hint="leave the protocol away" if "://" in address else hint,
        )
    port = int(digits) if len(digits) <= len(str(_LARGEST_PORT)) else _LARGEST_PORT + 1
    if not 1 <= port <= _LARGEST_PORT:
        raise WorkerError(
            f"the port of the address {quoted(address)} of a worker is not from 1 to "
            f"{_LARGEST_PORT}",
            source=at,
        )
    return host, port


def is_host(text: str) -> bool:
    """Return whether a text can be the name or the IP address of a host, without a look-up.

    >>> [is_host(text) for text in ("a.example", "bücher.example", "fd00::1", "a..b", "256.1.1.1")]
    [True, True, True, False, False]
    """
    if ":" in text or not text.strip("0123456789."):
        try:
            ipaddress.ip_address(text)
        except ValueError:
            return False
        return True
    try:
        name = text.encode("idna").decode()  # raises for labels that are empty or too long
    except UnicodeError:
        return False
    return len(name) <= _LONGEST_NAME and re.fullmatch(r"[\w.-]+", name, re.ASCII) is not None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def join_address(host: str, port: int) -> str:
    """Return the address of a host and port.

    >>> join_address("::1", 2222)
    '[::1]:2222'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def numeric_addresses(address: str, cluster: Sequence[str], at: Source = UNKNOWN) -> list[str]:
    """Return the IP addresses at which this process can reach a worker.

    `address` is the worker's address, `cluster` has the addresses of all workers. Raises `OSError`
    for a name that does not resolve.
    """
    host, port = split_address(address, at)
    addresses = resolved(host, port)
    if not all(map(is_loopback, addresses)):
        return [ip for ip in addresses if not is_loopback(ip)]
    others = [split_address(other, at)[0] for other in cluster]
    on_route = [own for other in others if (own := address_towards(other)) is not None]
    return on_route[:1] or addresses


def resolved(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host; raises `OSError` if there are none."""
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long
        raise OSError(str(error)) from error
    addresses = dict.fromkeys(str(answer[4][0]) for answer in answers)
    return sorted(addresses, key=lambda ip: ":" in ip)  # IPv4 first, on all workers


def address_towards(host: str) -> str | None:
    """Return this machine's address on the route to a host; None for a host on this machine."""
    try:
        far = next(ip for ip in resolved(host, 0) if not is_loopback(ip))
        family = socket.AF_INET6 if ":" in far else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # it sends nothing
            probe.connect((far, 9))
            own: str = probe.getsockname()[0]
    except (OSError, StopIteration):
        return None
    return None if is_loopback(own) else own


def is_loopback(address: str) -> bool:
    """Return whether an IP address is a loopback address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def listen(host: str, port: int, who: str, at: Source = UNKNOWN) -> socket.socket:
    """Return a socket that listens at an IP address; raises `WorkerError` if that fails."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)  # raises if the port is in use
    except OSError as error:
        listener.close()
        raise WorkerError(
            f"{who} cannot listen at {join_address(host, port)}: {error.strerror}",
            source=at,
            hint=_HINTS.get(error.errno or 0, ""),
        ) from error
    return listener


_HINTS = {
    errno.EADDRINUSE: "another program has the port: end it, or choose another",
    errno.EADDRNOTAVAIL: "this machine does not have that address: correct it or, in a container "
    f"or behind a load balancer, set {BIND_VARIABLE} to one that it has (0.0.0.0 for all)",
}


class ReservedPort:
    """A port of an IP address that the system reserves until `close`.

    A program that knows the port's number can listen at the port before `close`, if the program
    sets `SO_REUSEADDR`. Systems other than Linux do not allow this. On these systems the port was
    free when it was chosen, but is not reserved.
    """

    def __init__(self, host: str) -> None:
        """Choose a port; raises `OSError` for an address of another machine."""
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, 0))
        except OSError:
            self.close()
            raise
        self.number: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self.close()

    def close(self) -> None:
        """Release the port."""
        self._socket.close()
