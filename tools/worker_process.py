"""The process of a worker that `graphdist-run` starts: its output, its end, its children.

The worker's output is passed on line by line, each line with the index of the worker. A line of
more than `LONGEST_LINE` bytes is passed on in parts. If the output can no longer be written, the
output is still read until the launcher ends the job, because otherwise the worker would block in
`print`.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TextIO

from graphdist.tools import process_groups

LONGEST_LINE = 1 << 16
LINES_SHOWN_LAST = 60
_SECONDS_FOR_LAST_LINES = 1.0
_FOLLOWS_ANOTHER = re.compile(rb"graphdist\.[\w.]*(WorkerError|CollectiveTimeoutError): ")
_END_OF_LINE = re.compile(rb"\r\n?|\n")
_PR_SET_PDEATHSIG = 1


class Worker:
    """One process, and the last lines that the process wrote."""

    def __init__(self, index: int, command: Sequence[str], environment: dict[str, str]) -> None:
        """Start the process."""
        self.index = index
        self.was_stopped = False
        """Whether the launcher ended the worker, after another worker had failed."""
        self.unwritten: OSError | None = None
        """The error for which the worker's output cannot be written any more."""
        self.last_lines: deque[bytes] = deque(maxlen=LINES_SHOWN_LAST)
        self._waits_since: dict[threading.Thread, float] = {}
        """The time since which each reader waits for a line; infinity while it writes one."""
        self.process = subprocess.Popen(
            command,
            bufsize=0,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a terminal's signals reach it through the launcher only
            preexec_fn=_dying_with(os.getpid()),
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        streams = (self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr)
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True) for pair in streams
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[bytes], out: TextIO) -> None:
        with stream:
            for line in lines_of(stream):
                if out is sys.stderr:
                    self.last_lines.append(line + b"\n")
                if self.unwritten is None:
                    self._waits_since[threading.current_thread()] = math.inf
                    try:
                        write(out, b"[worker %d] %s\n" % (self.index, line.rstrip()))
                    except OSError as error:
                        self.unwritten = error
                self._waits_since[threading.current_thread()] = time.monotonic()

    @property
    def status(self) -> int | None:
        """Return the worker's exit status as shells report it, None while it runs."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal has stopped the process; False if the system does not tell."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_bytes()
        except OSError:  # it has ended, or there is no /proc
            return False
        return stat.rpartition(b") ")[2][:1] == b"T"

    def send(self, number: int) -> None:
        """Send a signal to the process and to the processes that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def finish_reading(self) -> None:
        """Write the last lines of a process that has ended, however slowly they are read.

        The wait for a line ends after a second, because a process that has left the worker's
        session may hold the streams open.
        """
        ended = time.monotonic()
        for reader in self._readers:
            while reader.is_alive():
                since = max(ended, self._waits_since.get(reader, ended))
                if time.monotonic() > since + _SECONDS_FOR_LAST_LINES:
                    break
                reader.join(0.02)

    def follows_another(self) -> bool:
        """Return whether the worker failed because another worker failed."""
        return any(_FOLLOWS_ANOTHER.match(line) for line in self.last_lines)


def lines_of(stream: IO[bytes]) -> Iterator[bytes]:
    r"""Yield the lines of a stream without buffer, without their ends; long ones in parts.

    Lines end with "\n" or "\r\n" or, as those of progress bars, with "\r".
    """
    rest, before = bytearray(), b""
    while chunk := stream.read(LONGEST_LINE):
        new = chunk.removeprefix(b"\n") if before.endswith(b"\r") else chunk
        before = chunk
        *lines, last = _END_OF_LINE.split(new)
        for line in lines:
            yield bytes(rest + line)
            rest.clear()
        rest += last
        if len(rest) >= LONGEST_LINE:
            yield bytes(rest)
            rest.clear()
    if rest:
        yield bytes(rest)


def write(out: TextIO, text: bytes) -> None:
    """Write to an output of several threads, without Python's buffer.

    A thread that waits for a slow reader would hold the lock of Python's buffer. Then Python would
    abort at exit.
    """
    rest = memoryview(text)
    with _writing:
        while rest:
            rest = rest[os.write(out.fileno(), rest) :]


def has_reader(out: TextIO) -> bool:
    """Return False for a pipe whose reader has gone away."""
    poll = select.poll()
    try:
        poll.register(out.fileno(), 0)
    except OSError:  # it is no file
        return True
    return not any(event & select.POLLERR for _, event in poll.poll(0))


@contextmanager
def killed_with_the_launcher() -> Iterator[Callable[[Worker], None]]:
    """Yield a function that takes a worker.

    If this process is killed, the processes that the worker has started are killed, too.
    """
    with subprocess.Popen(
        [sys.executable, "-I", "-S", process_groups.__file__],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as watcher:
        assert watcher.stdin is not None
        pipe = watcher.stdin.fileno()

        def add(worker: Worker) -> None:
            with suppress(BrokenPipeError):
                os.write(pipe, b"%d\n" % worker.process.pid)

        try:
            yield add
        finally:
            watcher.kill()


def _dying_with(launcher: int) -> Callable[[], None]:
    """Return a function with which a new process asks the kernel to kill it with the launcher."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # loaded here: not after the fork

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)  # the launcher ended before `prctl`

    return ask


_writing = threading.Lock()
