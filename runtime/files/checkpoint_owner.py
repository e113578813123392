"""The process that writes checkpoints, as its file says it: who, where, since when.

A process is its number and the time it was started, since numbers are used again; a host is its
name and the kernel that runs there, since names are given twice, and a kernel starts anew.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LENGTH = 512
"""Of the record, so that a new one covers the old one."""


@dataclass(frozen=True)
class OwnerProcess:
    """The process that holds the file, as it says in it."""

    host: str
    kernel: str
    """Tells apart hosts of one name, and a host before and after it was started again."""
    process: int
    started: str
    since: float

    @classmethod
    def this_process(cls) -> OwnerProcess:
        """Return what this process writes."""
        process = os.getpid()
        return cls(socket.gethostname(), _kernel(), process, start_of(process), time.time())

    @classmethod
    def of(cls, record: bytes) -> OwnerProcess | None:
        """Return who wrote a record; None if that cannot be read."""
        try:
            found = json.loads(record)
            return cls(
                str(found["host"]),
                str(found["kernel"]),
                int(found["process"]),
                str(found["started"]),
                float(min(max(0.0, found["since"]), 1e11)),  # also of nan, a time
            )
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return None

    def record(self, sign: int) -> bytes:
        """Return the content of the file, with the number of a sign of life."""
        return json.dumps({**vars(self), "sign": sign}).encode().ljust(LENGTH - 1) + b"\n"

    def is_gone(self, has_lock: bool) -> bool | None:
        """Return whether the process has ended, to one that has the file's lock or could not.

        None if that cannot be known from here.
        """
        here = OwnerProcess.this_process()
        if (self.host, self.kernel) != (here.host, here.kernel):
            return None  # perhaps in another container, with locks and numbers of its own
        if has_lock:
            return True
        return start_of(self.process) != self.started if self.started else None

    def __str__(self) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since))
        return f"process {self.process} on {self.host}, since {at} UTC"


@cache
def _kernel() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"of {socket.gethostname()}"  # no Linux


def start_of(process: int) -> str:
    """Return when a process was started, in the kernel's count; "" if that is not known."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]  # the name before it may hold anything
