"""Calls on other threads: what they return and raise, and what interrupts the wait for them."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import pytest

from graphdist.runtime.processes.abandonable_calls import Call, Runner, called_while

SECONDS = 10.0


class NewsError(Exception):
    """Bad news of another worker."""


def nothing() -> None:
    pass


def test_a_call_returns_what_its_function_does() -> None:
    assert called_while(nothing, lambda: 3, pytest.fail) == 3


def test_a_call_raises_what_its_function_does() -> None:
    with pytest.raises(ZeroDivisionError):
        called_while(nothing, lambda: 1 // 0, lambda: pytest.fail("it has ended"))


def test_news_interrupt_the_wait_and_leave_the_call() -> None:
    held, given_up = threading.Event(), []

    def check() -> None:
        raise NewsError

    with pytest.raises(NewsError):
        called_while(check, lambda: held.wait(SECONDS), lambda: given_up.append(True))
    held.set()
    assert given_up == [True]


def test_a_call_that_ends_with_the_news_is_not_given_up() -> None:
    held, ended = threading.Event(), threading.Event()

    def call() -> None:
        held.wait(SECONDS)
        ended.set()

    def check() -> None:
        held.set()
        assert ended.wait(SECONDS)
        while any(thread.name == "graphdist-call" for thread in threading.enumerate()):
            pass  # the thread notes the result after `ended` is set
        raise NewsError

    with pytest.raises(NewsError):
        called_while(check, call, lambda: pytest.fail("it has ended"))


def test_the_first_result_of_a_call_is_kept_until_it_is_asked_for() -> None:
    call = Call()
    assert not call.wait(0)
    call.make(lambda: 4)
    assert call.wait(0)
    assert call.result() == call.value == 4


def test_a_runner_makes_calls_in_order_on_one_thread() -> None:
    results: SimpleQueue[Any] = SimpleQueue()
    runner = Runner("graphdist-test")

    def told(value: Any, error: BaseException | None) -> None:
        results.put((value, type(error)))

    runner.start(lambda: threading.current_thread().name, (), told)
    runner.start(lambda x: 1 // x, (0,), told)
    runner.start(lambda x: x + 1, (1,), told)
    assert [results.get(timeout=SECONDS) for _ in range(3)] == [
        ("graphdist-test", type(None)),
        (None, ZeroDivisionError),
        (2, type(None)),
    ]


def test_an_abandoned_call_does_not_hold_up_the_next() -> None:
    held, results = threading.Event(), SimpleQueue[Any]()
    runner = Runner("graphdist-test")
    runner.start(held.wait, (SECONDS,), lambda value, error: results.put("held"))
    runner.abandon()
    runner.start(lambda: "next", (), lambda value, error: results.put(value))
    assert results.get(timeout=SECONDS) == "next"
    held.set()
    assert results.get(timeout=SECONDS) == "held"
