"""Calls on other threads: what they return and raise, and what interrupts the wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from graphdist.runtime.processes.abandonable_calls import Runner, called_while, has_ended

SECONDS = 10.0


def started(runner: Runner, fn: Callable[..., Any], *arguments: Any) -> Future[Any]:
    call: Future[Any] = Future()
    runner.start(call, fn, *arguments)
    return call


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


def test_a_call_ends_once_its_function_does() -> None:
    held, runner = threading.Event(), Runner("graphdist-test")
    call = started(runner, held.wait, SECONDS)
    assert not has_ended(call, 0.01)
    held.set()
    assert has_ended(call, SECONDS)
    assert call.result() is True


def test_a_call_that_fails_for_time_has_ended() -> None:
    def late() -> None:
        raise TimeoutError

    assert has_ended(started(Runner("graphdist-test"), late), SECONDS)


def test_a_runner_makes_calls_in_order_on_one_thread() -> None:
    runner = Runner("graphdist-test")
    name = started(runner, lambda: threading.current_thread().name)
    fails = started(runner, lambda x: 1 // x, 0)
    assert started(runner, lambda x: x + 1, 1).result(SECONDS) == 2
    assert name.result(0) == "graphdist-test"
    assert isinstance(fails.exception(0), ZeroDivisionError)


def test_an_abandoned_call_does_not_hold_up_the_next() -> None:
    held, runner = threading.Event(), Runner("graphdist-test")
    abandoned = started(runner, held.wait, SECONDS)
    runner.abandon()
    assert started(runner, lambda: "next").result(SECONDS) == "next"
    held.set()
    assert abandoned.result(SECONDS) is True
