"""Messages arrive as they were sent or not at all, and strangers keep nobody out of a server."""

from __future__ import annotations

import logging
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from threading import Semaphore, Thread
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from graphdist.errors import RuntimeFailure
from graphdist.parameter_server import connections
from graphdist.parameter_server.connections import (
    MAX_STRANGERS,
    BadMessage,
    Channel,
    RequestListener,
    ServerConnection,
    ServerIsLost,
)
from graphdist.parameter_server.servers import Servers
from graphdist.runtime.processes.workers import WorkerTimeouts

KEY = b"a key"
NO_END = struct.pack("!QQ", 0, 1 << 62)
"""The sizes of a message of more bytes than any memory has."""


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        return here, listener.accept()[0]


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    here, there = (Channel(stream, lambda: None) for stream in connected())
    yield here, there
    here.close()
    there.close()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(3_000_000, dtype=np.float32),
        np.zeros((0, 3), np.float32),
        np.float32(3),
        np.arange(24).reshape(4, 6)[::2, 1:],
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.asarray(jnp.arange(4, dtype=jnp.bfloat16)),
        np.array([True, False]),
    ],
    ids=str,
)
def test_arrays_arrive_as_they_were_sent(array: Any, ends: tuple[Channel, Channel]) -> None:
    # What is larger than the system keeps needs a thread.
    thread = Thread(target=ends[0].send, args=(("apply", (array, np.ones(2))),))
    thread.start()
    name, (found, other) = ends[1].receive()
    thread.join()
    assert name == "apply"
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    np.testing.assert_array_equal(other, [1, 1])


@pytest.mark.parametrize("size", [1, 1_000, 1_000_001])
def test_arrays_are_received_where_jax_uses_them_without_a_copy(
    size: int, ends: tuple[Channel, Channel]
) -> None:
    arrays = [np.ones(size, np.uint8), np.ones(size, np.float32)]
    thread = Thread(target=ends[0].send, args=(arrays,))
    thread.start()
    assert [array.ctypes.data % 64 for array in ends[1].receive()] == [0, 0]
    thread.join()


def message_of_bytes() -> bytes:
    here, there = connected()
    with here, there:
        Channel(here, lambda: None).send(np.arange(100))
        here.shutdown(socket.SHUT_WR)
        return there.makefile("rb").read()


def test_a_message_whose_arrays_break_off_is_none() -> None:
    here, there = connected()
    with here, there:
        here.sendall(message_of_bytes()[:-1])
        here.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            Channel(there, lambda: None).receive()


