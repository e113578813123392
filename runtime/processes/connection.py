"""A worker's connection to the coordination server: exchanges, announcements, heartbeats.

Any thread may send; the lock `_sending` keeps the lines of two threads apart. Only one thread reads
the socket. The reading thread changes the connection's state under the lock `_changed`, and wakes
the threads that wait for a change. Another thread sends heartbeats. If the server is silent, worker
0 counts as dead. An error of the reading thread ends the job, with the error as the reason, because
otherwise every wait would last for ever.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any  # Any: JSON

from graphdist.runtime.processes import messages as ms
from graphdist.runtime.processes.server import BEAT_SECONDS


class LeftError(Exception):
    """A worker that others wait for has left; its argument is the index, -1 for this worker."""


class Connection:
    """A connection to the server, after the handshake.

    `on_failure(worker, why)` is called when a worker fails, on a thread of the connection. Worker 0
    counts as failed when its server is gone.
    """

    def __init__(
        self,
        stream: socket.socket,
        on_failure: Callable[[int, str], None],
        silence_seconds: float,
    ) -> None:
        """Start the threads that receive and send heartbeats."""
        self._socket, self._on_failure = stream, on_failure
        self._silence_seconds = silence_seconds
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._arrived: dict[tuple[type[ms.Message], str], Any] = {}
        """The messages of exchanges and announcements, by class and by key or name."""
        self._gone: set[int] = set()
        self._is_closed = self._is_cut_off = False
        self.steps = 0
        """The count of steps that this worker has begun; sent with every heartbeat."""
        self.beats = ms.Beats([], [])
        """The server's last report on each worker."""
        self.left: dict[int, int] = {}
        """The workers that have left, with the steps they had begun."""
        self.heard = time.monotonic()
        """The time of the server's last message."""
        stream.settimeout(silence_seconds)
        for body in (self._hear, self._beat):
            threading.Thread(target=body, name="graphdist-worker", daemon=True).start()

    def put(self, key: str, value: Any) -> None:
        """Send this worker's value of an exchange, as JSON."""
        self._send(ms.Put(key, json.dumps(value)))

    def take(self, key: str, seconds: float, stop: Callable[[], None]) -> list[Any] | None:
        """Return all workers' values of an exchange; None if not all values arrive in time.

        `stop()` is called after each message, and may raise an error. Raises `LeftError` if a
        worker has left, or this worker.
        """

        def stop_or_left() -> None:
            stop()
            if never := self._arrived.pop((ms.Never, key), None):
                raise LeftError(never.worker)
            if self._is_closed:
                raise LeftError(-1)

        with self._changed:
            if not self._arrives(ms.All, key, seconds, stop_or_left):
                return None
            return [json.loads(value) for value in self._arrived.pop((ms.All, key)).values]

    def say(self, name: str, value: str) -> None:
        """Send a text to all workers, unless the name has a text already."""
        self._send(ms.Say(name, value))

    def hear(self, name: str, seconds: float, stop: Callable[[], None]) -> str | None:
        """Return the text under a name; None if it does not arrive in time.

        `stop()` is called after each message, and may raise an error.
        """
        with self._changed:
            has_arrived = self._arrives(ms.Said, name, seconds, stop)
            return self._arrived[ms.Said, name].value if has_arrived else None

    def is_gone(self, worker: int) -> bool:
        """Return whether no more messages can come from a worker, or from the server."""
        return worker in self._gone or self._is_cut_off

    def who_gave(self, key: str) -> list[int] | None:
        """Return the workers that have sent a value of an incomplete exchange.

        Returns None if the server does not answer.
        """
        self._send(ms.Ask(key))
        with self._changed:
            has_arrived = self._arrives(ms.Given, key, 4 * BEAT_SECONDS, lambda: None)
            return self._arrived.pop((ms.Given, key)).workers if has_arrived else None

    def _arrives(
        self, kind: type[ms.Message], key: str, seconds: float, stop: Callable[[], None]
    ) -> bool:
        """Wait for a message of a class under a key; return whether it arrives in time."""
        deadline = time.monotonic() + seconds
        while (kind, key) not in self._arrived:
            stop()
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(min(left, BEAT_SECONDS))
        return True

    def tell_failed(self, why: str) -> None:
        """Tell all workers that this one fails."""
        self._send(ms.Fail(why))

    def leave(self) -> None:
        """Tell the server that this worker leaves, and that the connection will end."""
        self._send(ms.Bye(self.steps))

    def close(self) -> None:
        """Close the connection; call `leave` before."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def abandon(self) -> None:
        """Close a forked child's copy of the socket without a message.

        The parent uses the socket. While a child has the socket open, the server would not notice
        the end of the parent.
        """
        self._is_closed, self._sending = True, threading.Lock()  # another thread may have held it
        os.close(self._socket.detach())

    def _send(self, message: ms.Message) -> None:
        with self._sending, suppress(OSError):  # the receiving thread reports a broken connection
            self._socket.sendall(message.line())

    def _beat(self) -> None:
        while not self._is_closed:
            self._send(ms.Beat(self.steps))
            time.sleep(BEAT_SECONDS)

    def _hear(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self._heard(ms.parsed(line, ms.TO_WORKERS))
            why = "died"
        except TimeoutError:
            why = f"was not heard of for {self._silence_seconds:.0f} s"
        except OSError:
            why = "died"
        except Exception as error:
            why = f"cannot be understood: {type(error).__name__}: {error}"
        if not self._is_closed:
            self._on_failure(0, why)
            with self._changed:
                self._is_cut_off = True
                self._changed.notify_all()

    def _heard(self, message: ms.Message) -> None:
        if isinstance(message, ms.Failed):
            self._on_failure(message.worker, message.why)
        self.heard = time.monotonic()
        with self._changed:
            match message:
                case ms.All(key) | ms.Never(key) | ms.Said(key) | ms.Given(key):
                    self._arrived[type(message), key] = message
                case ms.Left(worker, steps):
                    self.left[worker] = steps
                    self._gone.add(worker)
                case ms.Gone(worker):
                    self._gone.add(worker)
                case ms.Beats():
                    self.beats = message
            self._changed.notify_all()
