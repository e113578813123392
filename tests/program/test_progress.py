"""The line on the terminal while a program is compiled."""

from __future__ import annotations

import io
import sys
import threading

import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.program import progress
from graphdist.program.progress import compiling, phase


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and tells when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.set()
        return count


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, first_after: float = 0.0) -> Terminal:
    """Make stderr a terminal; called by the test itself, since pytest has one for each phase."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(progress, "FIRST_AFTER", first_after)
    return found


def test_it_says_what_is_done_and_at_last_what_took_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_a_terminal(monkeypatch)

    @gd.function
    def step(x: jnp.ndarray) -> jnp.ndarray:
        assert terminal.written.wait(60)
        return x * 2

    step(jnp.ones(3))
    first, *_, last = terminal.getvalue().strip("\r").split("\r")
    assert first.startswith("graphdist: compiling step: ")
    assert last.startswith("graphdist: compiled step in ")
    assert last.endswith("\n")
    for what in ("tracing", "passes", "emission", "XLA"):
        assert f"{what} " in last
    assert step(jnp.ones(3)).shape == (3,)
    assert terminal.getvalue().endswith(last)


def test_nothing_is_written_of_what_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch, first_after=3600.0)
    gd.function(lambda x: x + 1)(jnp.ones(2))
    assert not terminal.getvalue()


def test_nothing_is_written_where_it_was_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    gd.config.show_compilation(False)
    try:
        with compiling("step"):
            assert not any(one.name == "graphdist-progress" for one in threading.enumerate())
    finally:
        gd.config.show_compilation(True)
    assert not terminal.getvalue()


def test_nothing_is_written_into_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", found := io.StringIO())
    monkeypatch.setattr(progress, "FIRST_AFTER", 0.0)
    with compiling("step"):
        assert not any(one.name == "graphdist-progress" for one in threading.enumerate())
    assert not found.getvalue()


def test_what_is_compiled_meanwhile_is_part_of_it_and_no_second_is_counted_twice() -> None:
    with compiling("outer") as outer, phase("tracing"):
        with compiling("inner") as inner, phase("XLA"):
            pass
        assert inner is outer
    assert set(outer.seconds) == {"tracing", "XLA"}
    with phase("nobody looks"):
        pass


def test_an_error_ends_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)

    def fails() -> None:
        with compiling("step"), phase("tracing"):
            assert terminal.written.wait(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert "step is not compiled, after " in terminal.getvalue().splitlines()[-1]
    assert not any(one.name == "graphdist-progress" for one in threading.enumerate())