@pytest.mark.parametrize("kept", [1, 20, 200, -1])
def test_one_that_stops_in_a_message_is_asked_about(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SECONDS_OF_A_WAIT", 0.01)
    here, there = connected()

    def is_stopped() -> None:
        raise ServerIsLost(0, "has not answered")

    with here, there:
        here.sendall(message_of_bytes()[:kept])
        with pytest.raises(ServerIsLost):
            Channel(there, is_stopped).receive()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> RequestListener:
    def answer(name: str, arguments: Any) -> Any:
        if name == "fails":
            raise KeyError(*arguments)
        return (lambda: None) if name == "not to be sent" else (name, arguments)

    return RequestListener("127.0.0.1", KEY, answer)


def connection(listener: RequestListener, key: bytes = KEY) -> ServerConnection:
    return ServerConnection(0, lambda: listener.address, lambda: "", key)


def asked(listener: RequestListener, name: str, *arguments: Any) -> Any:
    used = connection(listener)
    try:
        used.request(name, arguments)
        return used.answer()
    finally:
        used.close()


def test_requests_are_answered(listener: RequestListener) -> None:
    assert asked(listener, "read", 1, 2) == ("read", (1, 2))
    with pytest.raises(KeyError, match="5"):
        asked(listener, "fails", 5)
    with pytest.raises(RuntimeFailure, match="function"):
        asked(listener, "not to be sent")


def test_of_many_that_wait_one_finds_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[str] = []
    found: list[str] = []

    def problem() -> str:
        asked_for.append("problem")
        return f"is asked for the {len(asked_for)}. time"

    def address() -> tuple[str, int]:
        raise ConnectionError("no answer")

    connection, waits = ServerConnection(0, address, problem, KEY), Semaphore(0)
    held = connection.held

    def noted(since: float) -> AbstractContextManager[None]:
        waits.release()
        return held(since)

    monkeypatch.setattr(connection, "held", noted)
    servers = Servers([], KEY, WorkerTimeouts())
    servers._connections = [connection]

    def read() -> None:
        with pytest.raises(ServerIsLost) as error:
            servers._answers({0: ("read", ([],))})
        found.append(error.value.why)

    threads = [Thread(target=read) for _ in range(3)]
    with held(time.monotonic()):
        for thread in threads:
            thread.start()
        for _ in threads:
            waits.acquire()
        with pytest.raises(ServerIsLost):
            connection.request("read", ())
    for thread in threads:
        thread.join()
    assert found == ["is asked for the 1. time"] * 3
    # Who begins later finds out anew: it may have come back.
    read()
    assert found[-1] == "is asked for the 2. time"


def test_one_without_the_key_is_not_heard(listener: RequestListener) -> None:
    with pytest.raises(ServerIsLost, match="cannot be reached"):
        connection(listener, b"another key").request("read", ())
    assert asked(listener, "read") == ("read", ())


def test_a_listener_without_the_key_is_not_told_anything() -> None:
    other = RequestListener("127.0.0.1", b"another key", lambda name, arguments: None)
    with pytest.raises(ServerIsLost, match="cannot be reached"):
        asked(other, "read")


def test_an_overheard_proof_is_of_no_use(ends: tuple[Channel, Channel]) -> None:
    here, there = ends
    caught: list[bytes] = []

    def prove() -> None:
        with suppress(EOFError, OSError):
            here.prove(KEY)

    thread = Thread(target=prove)
    thread.start()
    there._send(memoryview(b"0" * 32))
    caught.append(bytes(there._received(64)))
    there._stream.shutdown(socket.SHUT_RDWR)
    thread.join()
    first, second = (Channel(stream, lambda: None) for stream in connected())
    first._send(memoryview(caught[0]))
    with pytest.raises(BadMessage):
        second.require_proof(KEY)
    first.close()
    second.close()


def test_silent_strangers_keep_nobody_out(listener: RequestListener) -> None:
    with ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(listener.address))
            for _ in range(3 * MAX_STRANGERS)
        ]
        assert asked(listener, "read") == ("read", ())
        assert len(listener._strangers) <= MAX_STRANGERS
        strangers[0].settimeout(30)
        with suppress(ConnectionError):
            while strangers[0].recv(64):  # the oldest is dropped
                pass


@pytest.mark.parametrize("said", [b"", b"x", b"x" * 64, b"x" * 5000], ids=len)
def test_a_stranger_is_heard_for_seconds(
    said: bytes, listener: RequestListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SECONDS_OF_A_WAIT", 0.01)
    monkeypatch.setattr(connections, "SECONDS_FOR_PROOF", 0.05)
    with socket.create_connection(listener.address, 30) as stranger, suppress(ConnectionError):
        stranger.sendall(said)
        while stranger.recv(64):
            pass
    assert asked(listener, "read") == ("read", ())


def test_a_server_without_files_goes_on_when_it_has_some(
    listener: RequestListener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "graphdist")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        number = probe.fileno()
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number + 9, hard))
        try:
            with suppress(OSError):
                while True:
                    made = stack.enter_context(socket.socket())
                    made.connect(listener.address)
            deadline = time.monotonic() + 30
            while "not accepted" not in caplog.text and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "a connection was not accepted" in caplog.text
        assert asked(listener, "read") == ("read", ())


@pytest.mark.parametrize(
    "message",
    [
        NO_END,
        struct.pack("!QQ", 1 << 62, 0),
        struct.pack("!QQQ", 1, 1, 1 << 62) + b"x",
        struct.pack("!QQ", 0, 5) + b"hello",
    ],
    ids=["bytes", "arrays", "bytes of an array", "no pickle"],
)
def test_nonsense_of_one_that_knows_the_key_ends_its_connection_alone(
    message: bytes, listener: RequestListener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "graphdist")
    stream = socket.create_connection(listener.address)
    with stream:
        channel = Channel(stream, lambda: None)
        channel.prove(KEY)
        stream.sendall(message)
        with pytest.raises((EOFError, ConnectionError)):
            channel.receive()
    assert "the connection of 127.0.0.1 was ended" in caplog.text
    assert asked(listener, "read") == ("read", ())
