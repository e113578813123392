"""How workers talk, with two or three of them on threads of one process."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import graphdist as gd
from graphdist.runtime.processes.addresses import listen
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.processes.server import BEAT_SECONDS
from graphdist.runtime.processes.workers import WorkerTimeouts
from tests.free_port import free_port

TIMEOUTS = WorkerTimeouts(start=5.0, silence=60.0)
Met = Callable[..., list[ClusterWorkers]]


@pytest.fixture
def met() -> Iterator[Met]:
    """Return what makes workers that have met; they leave in the end."""
    made: list[ClusterWorkers] = []

    def meet(count: int, timeouts: WorkerTimeouts = TIMEOUTS) -> list[ClusterWorkers]:
        addresses = [f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(count)]
        made.extend(ClusterWorkers(addresses, index, timeouts) for index in range(count))
        with ThreadPoolExecutor(count) as pool:
            starts = list(pool.map(ClusterWorkers.rendezvous, made))
        assert len(set(starts)) == 1
        return made

    yield meet
    for workers in reversed(made):
        workers.leave()


def all_at_once(met: list[ClusterWorkers], call: Callable[[ClusterWorkers], Any]) -> list[Any]:
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
    first, second = met(2, WorkerTimeouts(start=5.0, silence=1.0))
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


def test_a_worker_that_failed_may_still_answer(met: Met) -> None:
    """Its thread ends the checkpoint that all were writing; the process ends after it."""
    first, second = met(2)
    second._crashed(KeyError("the user's own"))
    until(lambda: first.failure)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(first.heard_from, 1, "checkpoint", 30.0)
        second.publish("checkpoint/1", "written")
        assert waits.result() == "written"
    with pytest.raises(gd.WorkerError, match=r"worker 1 .* failed: KeyError"):
        first.check()


@pytest.mark.parametrize("ending", ["leaves", "dies"])
def test_nothing_is_waited_for_from_a_worker_that_is_gone(met: Met, ending: str) -> None:
    first, second, third = met(3)
    second.publish("early/1", "said before")
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(one.heard_from, 1, "checkpoint", 30.0) for one in (first, third)]
        if ending == "leaves":
            second.leave()
        else:
            second._connection._socket.shutdown(socket.SHUT_RDWR)
        why = {"leaves": "ended its program before the others", "dies": "died"}[ending]
        for one in waits:
            with pytest.raises(gd.WorkerError, match=rf"worker 1 \(.*\) {why}"):
                one.result()
    assert first.heard_from(1, "early", 5.0) == "said before"


def test_a_worker_that_failed_is_not_waited_for_once_it_is_gone(met: Met) -> None:
    first, second = met(2)
    second._crashed(KeyError("the user's own"))
    second.leave()
    with pytest.raises(gd.WorkerError, match=r"worker 1 .* failed: KeyError: \"the user's own\""):
        first.heard_from(1, "checkpoint", 30.0)


def test_without_the_server_nobody_is_waited_for(met: Met) -> None:
    first, second, third = met(3)
    second._crashed(KeyError("the user's own"))  # it fails itself: no failure of another follows
    assert first._server is not None
    first._server.stop()
    for one in (second, third):
        with pytest.raises(gd.WorkerError, match=r"worker 0 .* died"):
            one.heard_from(0, "checkpoint", 30.0)
        with pytest.raises(gd.WorkerError, match=r"worker 2 .* server is gone|worker 1 .* failed"):
            one.heard_from(3 - one.index, "checkpoint", 30.0)


@pytest.mark.long
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


@pytest.mark.long
def test_a_worker_that_was_given_up_learns_of_it(met: Met, monkeypatch: pytest.MonkeyPatch) -> None:
    _, second = met(2, WorkerTimeouts(start=5.0, silence=1.0))
    monkeypatch.setattr(second._connection, "_send", lambda message: None)
    until(lambda: second.failure)
    with pytest.raises(gd.WorkerError, match=r"worker 1 .* was not heard of .* the others gave it"):
        second.check()


def test_when_the_server_fails_it_alone_is_blamed(met: Met, caplog: Any) -> None:
    first, second = met(2)
    assert first._server is not None
    broken: dict[str, None] = {}
    first._server._beat = lambda: broken["key"]  # type: ignore[method-assign]
    until(lambda: first.failure and second.failure)
    reason = "its coordination server failed: KeyError: 'key'"
    with pytest.raises(gd.WorkerError, match=rf"worker 0 .* cannot go on: {reason}"):
        first.check()
    with pytest.raises(gd.WorkerError, match=rf"worker 0 .*{reason}"):
        second.exchange("key", 1, "a test")
    assert "worker 1" not in str(first.failure) + str(second.failure)


@pytest.mark.long
def test_a_server_that_says_nothing_is_blamed_for_a_timeout(met: Met) -> None:
    first, second = met(2)
    assert first._server is not None
    first._server._answer = lambda *given: None  # type: ignore[method-assign]
    message = r"a test waits for the coordination server of worker 0 \(.*\), which did not come"
    with pytest.raises(gd.CollectiveTimeoutError, match=message):
        second.exchange("key", 1, "a test", seconds=0.1)


def test_what_is_no_message_ends_the_worker_that_said_it(met: Met) -> None:
    first, second = met(2)
    second._connection._socket.sendall(b'{"kind": "put", "key": 3}\n')
    until(lambda: first.failure)
    with pytest.raises(gd.WorkerError, match=r"worker 1 .* died"):
        first.check()


def test_worker_0_stays_until_others_are_gone_or_silent(met: Met) -> None:
    first, second = met(2, WorkerTimeouts(start=5.0, silence=1.0))
    server = first._server
    assert server is not None
    assert server.has_others()
    second._connection._send = lambda message: None
    until(lambda: not server.has_others())


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = f"cannot listen at 127.0.0.1:{port}: Address already"
        with pytest.raises(gd.WorkerError, match=message):
            listen("127.0.0.1", port, "worker 0 (127.0.0.1)")


def test_an_address_of_another_machine() -> None:
    message = r"worker 0 \(192.0.2.1:2222\) cannot listen at 192.0.2.1:2222: Cannot assign"
    with pytest.raises(gd.WorkerError, match=message) as caught:
        ClusterWorkers(["192.0.2.1:2222", "192.0.2.2:2222"], 0, TIMEOUTS).rendezvous()
    assert "GRAPHDIST_WORKER_BIND" in caught.value.hint


def test_something_else_at_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        second = ClusterWorkers([address, "127.0.0.1:1"], 1, WorkerTimeouts(start=0.3))
        with pytest.raises(gd.WorkerError, match=r"cannot reach worker 0.*another program answers"):
            second.rendezvous()


def test_workers_meet_again_where_they_could_not() -> None:
    addresses = [f"127.0.0.1:{free_port('127.0.0.1')}", "127.0.0.1:1"]
    with pytest.raises(gd.WorkerError, match=r"worker 1 .* did not start"):
        ClusterWorkers(addresses, 0, WorkerTimeouts(start=0.2)).rendezvous()
    first, second = ClusterWorkers(addresses, 0, TIMEOUTS), ClusterWorkers(addresses, 1, TIMEOUTS)
    until(lambda: _is_free(addresses[0]))
    all_at_once([first, second], ClusterWorkers.rendezvous)
    second.leave()
    first.leave()


def _is_free(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError:
        return False
    return True


def test_ipv6() -> None:
    addresses = [f"[::1]:{free_port('::1')}", "[::1]:1"]
    first, second = [ClusterWorkers(addresses, index, TIMEOUTS) for index in range(2)]
    places = all_at_once([first, second], ClusterWorkers.rendezvous)
    assert [(place.host, place.bind, place.own_address) for place in places] == [("::1",) * 3] * 2
    second.leave()
    first.leave()


def test_the_server_listens_at_its_address_alone(met: Met) -> None:
    (first,) = met(1)
    assert first._server is not None
    port = int(first.addresses[0].rpartition(":")[2])
    assert first._server.listener.getsockname() == ("127.0.0.1", port)


def test_it_listens_where_it_is_told() -> None:
    addresses = [f"192.0.2.1:{free_port('127.0.0.1')}", "192.0.2.2:1"]
    first = ClusterWorkers(addresses, 0, WorkerTimeouts(start=0.2), bind="0.0.0.0")
    with pytest.raises(gd.WorkerError, match=r"worker 1 .* did not start"):
        first.rendezvous()


def test_threads_end_with_the_workers() -> None:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    only = ClusterWorkers([address], 0, TIMEOUTS)
    only.rendezvous()
    server = only._server
    assert server is not None
    assert server.is_alive()
    only.leave()
    until(lambda: not server.is_alive())
    assert WorkerTimeouts.silence > BEAT_SECONDS
