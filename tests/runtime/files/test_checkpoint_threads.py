"""Several files at a time: in order, with errors, and without threads where none can be had."""

from __future__ import annotations

import threading
import time

import pytest

from graphdist.runtime.files.checkpoint_arrays import on_threads


def test_results_come_in_order_from_so_many_threads() -> None:
    used: set[str] = set()
    together = threading.Barrier(3)

    def act(item: int) -> int:
        used.add(threading.current_thread().name)
        if item < 3:
            together.wait(timeout=60)  # passes if three threads are here
        return -item

    assert list(on_threads(act, range(20), most=3)) == [-item for item in range(20)]
    assert threading.current_thread().name not in used
    assert list(on_threads(act, [], most=3)) == []


@pytest.mark.parametrize("started", [0, 1])
def test_as_many_threads_as_there_are(monkeypatch: pytest.MonkeyPatch, started: int) -> None:
    left, start = [None] * started, threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    assert list(on_threads(abs, [-1, 2, -3], most=3)) == [1, 2, 3]


@pytest.mark.parametrize("most", [1, 4])
def test_an_error_ends_the_rest(most: int) -> None:
    begun: list[int] = []

    def act(item: int) -> int:
        begun.append(item)
        if item == 5:
            raise OSError("broken")
        time.sleep(0.001)
        return item

    results = on_threads(act, range(10_000), most)
    with pytest.raises(OSError, match="broken"):
        list(results)
    assert len(begun) < 1000
    assert not [one for one in threading.enumerate() if one.name == "graphdist-files"]


def test_a_caller_that_stops_waits_for_what_is_begun() -> None:
    ended: list[int] = []
    results = on_threads(ended.append, range(3), most=1)
    next(results)
    results.close()  # type: ignore[attr-defined]  # it is a generator
    assert not [one for one in threading.enumerate() if one.name == "graphdist-files"]


def test_an_interrupt_while_a_thread_starts_leaves_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started, called = threading.Thread.start, list[threading.Thread](), list[int]()

    def interrupted(self: threading.Thread) -> None:
        start(self)
        started.append(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(on_threads(called.append, range(3), most=2))
    for thread in started:
        thread.join()
    assert started
    assert called == []
