"""A progress line on the terminal while a program is compiled, if that takes several seconds.

The line names the function and the current phase. It is rewritten every second; at the end it shows
the time of each phase. It is shown only if stderr is a terminal, so that no log has the line, and
not after `gd.config.show_compilation(False)`. Code that compiles enters `compiling`, its parts
enter `phase`. A compilation inside another compilation is shown as a part of the outer one.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from graphdist.config import shows_compilation

FIRST_AFTER = 3.0
"""Seconds before the line appears."""
EVERY = 1.0
"""Seconds between two updates of the line."""


class Progress:
    """The compilation of one function: its phases, and the seconds of each so far.

    >>> progress = Progress("step")
    >>> progress.is_done = True
    >>> progress.seconds["tracing"], progress.seconds["XLA"] = 1.25, 40.0
    >>> progress.summary()
    'graphdist: compiled step in 41.2 s: tracing 1.2 s, XLA 40.0 s'
    """

    def __init__(self, name: str) -> None:
        """Start without a phase."""
        self.name, self.seconds = name, dict[str, float]()
        self.is_done = False
        self._current: tuple[str, float] | None = None

    @contextmanager
    def phase(self, what: str) -> Iterator[None]:
        """Add the time of the `with` block to a phase."""
        outer, start = self._current, time.perf_counter()
        self._current = (what, start)
        try:
            yield
        finally:
            self._current = outer
            spent = time.perf_counter() - start
            self.seconds[what] = self.seconds.get(what, 0.0) + spent
            if outer is not None:  # its time includes these seconds
                self.seconds[outer[0]] = self.seconds.get(outer[0], 0.0) - spent

    def line(self) -> str:
        """Return the current phase and its seconds."""
        what, start = self._current or ("between two phases", time.perf_counter())
        spent = time.perf_counter() - start
        return f"graphdist: compiling {self.name}: {what}, {spent:.0f} s"

    def summary(self) -> str:
        """Return the seconds of all phases."""
        parts = ", ".join(f"{what} {spent:.1f} s" for what, spent in self.seconds.items())
        done = f"compiled {self.name} in" if self.is_done else f"{self.name} is not compiled, after"
        return f"graphdist: {done} {sum(self.seconds.values()):.1f} s: {parts}"


class _State(threading.local):
    current: Progress | None = None


_state = _State()


@contextmanager
def compiling(name: str) -> Iterator[Progress]:
    """Show the progress of the `with` block, which compiles the function of this name."""
    if _state.current is not None:
        yield _state.current
        return
    progress = _state.current = Progress(name)
    ended = threading.Event()
    lines = (progress, sys.stderr, ended)
    writer = threading.Thread(target=_write_lines, args=lines, name="graphdist-progress")
    writer.daemon = True
    if is_shown := sys.stderr is not None and shows_compilation() and sys.stderr.isatty():
        writer.start()
    try:
        yield progress
        progress.is_done = True
    finally:
        _state.current = None
        ended.set()
        if is_shown:
            writer.join()


@contextmanager
def phase(what: str) -> Iterator[None]:
    """Name the `with` block as a phase of the compilation."""
    if _state.current is None:
        yield
        return
    with _state.current.phase(what):
        yield


def _write_lines(progress: Progress, stream: TextIO, ended: threading.Event) -> None:
    """Write the line after the first few seconds, and the summary at the end if it was shown."""
    width, wait = 0, FIRST_AFTER
    while not ended.wait(wait):
        line, wait = progress.line(), EVERY
        print(f"\r{line.ljust(width)}", end="", file=stream, flush=True)
        width = len(line)
    if width:
        print(f"\r{progress.summary().ljust(width)}", file=stream, flush=True)
