"""Leaves the job when a process ends, and abandons it in forked children."""

from __future__ import annotations

import atexit
import os
from typing import Protocol

from graphdist.runtime.processes.workers import OneWorker, set_workers


class Member(Protocol):
    """This process as a member of a job."""

    def leave_at_exit(self) -> None:
        """Tell the other processes that this one leaves, and wait for those that need it."""

    def abandon(self) -> None:
        """Close the connections of a forked child, without a message."""


def leaves_at_exit(member: Member) -> None:
    """Let a member leave when this process ends; a forked child is no member."""
    _members.append(member)


_members: list[Member] = []


@atexit.register
def _leave() -> None:
    """Leave at the end of the process.

    It is registered at the import, so that it runs after the exit functions of the program and of
    `graphdist.train.writing`: a checkpoint that they write or wait for needs the other workers.
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
