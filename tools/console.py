"""The frame of every console tool: what it says of errors, and how it ends.

An error of graphdist or of the system is a message on stderr, with status 2. Ctrl-C is one line,
with status 130. Where the reader of the output goes away, as `head` does, the tool ends and says
nothing, with status 141: shells report it of programs that SIGPIPE ends. A status of 0 would be a
verdict that nobody has read, such as `graphdist-compile`'s that a step fits.

Python ignores SIGPIPE and raises `BrokenPipeError`. The buffers of stdout and stderr are flushed
here, so that it is raised here too, and not at the exit of the interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Protocol

from graphdist.errors import GraphdistError
from graphdist.tools.interrupts import INTERRUPTED, say_interrupted

BAD_INPUT = 2
READER_GONE = 128 + 13
"""The exit status where nobody reads on: 128 and the number of SIGPIPE."""


class Main(Protocol):
    """The function of a tool: it takes its arguments, and returns the exit status."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run the tool; without arguments, it takes the command line of the process."""


def console_tool(name: str) -> Callable[[Main], Main]:
    """Put the `main` of a tool into the frame; errors are printed under the name of the tool."""

    def framed(main: Main) -> Main:
        @wraps(main)
        def run(arguments: Sequence[str] | None = None) -> int:
            try:
                try:
                    return _status(name, main, arguments)
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
            except BrokenPipeError:
                _write_nowhere()
                return READER_GONE

        return run

    return framed


def _status(name: str, main: Main, arguments: Sequence[str] | None) -> int:
    try:
        return main(arguments)
    except BrokenPipeError:
        raise
    except (GraphdistError, OSError) as error:
        print(f"{name}: {_message(error)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        say_interrupted(name)
        return INTERRUPTED


def _message(error: GraphdistError | OSError) -> str:
    if isinstance(error, GraphdistError):
        return str(_without_our_line(error))
    if error.strerror and error.filename is not None:
        return f"{error.strerror}: {str(error.filename)!r}"
    return str(error)


def _without_our_line(error: GraphdistError) -> GraphdistError:
    """Return the error without the line of a tool, which passes for the user's as a script."""
    if error.source is not None:
        frame = error.source.frame
        own = (
            str(Path(sys.argv[0]).absolute()),
            *(str(path) for path in Path(__file__).parent.rglob("*.py")),
        )
        if frame is None or frame.file in own or "runpy" in frame.file:
            error.source = None
    return error


def _write_nowhere() -> None:
    """Let go of output in the buffers: Python would write it again when it exits, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            with suppress(OSError):  # a stream that is no file
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
