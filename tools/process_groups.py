"""Kills the processes of a job whose launcher is gone: a program that `graphdist-run` starts.

The kernel kills a worker together with the launcher, but not the processes that the worker has
started. So this program reads the ids of process groups, one per line, until its input ends, and
then kills the groups. The input ends when the launcher ends, for any reason, since no other process
has the other end of the pipe. The program is in a session of its own, where no signal of the
terminal reaches it, and imports nothing of graphdist.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Wait for the end of the launcher, and kill the groups."""
    for group in [int(line) for line in sys.stdin]:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
