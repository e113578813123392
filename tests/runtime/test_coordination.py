"""How workers talk, with two or three of them on threads of one process."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import graphdist as gd
from graphdist.runtime import coordination
from graphdist.runtime.addresses import free_port, listen
from graphdist.runtime.processes import Patience, Workers

PATIENCE = Patience(start=5.0, silence=60.0)
Met = Callable[..., list[Workers]]


@pytest.fixture
def met() -> Iterator[Met]:
    """Return what makes workers that have met; they leave in the end."""
    made: list[Workers] = []

    def meet(count: int, patience: Patience = PATIENCE) -> list[Workers]:
        addresses = [f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(count)]
        made.extend(Workers(addresses, index, patience) for index in range(count))
        with ThreadPoolExecutor(count) as pool:
            starts = list(pool.map(Workers.meet, made))
        assert len(set(starts)) == 1
        return made

    yield meet
    for workers in reversed(made):
        workers.leave()


def all_at_once(met: list[Workers], call: Callable[[Workers], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(met)) as pool:
        return list(pool.map(call, met))


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def test_exchange_gives_all_values_in_order(met: Met) -> None:
    given = all_at_once(met(3), lambda one: one.exchange("key", one.index * 10, "a test"))
    assert given == [[0, 10, 20]] * 3


def test_values_are_json_of_any_size(met: Met) -> None:
    large = {"text": "x" * 1_000_000, "none": None}
    given = all_at_once(met(2), lambda one: one.exchange("key", large, "a test"))
    assert given == [[large, large]] * 2


def test_keys_are_exchanged_independently(met: Met) -> None:
    first, second = met(2)

    def forwards() -> list[Any]:
        return [first.exchange(key, key, "a test") for key in "ab"]

    def backwards() -> list[Any]:
        threads = ThreadPoolExecutor(2)
        later = [threads.submit(second.exchange, key, key * 2, "a test") for key in "ba"]
        return [one.result() for one in reversed(later)]

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(forwards), pool.submit(backwards)]
        assert [one.result() for one in results] == [[["a", "aa"], ["b", "bb"]]] * 2


def test_a_worker_that_does_not_come_is_named(met: Met) -> None:
    first, second, third = met(3)
    second._connection.put("key", 1)
    with pytest.raises(gd.CollectiveTimeoutError, match="a test waits for worker 2"):
        first.exchange("key", 1, "a test", seconds=0.2)
    until(lambda: third.failure)
    with pytest.raises(gd.WorkerError, match=r"worker 0 .* gave up"):
        third.check()


def test_a_worker_that_dies_is_noticed_at_once(met: Met) -> None:
    first, second = met(2)
    second._connection._socket.shutdown(socket.SHUT_RDWR)
    until(lambda: first.failure)
    with pytest.raises(gd.WorkerError, match=r"worker 1 .* died"):
        first.exchange("key", 1, "a test")


def test_a_silent_worker_counts_as_dead(met: Met, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = met(2, Patience(start=5.0, silence=1.0))
    monkeypatch.setattr(second._connection, "_send", lambda message: None)
    until(lambda: first.failure)
    with pytest.raises(gd.WorkerError, match=r"worker 1 .* was not heard of for"):
        first.check()


def test_nobody_waits_for_a_worker_that_has_left(met: Met) -> None:
    first, second = met(2)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(first.exchange, "key", 1, "a test")
        time.sleep(0.05)
        second.leave()
        with pytest.raises(gd.WorkerError, match=r"worker 1 .* ended its program"):
            waits.result()
    with pytest.raises(gd.WorkerError, match=r"worker 1 .* ended its program"):
        first.exchange("another", 1, "a test")
    first.check()  # what is left to do alone may go on


def test_a_step_that_a_worker_has_left_before(met: Met) -> None:
    first, second = met(2)
    assert [first.begin_step(), first.begin_step(), second.begin_step()] == [1, 2, 1]
    second.leave()
    until(lambda: first._connection.left)
    first.check(1)
    with pytest.raises(gd.WorkerError, match=r"worker 1 .* ended its program"):
        first.check(2)


def test_workers_behind_a_step(met: Met) -> None:
    first, second, third = met(3)
    first.begin_step()
    third.begin_step()
    until(lambda: first.behind(1) == [1])
    second.begin_step()
    until(lambda: first.behind(1) == [])


def test_ordinals_count_by_kind(met: Met) -> None:
    (only,) = met(1)
    assert [only.ordinal("a"), only.ordinal("a"), only.ordinal("b")] == [0, 1, 0]


@pytest.mark.parametrize(
    ("index", "count", "message"),
    [(1, 3, "there are 3 workers, worker 0 says 2"), (0, 2, "there is a worker 0 already")],
)
def test_clusters_that_disagree(index: int, count: int, message: str) -> None:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    first = Workers([address, "127.0.0.1:1"], 0, Patience(start=1.0))
    pool = ThreadPoolExecutor(1)
    alone = pool.submit(first.meet)
    time.sleep(0.05)
    other = Workers([address] + ["127.0.0.1:1"] * (count - 1), index, PATIENCE)
    other.__class__ = _WithoutServer
    with pytest.raises(gd.WorkerError, match=message):
        other.meet()
    with pytest.raises(gd.WorkerError, match=r"worker 1 .* did not start within 1 s"):
        alone.result()
    first.leave()


class _WithoutServer(Workers):
    """A second process that takes itself for worker 0, whose port would be in use."""

    def meet(self, at: Any = None) -> str:
        host, port = self.addresses[0].split(":")
        self._meet(host, int(port), time.monotonic() + 5, at)
        return ""


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(gd.WorkerError, match=f"cannot listen at port {port}: Address already"):
            listen("127.0.0.1", port, "worker 0 (127.0.0.1)")


def test_something_else_at_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        second = Workers([address, "127.0.0.1:1"], 1, Patience(start=0.3))
        with pytest.raises(gd.WorkerError, match=r"cannot reach worker 0.*something else answers"):
            second.meet()


def test_the_server_survives_what_is_not_a_worker(met: Met) -> None:
    first, second = met(2)
    host, port = first.addresses[0].split(":")
    for garbage in (b"GET / HTTP/1.0\r\n\r\n", b'{"hello": "x"}\n', b"[]\n", b"\xff\n", b"1\n"):
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(garbage)
            stranger.settimeout(5)
            if garbage.endswith(b"\n"):
                assert stranger.recv(1) == b""
    given = all_at_once([first, second], lambda one: one.exchange("key", one.index, "a test"))
    assert given == [[0, 1]] * 2


def test_threads_end_with_the_workers() -> None:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    only = Workers([address], 0, PATIENCE)
    only.meet()
    server = only._server
    assert server is not None
    assert server.is_alive()
    only.leave()
    until(lambda: not server.is_alive())
    assert Patience.silence > coordination.BEAT_SECONDS
