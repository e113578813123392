"""Ctrl-C while a compiler runs: the command ends at once, with one line.

Python runs a signal handler only between two of its own instructions. So the handler would wait for
a compiler that runs for minutes. But Python writes the signal's number to a file at once
(`set_wakeup_fd`). Here a thread reads the number and ends the process. Nothing is cleaned up, so
only work that leaves nothing but temporary files behind may run inside `ending_at_interrupts`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from graphdist.command_process import INTERRUPTED, say_interrupted

_PATIENCE = 5.0


@contextmanager
def ending_at_interrupts(command: str) -> Iterator[None]:
    """End the process at once if Ctrl-C comes inside the `with` block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(reader, command), daemon=True)
    watcher.start()
    try:
        yield
    except KeyboardInterrupt:
        watcher.join(_PATIENCE)  # the watcher has read the signal, and ends the process
        raise
    finally:
        signal.set_wakeup_fd(previous)
        os.close(writer)
        watcher.join(_PATIENCE)
        os.close(reader)


def _watch(reader: int, command: str) -> None:
    """Wait for an interrupt, or for the end of the block, which closes the pipe."""
    while received := os.read(reader, 1):
        if received[0] == signal.SIGINT:
            with suppress(OSError):
                say_interrupted(command)
                sys.stdout.flush()
            os._exit(INTERRUPTED)
