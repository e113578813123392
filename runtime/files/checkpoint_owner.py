"""The identity of the process that writes checkpoints, as its file records it.

A process is identified by its id and start time, since ids are reused. A host is identified by its
name and the boot id of its kernel, since two hosts may have one name, and a reboot ends all
processes.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

LENGTH = 512
"""The length of a record in bytes, which is fixed, so that a new record overwrites the old one."""


@dataclass(frozen=True)
class OwnerProcess:
    """The process that holds the lock on checkpoints."""

    host: str
    kernel: str
    """Distinguishes hosts of one name, and a host before and after a reboot."""
    process: int
    started: str
    since: float

    @classmethod
    def this_process(cls) -> OwnerProcess:
        """Return the identity of this process."""
        process = os.getpid()
        return cls(socket.gethostname(), _kernel(), process, start_of(process), _time(time.time()))

    @classmethod
    def of(cls, record: bytes | None) -> OwnerProcess | None:
        """Return the process that wrote a record; None without a record that can be read."""
        try:
            fields = json.loads(record or b"")
            host, kernel, started = (str(fields[name]) for name in ("host", "kernel", "started"))
            return cls(host, kernel, int(fields["process"]), started, _time(fields["since"]))
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return None

    def record(self, sign: int) -> bytes:
        """Return the content of the record; `sign` is the number of heartbeats so far."""
        return json.dumps({**vars(self), "sign": sign}).encode().ljust(LENGTH - 1) + b"\n"

    def is_this_process(self) -> bool:
        """Return whether this process wrote the record, at any time."""
        here = OwnerProcess.this_process()
        return replace(self, since=here.since) == here

    def is_gone(self, has_lock: bool) -> bool | None:
        """Return whether the process has ended; None if this process cannot know.

        `has_lock` says whether this process has locked the file of the record. If not, the file
        system has no locks.
        """
        here = OwnerProcess.this_process()
        if (self.host, self.kernel) != (here.host, here.kernel):
            return None  # it may be another container, with its own locks and process ids
        if has_lock:
            return True
        return start_of(self.process) != self.started if self.started else None

    def __str__(self) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since))
        return f"process {self.process} on {self.host}, since {at} UTC"


def _time(seconds: float) -> float:
    """Return a time that can be written as a date.

    Clocks may be wrong, and a damaged record may have nan.
    """
    return float(min(max(0.0, seconds), 1e11))


@cache
def _kernel() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"of {socket.gethostname()}"  # no Linux


def start_of(process: int) -> str:
    """Return when a process was started, in ticks of the kernel; "" if that is not known."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]  # the process name before it may have any character
