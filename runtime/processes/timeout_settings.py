"""How long the workers of a cluster wait for each other; `gd.config` sets it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerTimeouts:
    """How long workers wait for each other, in seconds.

    `start`: until all have arrived. `silence`: until a silent worker counts as dead. `step`: until
    a step that does not end is given up, and until worker 0, at its end, leaves the others; None is
    for ever.
    """

    start: float = 300.0
    silence: float = 60.0
    step: float | None = 1800.0
