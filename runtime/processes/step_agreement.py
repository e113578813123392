"""Agrees on the step after which all workers stop together.

Each worker counts its steps. When a worker gets a notice that it will be stopped, all workers must
save after the same step, and no worker may wait in a collective that others do not execute. So:

1. The worker with the notice publishes a request. A thread of each worker waits for the request.
2. This thread publishes the last step that its worker has begun or, between two steps, the next
   step. At the end of the published step, the worker waits for the agreed step.
3. When the thread has the published steps of all workers, the largest is the agreed step. No worker
   is beyond the agreed step, and all workers continue up to it.

In 1 and 2, threads answer for their workers, even while a worker is inside a step that cannot end
before another worker begins the same step. So no worker waits for ever. Workers stop at the end of
a step. If workers stopped before a step, the batch of that step would be read from its iterator and
lost. If a worker publishes nothing in time, the others raise an error that names this worker.
"""

from __future__ import annotations

import threading

from graphdist.runtime.processes.workers import Workers, exchange

_SECONDS_BETWEEN_LOOKS = 1.0


class StepAgreement:
    """Counts this worker's steps, and agrees with the other workers on the last step.

    `name` distinguishes the agreements of a program. `timeout_seconds` is how long to wait for the
    other workers.

    >>> from graphdist.runtime.processes.workers import Workers
    >>> agreement = StepAgreement(Workers(), "training")
    >>> agreement.begin_step()
    >>> agreement.request()
    >>> agreement.end_step()
    True
    """

    def __init__(self, workers: Workers, name: str, timeout_seconds: float = 60.0) -> None:
        """Start with 0 steps."""
        self._workers, self._name, self._timeout = workers, name, timeout_seconds
        self._begun = 0
        self._is_inside = self._is_requested = self._is_closed = False
        self._published: int | None = None
        self._agreed: int | None = None
        self._error: BaseException | None = None
        # Reentrant: a signal's handler may interrupt the thread that holds it.
        self._changed = threading.Condition(threading.RLock())
        if workers.count > 1:
            threading.Thread(target=self._follow, name="graphdist-agreement", daemon=True).start()

    def request(self) -> None:
        """Ask all workers to stop; safe in a handler of signals."""
        if self._is_requested:
            return
        self._is_requested = True
        if self._workers.count == 1:
            self._agreed = self._last_step()
        else:  # not on this thread: a signal may interrupt it while it holds locks of `publish`
            threading.Thread(target=self._publish_request, daemon=True).start()

    def begin_step(self) -> None:
        """Count a step."""
        with self._changed:
            self._begun += 1
            self._is_inside = True

    def end_step(self) -> bool:
        """Return whether this was the step after which all workers stop.

        After a request it waits for the agreement. Raises `WorkerTimeoutError` if a worker
        publishes nothing in time.
        """
        with self._changed:
            self._is_inside = False
            while self._waits():
                self._changed.wait()
            if self._error is not None:
                raise self._error
            return self._agreed is not None and self._begun >= self._agreed

    def close(self) -> None:
        """End the part of this worker in agreements."""
        self._is_closed = True

    def _waits(self) -> bool:
        is_open = self._agreed is None and self._error is None
        return is_open and self._published is not None and self._begun >= self._published

    def _last_step(self) -> int:
        return self._begun if self._is_inside else self._begun + 1

    def _publish_request(self) -> None:
        self._workers.publish(f"{self._name}/request", str(self._workers.index))

    def _follow(self) -> None:
        """Wait for the request, and agree on the step. The thread runs this function."""
        try:
            while self._workers.heard(f"{self._name}/request", _SECONDS_BETWEEN_LOOKS) is None:
                if self._is_closed:
                    return
            with self._changed:
                self._published = step = self._last_step()
            doing = "workers agree on the step to stop after"
            steps = exchange(self._workers, f"{self._name}/step", step, self._timeout, doing)
            with self._changed:
                self._agreed = max(steps)
                self._changed.notify_all()
        except BaseException as error:  # `end_step` would wait for ever
            with self._changed:
                self._error = error
                self._changed.notify_all()
