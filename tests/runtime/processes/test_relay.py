"""What a relay passes on, and what it keeps to itself: that the service is gone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from graphdist.runtime.processes import relay as relay_module
from graphdist.runtime.processes.relay import MAX_CONNECTIONS, Relay
from tests.free_port import free_port

HOST = "127.0.0.1"
Connected = Callable[[], tuple[socket.socket, socket.socket]]


@pytest.fixture
def service() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(10)
        yield listener


@pytest.fixture
def relay(service: socket.socket) -> Iterator[Relay]:
    started = Relay(HOST, service.getsockname()[1], crashed=pytest.fail)
    started.start()
    yield started
    started.stop()
    started.join(10)
    assert not started.is_alive()


@pytest.fixture
def connected(relay: Relay, service: socket.socket) -> Iterator[Connected]:
    """Return what makes a connection through the relay: the client's end and the service's."""
    made: list[socket.socket] = []

    def connect() -> tuple[socket.socket, socket.socket]:
        client = to(relay)
        accepted, _ = service.accept()
        accepted.settimeout(10)
        made.extend((client, accepted))
        return client, accepted

    yield connect
    for one in made:
        one.close()


def to(relay: Relay) -> socket.socket:
    host, port = relay.address.split(":")
    client = socket.create_connection((host, int(port)), 10)
    client.settimeout(10)
    return client


def received(stream: socket.socket, count: int) -> bytes:
    read = bytearray()
    while len(read) < count:
        read += stream.recv(count - len(read))
    return bytes(read)


def is_silent(stream: socket.socket) -> bool:
    """Return whether nothing comes for a while, not even an end."""
    stream.settimeout(0.2)
    try:
        stream.recv(1)
    except TimeoutError:
        return True
    return False


def test_both_sides_hear_each_other(connected: Connected) -> None:
    client, service = connected()
    client.sendall(b"question")
    assert received(service, 8) == b"question"
    service.sendall(b"answer")
    assert received(client, 6) == b"answer"


def test_connections_are_kept_apart(connected: Connected) -> None:
    pairs = [connected() for _ in range(3)]
    for number, (client, _) in enumerate(pairs):
        client.sendall(bytes([number]))
    assert [received(service, 1) for _, service in pairs] == [b"\0", b"\1", b"\2"]


def test_more_than_the_sockets_hold_is_kept_in_order(connected: Connected) -> None:
    client, service = connected()
    sent = bytes(range(256)) * 32_768  # 8 MiB, which nobody reads at first
    threads = [
        threading.Thread(target=one.sendall, args=(sent,), daemon=True) for one in (client, service)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    assert received(service, len(sent)) == sent
    assert received(client, len(sent)) == sent
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_service_that_goes_is_hidden(
    connected: Connected, relay: Relay, service: socket.socket
) -> None:
    client, accepted = connected()
    accepted.sendall(b"last words")
    service.close()
    accepted.close()
    assert received(client, 10) == b"last words"
    assert is_silent(client)
    client.sendall(b"are you there?")
    assert is_silent(client)
    again = to(relay)  # nor by one that comes later
    again.sendall(b"anyone?")
    assert is_silent(again)
    again.close()


def test_a_service_that_is_not_there_yet_is_noticed() -> None:
    port = free_port(HOST)
    relay = Relay(HOST, port, crashed=pytest.fail)
    relay.start()
    early = to(relay)
    assert early.recv(1) == b""  # so that the client tries again
    with socket.create_server((HOST, port)) as service:
        client = to(relay)
        accepted, _ = service.accept()
        client.sendall(b"there")
        assert received(accepted, 5) == b"there"
        for one in (early, client, accepted):
            one.close()
    relay.stop()
    relay.join(10)


def test_a_connection_that_the_service_closes_is_not_its_end(
    connected: Connected, relay: Relay
) -> None:
    _, refused = connected()
    refused.close()
    client, service = connected()
    client.sendall(b"question")
    assert received(service, 8) == b"question"


def test_connections_are_few(connected: Connected, relay: Relay) -> None:
    pairs = [connected() for _ in range(MAX_CONNECTIONS)]
    one_more = to(relay)
    assert one_more.recv(1) == b""
    pairs[0][0].close()
    assert pairs[0][1].recv(1) == b""
    client, service = connected()
    client.sendall(b"question")
    assert received(service, 8) == b"question"
    one_more.close()


def test_what_ends_the_thread_is_told(
    service: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(listener: socket.socket) -> float:
        return 1 / 0

    monkeypatch.setattr(relay_module, "accepted", broken)
    told: SimpleQueue[str] = SimpleQueue()
    relay = Relay(HOST, service.getsockname()[1], told.put)
    relay.start()
    assert told.get(timeout=10) == "its relay failed: ZeroDivisionError: division by zero"
    relay.join(10)


def test_a_client_that_goes_is_noticed(connected: Connected) -> None:
    client, service = connected()
    other, other_service = connected()
    client.sendall(b"last words")
    client.close()
    assert received(service, 10) == b"last words"
    assert service.recv(1) == b""
    other.sendall(b"still here")
    assert received(other_service, 10) == b"still here"
