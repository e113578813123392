"""Kills workers at random moments, so many times in all: a folder counts them."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

SECONDS_TO_START, SECONDS_OF_STEPS = 5.0, 1.5


class RandomKill:
    """The kill of this start of the job, if this worker is the one.

    All workers of a start draw the same worker and the same moment: in turn, one after the first
    step, and one while devices start and the step is compiled.
    """

    def __init__(self, folder: Path, rank: int, kills: int) -> None:
        """Draw the moment."""
        number = len(list(folder.glob("kill-*")))
        chosen = random.Random(number)
        self._file, self._is_in_steps = folder / f"kill-{number}", number % 2 == 0
        self._is_mine = number < kills and rank == chosen.randrange(2)
        seconds = SECONDS_OF_STEPS if self._is_in_steps else SECONDS_TO_START
        self._timer = threading.Timer(chosen.uniform(0.1, seconds), self._kill)
        self._timer.daemon = True
        if not self._is_in_steps:
            self._begin()

    def _begin(self) -> None:
        if self._is_mine and not self._timer.ident:
            self._timer.start()

    def _kill(self) -> None:
        self._file.write_text("killed")
        os.kill(os.getpid(), signal.SIGKILL)

    def after_step(self) -> None:
        """Begin to count the seconds, if they count from the first step."""
        if self._is_in_steps:
            self._begin()

    def wait(self) -> None:
        """Wait for the kill, which may come after the last step."""
        if self._is_mine:
            self._timer.join()
