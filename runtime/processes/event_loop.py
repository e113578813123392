"""A thread that runs all its socket connections in one event loop, and blocks on no connection."""

from __future__ import annotations

import asyncio
import socket
import threading
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress

_SECONDS_AFTER_REFUSAL = 0.05


class EventLoopThread(threading.Thread):
    """A thread that runs `serve` until `stop`, and then closes the listening socket.

    `what` names the thread in errors. If the thread fails, it calls `crashed` with the reason.
    """

    def __init__(self, what: str, listener: socket.socket, crashed: Callable[[str], None]) -> None:
        """Take a listening socket; `start` begins to accept its connections."""
        super().__init__(name=f"graphdist-{what.replace(' ', '-')}", daemon=True)
        self._what, self._crashed = what, crashed
        # Not the policy's loop: Ray sets uvloop, whose transports are other classes.
        self._loop = asyncio.SelectorEventLoop()
        self.listener = ready(listener)

    def run(self) -> None:
        """Run the event loop until `stop`, or until it fails."""
        try:
            with self.listener, suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self.serve())
        except Exception as error:
            self.report(error)
        finally:
            self._loop.close()

    def report(self, error: Exception) -> str:
        """Call `crashed` with the reason why the thread fails, and return the reason."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        why = f"its {self._what} failed: {type(error).__name__}: {error}"
        self._crashed(why)
        return why

    def stop(self) -> None:
        """Let the thread and its connections end soon."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    @abstractmethod
    async def serve(self) -> None:
        """Accept and handle connections until the task is cancelled."""


def ready(stream: socket.socket) -> socket.socket:
    """Prepare a socket for an event loop, and for short messages."""
    stream.setblocking(False)
    with suppress(OSError):  # macOS refuses it for a connection that has ended
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


async def accepted(listener: socket.socket) -> socket.socket:
    """Return the next connection to a listening socket."""
    while True:
        try:
            stream, _ = await asyncio.get_running_loop().sock_accept(listener)
        except OSError:
            await asyncio.sleep(_SECONDS_AFTER_REFUSAL)  # no file is free: wait before a retry
        else:
            return ready(stream)
