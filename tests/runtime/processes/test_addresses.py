"""Ports that are chosen before they are listened at."""

from __future__ import annotations

import socket
import sys

import pytest

from graphdist.runtime.processes.addresses import ReservedPort, listen

HOST = "127.0.0.1"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ports cannot be reserved")
def test_a_reserved_port_is_for_those_that_are_told() -> None:
    port = ReservedPort(HOST)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HOST, port.number))
    with (
        listen(HOST, port.number, "worker 0") as listener,
        socket.create_connection((HOST, port.number)),
    ):
        accepted, _ = listener.accept()
        accepted.close()
    port.close()


def test_a_port_of_another_machine() -> None:
    with pytest.raises(OSError, match="assign"):
        ReservedPort("192.0.2.1")
