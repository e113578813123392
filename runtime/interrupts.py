"""Ctrl-C while JAX calls a program for the first time.

The first call goes through Python code of JAX. If Ctrl-C interrupted that code after the program
consumed its donated buffers, the outputs would be lost, and so would the only values of variables.
Later calls are a single call of C, which stores its outputs before Python handles any signal.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Delay Ctrl-C, which only the main thread handles, to the end of the `with` block."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: received.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(signal.SIGINT, received[0])
