"""The process of a console command, from before its imports to its end: its streams, its Ctrl-C.

`graphdist/__init__.py` imports this module before all others, and the import prepares the process.
So Ctrl-C while JAX is being imported prints one line and no traceback. Nothing happens in a process
that was not started as `graphdist-viz` or another script of graphdist, or as
`python -m graphdist.tools.<name>`.

* Ctrl-C ends the process at once, with one line and status 130. While the tool works
  (`interruptible`), the first Ctrl-C raises `KeyboardInterrupt`, so that the tool cleans up, and
  the next Ctrl-C ends the process. If Python drops the `KeyboardInterrupt`, as in a callback of the
  garbage collector, the process ends, too. If SIGINT is ignored when the process starts, it stays
  ignored.
* A stream that the shell has closed (`>&-`) is opened again, so that no file or socket gets the
  stream's number and its output. Reading such a stream gives nothing, and writing to it fails as
  for a closed stream.
* Characters that the encoding of the output lacks are written as escapes.
* stdout and stderr have buffers, also with PYTHONUNBUFFERED. Text that could not be written stays
  in the buffer, so the last flush fails. Without buffers some errors would be lost, since argparse
  ignores errors of writing.

This module imports nothing but the standard library.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from types import FrameType
from typing import TextIO, cast

INTERRUPTED = 128 + signal.SIGINT
"""The exit status that shells report for a command that was interrupted."""
_SCRIPT = re.compile(r"(graphdist-(?:compile|run|viz))(?:\.exe)?")
_MODULE = re.compile(r"(?:-\w*m)?(graphdist\.tools\.[\w.]+)")


def _command() -> str | None:
    """Return the name of the command that this process runs; None if it runs no command."""
    if sys.argv[:1] == ["-m"]:  # as `python -m` leaves it until the module is found
        match = _MODULE.fullmatch(sys.orig_argv[-len(sys.argv)])
        return match and match[1]
    match = _SCRIPT.fullmatch(os.path.basename(sys.argv[0])) if sys.argv else None
    return match and match[1]


def _prepare() -> None:
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # opened for reading alone, so that writing fails
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = _buffered(1, sys.stdout), _buffered(2, sys.stderr)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
        sys.unraisablehook = _end_if_interrupted


@contextmanager
def interruptible() -> Iterator[None]:
    """In a command, let the first Ctrl-C in the `with` block raise `KeyboardInterrupt`."""
    if signal.getsignal(signal.SIGINT) is not _end:
        yield
        return
    signal.signal(signal.SIGINT, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _end)


def say_interrupted(command: str) -> None:
    """Write that the command was interrupted, over a line that shows the progress."""
    start = "\r\033[K" if sys.stderr.isatty() else ""
    print(f"{start}{command}: interrupted", file=sys.stderr, flush=True)


def _raise(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _end)
    raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):  # not `print`, since the signal may have interrupted a `print`
        os.write(2, f"{COMMAND}: interrupted\n".encode())
    os._exit(INTERRUPTED)


def _end_if_interrupted(dropped: sys.UnraisableHookArgs) -> None:
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        _end(signal.SIGINT, None)
    sys.__unraisablehook__(dropped)


def _buffered(number: int, stream: TextIO | None) -> TextIO:
    """Return a stream that keeps text that it could not write, and escapes unknown characters."""
    text = cast("TextIOWrapper | None", stream)  # as Python opened it, when the process starts
    if text is not None and not text.write_through:
        text.reconfigure(errors="backslashreplace")
        return text
    encoding = text.encoding if text else None
    return open(number, "w", 1, encoding, "backslashreplace", closefd=False)  # 1: buffers lines


COMMAND = _command()
if COMMAND is not None:
    _prepare()
