"""Ctrl-C that Python ignores."""

from __future__ import annotations

import gc
import sys
import time

import pytest

from graphdist.runtime.processes.interrupts import raise_ignored_interrupts


def test_an_interrupt_in_a_callback_of_the_collector_is_raised_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def interrupted(phase: str, info: object) -> None:
        if not seen:
            seen.append(phase)
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    raise_ignored_interrupts()
    gc.callbacks.append(interrupted)
    try:
        gc.collect()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10)
    finally:
        gc.callbacks.remove(interrupted)


def test_other_errors_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_type))
    raise_ignored_interrupts()

    class Broken:
        def __del__(self) -> None:
            raise ValueError

    Broken()
    assert told == [ValueError]
