"""Leaves the job when a process ends, and abandons it in forked children."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

from graphdist.runtime.processes.workers import Workers, set_workers

if TYPE_CHECKING:
    from graphdist.runtime.processes.cluster_workers import ClusterWorkers


def leaves_at_exit(member: ClusterWorkers) -> None:
    """Let a member of a job leave when this process ends; a forked child is no member."""
    _members.append(member)


_members: list[ClusterWorkers] = []


@atexit.register
def _leave() -> None:
    """Leave at the end of the process.

    The function is registered at the import of this module, and therefore runs after the exit
    functions of the program and of `graphdist.train.writing`. Those may write a checkpoint, which
    needs the other workers.
    """
    for member in _members:
        member.leave_at_exit()


def _abandon() -> None:
    for member in _members:
        member.abandon()
    _members.clear()
    set_workers(Workers())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon)
