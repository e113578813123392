"""The workers as actors, which the coordinator starts, ends and restarts."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from threading import Lock
from typing import Any  # Any: Ray's handles

import jax

from graphdist.errors import WorkerTimeoutError
from graphdist.parameter_server.cluster_options import OWN
from graphdist.parameter_server.heartbeats import GROUP, wait_for
from graphdist.parameter_server.ray_cluster import ProcessIsSilent, ask, kill, ray, value_of
from graphdist.parameter_server.strategy import ParameterServerBase
from graphdist.parameter_server.worker import ClosureWorker, Settings, imported_by_workers
from graphdist.tracing.user_lines import here

_POLL_SECONDS = 0.05
"""The interval at which a restarting worker is asked whether it is there."""


class WorkerActors:
    """The actors of all workers."""

    def __init__(self, strategy: ParameterServerBase) -> None:
        """Start the actors."""
        defaults = {"num_cpus": 0} if strategy.address is None else {}
        settings: Any = jax.config
        actor = ray().remote(**OWN, **{**defaults, **strategy.worker_options})(ClosureWorker)
        self.actors = [
            ask(
                actor,
                Settings(
                    index,
                    strategy.devices_per_worker,
                    settings.jax_enable_x64,
                    strategy.server_names,
                    strategy.key,
                    strategy.timeouts,
                    strategy.num_workers > 1 and not strategy.allow_lost_updates,
                    [folder or os.getcwd() for folder in sys.path],
                    tuple(imported_by_workers),
                ),
            )
            for index in range(strategy.num_workers)
        ]
        self._start_seconds = strategy.timeouts.start
        self._missing: dict[int, str] = {}
        self._lock = Lock()

    def processes(self) -> list[int]:
        """Return the process id of each worker, once all have started.

        Raises `WorkerTimeoutError` if a worker takes too long.
        """
        return [self._process(worker) for worker in range(len(self.actors))]

    def _process(self, worker: int) -> int:
        module = ray()
        deadline = time.monotonic() + self._start_seconds
        while True:
            try:
                number = ask(self.actors[worker].process.options(concurrency_group=GROUP))
                wait_for([number], max(0.0, deadline - time.monotonic()))
                found: int = value_of(number)
                return found
            except ProcessIsSilent as error:
                raise WorkerTimeoutError(
                    f"worker {worker} has not started within {self._start_seconds:g} s",
                    source=here(),
                    hint="gd.config.set_worker_timeouts(start_seconds=...) waits longer",
                ) from error
            except module.exceptions.RayError:
                time.sleep(_POLL_SECONDS)

    def miss(self, worker: int, why: str) -> str:
        """Record that a worker is missing; return the reasons if all workers are."""
        with self._lock:
            self._missing[worker] = why
            if len(self._missing) < len(self.actors):
                return ""
            return ", ".join(f"worker {each} {why}" for each, why in sorted(self._missing.items()))

    def come(self, worker: int) -> None:
        """Record that a worker is there."""
        with self._lock:
            self._missing.pop(worker, None)

    def start_again(self, worker: int) -> None:
        """End a worker's process, if it can be reached, and let Ray start another one."""
        module = ray()
        with suppress(module.exceptions.RayError, ValueError):  # it is already restarting
            kill(self.actors[worker], restarts=True)

    def end(self) -> None:
        """End the processes."""
        for actor in self.actors:
            kill(actor)
