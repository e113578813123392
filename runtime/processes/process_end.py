"""What becomes of a process's part in its job where the process ends, and in forked children."""

from __future__ import annotations

import atexit
import os
from typing import Protocol

from graphdist.runtime.processes.workers import OneWorker, set_workers


class Member(Protocol):
    """A process's part in a job."""

    def leave_at_exit(self) -> None:
        """Say goodbye to the other processes, and wait for those that need this one."""

    def abandon(self) -> None:
        """Let go of the job in a forked child, and tell nobody."""


def leaves_at_exit(member: Member) -> None:
    """Let a member leave when this process ends; a forked child is none."""
    _members.append(member)


_members: list[Member] = []


@atexit.register
def _leave() -> None:
    """Leave at the end of the process.

    It is registered at the import, so that it comes after the functions at exit of the program and
    of `graphdist.train.writing`: a checkpoint that they write or wait for needs the other workers.
    """
    for member in _members:
        member.leave_at_exit()


def _abandon() -> None:
    for member in _members:
        member.abandon()
    _members.clear()
    set_workers(OneWorker())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon)
