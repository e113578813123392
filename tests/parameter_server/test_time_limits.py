"""Limits of `join` and `fetch`: what is unfinished is named, and asking again loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Any  # Any: what users give as a timeout

import pytest

import graphdist as gd
from graphdist.coordinator import ClusterCoordinator
from graphdist.parameter_server.closures import ClosureQueue, RemoteValue, TimeLimit, Waiting


def closure(name: str) -> Waiting:
    return Waiting(0, 0, b"", RemoteValue(name))


def test_join_says_what_runs_where_and_can_be_called_again() -> None:
    queue = ClosureQueue()
    first, second, third = (closure(name) for name in ("first", "second", "third"))
    for waiting in (first, second, third):
        queue.put(waiting)
    queue.take(worker=4)
    with pytest.raises(gd.WorkerTimeoutError) as raised:
        queue.wait(0.01)
    assert isinstance(raised.value, TimeoutError)
    said = str(raised.value)
    assert "the scheduled functions have not all run within 0.01 s" in said
    assert "'first' runs on worker 4 for 0 s, 2 wait for a worker" in said
    assert "queue.wait(0.01)" in said
    assert not queue.is_idle()
    queue.finish(first, lambda limit: 1)
    assert queue.take() is second
    queue.put_back(second)
    assert second.result.worker is None
    for waiting in (second, third):
        assert queue.take() is waiting
        queue.finish(waiting, lambda limit: 2)
    queue.wait(0)
    assert queue.is_idle()
    assert [waiting.result.fetch(0) for waiting in (first, second, third)] == [1, 2, 2]


def test_an_error_is_raised_before_the_limit_is() -> None:
    queue = ClosureQueue()
    failing, running = closure("failing"), closure("running")
    queue.put(failing)
    queue.put(running)
    queue.take()
    queue.take()
    queue.fail(failing, ValueError("of the user"))
    with pytest.raises(ValueError, match="of the user"):
        queue.wait(0)
    with pytest.raises(gd.WorkerTimeoutError, match="'running' runs on worker 0"):
        queue.wait(0)


def fetched_by_a_coordinator(value: RemoteValue, timeout: Any) -> Any:
    return object.__new__(ClusterCoordinator).fetch({"x": value}, timeout)["x"]


@pytest.mark.parametrize("fetch", [RemoteValue.fetch, RemoteValue.get, fetched_by_a_coordinator])
def test_a_result_that_does_not_come_says_where_its_function_is(
    fetch: Callable[[RemoteValue, Any], Any],
) -> None:
    queue = ClosureQueue()
    queue.put(waiting := closure("step"))
    with pytest.raises(gd.WorkerTimeoutError, match=r"'step' has not come within 0 s.*waits for"):
        fetch(waiting.result, 0)
    queue.take(worker=3)
    with pytest.raises(gd.WorkerTimeoutError, match=r"0\.01 s: the function runs on worker 3"):
        fetch(waiting.result, 0.01)
    queue.finish(waiting, lambda limit: 5.0)
    assert fetch(waiting.result, 0) == 5


def test_the_time_that_is_left_is_for_the_transfer() -> None:
    given: list[TimeLimit] = []
    value = RemoteValue()
    value.set(given.append)
    assert value.fetch(5) is None
    other = RemoteValue()
    other.set(given.append)
    other.fetch(1e300)
    first, second = (limit.left() for limit in given)
    assert first is not None
    assert 0 < first <= 5
    assert second is None
    assert str(given[0]) == "5 s"


def test_one_that_waits_long_for_a_result_keeps_no_other_from_its_limit() -> None:
    value, is_over, has_begun = RemoteValue(), Event(), Event()

    def load(limit: TimeLimit) -> object:
        if limit.left() is not None:
            raise gd.WorkerTimeoutError("not within the limit")
        has_begun.set()
        is_over.wait(60)
        return object()

    value.set(load)
    found: list[Any] = []
    patient = Thread(target=lambda: found.append(value.fetch()))
    patient.start()
    has_begun.wait(60)
    with pytest.raises(gd.WorkerTimeoutError):
        value.fetch(1)
    assert patient.is_alive()
    is_over.set()
    patient.join()
    assert value.fetch(1) is found[0]


@pytest.mark.parametrize("timeout", [-1, "5", True, float("nan"), [1]], ids=str)
def test_a_limit_that_is_no_time_is_refused(timeout: Any) -> None:
    for ask in (RemoteValue().fetch, ClosureQueue().wait):
        with pytest.raises(gd.errors.ArgumentError, match="not a number of seconds"):
            ask(timeout)


def test_an_error_has_the_line_of_each_that_asks() -> None:
    value = RemoteValue()
    value.fail(gd.ServerLostError("parameter server 0 has died"))
    for _ in range(2):
        with pytest.raises(gd.ServerLostError, match=r"value\.fetch\(\)  # here"):
            value.fetch()  # here
    with pytest.raises(gd.ServerLostError, match=r"value\.fetch\(1\)  # or here"):
        value.fetch(1)  # or here


def test_an_error_of_all_workers_cancels_what_waits_and_nothing_else() -> None:
    queue = ClosureQueue()
    queue.fail_all(gd.WorkerError("no worker"))
    queue.wait(0)  # nobody waits for a worker
    running, waiting = closure("running"), closure("waiting")
    queue.put(running)
    queue.put(waiting)
    queue.take()
    queue.fail_all(gd.WorkerError("no worker"))
    with pytest.raises(gd.ClosureCancelledError, match="was not run: no worker"):
        waiting.result.fetch(0)
    queue.finish(running, lambda limit: 1)
    with pytest.raises(gd.WorkerError, match="no worker"):
        queue.wait(0)
    assert running.result.fetch(0) == 1
