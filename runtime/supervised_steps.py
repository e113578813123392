"""Runs steps with collectives over several processes so that no worker waits for ever.

On CPU a collective runs inside the call and cannot be interrupted. So the call runs on a thread,
and the caller waits for this thread and for reports of other workers at the same time. If another
worker fails, or a step takes longer than allowed, the caller raises and abandons the thread. On
accelerators calls return at once, and the thread waits for their results: a report interrupts a
caller that waits in graphdist. A caller that waits for a value inside JAX cannot be interrupted, so
the process ends itself.

Ctrl-C interrupts a waiting caller. If the step still ends, because all other workers have joined
the step, the variables get the step's results. If the step does not end, its donated arguments are
lost.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn  # Any: whatever a step returns

import jax

from graphdist.ir.source import Source
from graphdist.runtime.devices import Devices
from graphdist.runtime.processes.abandonable_calls import Runner, has_ended
from graphdist.runtime.processes.addresses import WorkerError
from graphdist.runtime.processes.cluster_workers import EXIT_CODE, CollectiveTimeoutError
from graphdist.runtime.processes.server import BEAT_SECONDS

SECONDS_AFTER_INTERRUPT = 2.0
"""How long a step may take to end after Ctrl-C."""
StepFunction = Callable[..., Any]


def supervised(
    function: StepFunction,
    name: str,
    devices: Devices,
    first_collective: Callable[[], tuple[str, Source]],
) -> StepFunction:
    """Return a function that runs a step, and raises if other workers keep the step from ending.

    `function` returns a sequence of arrays. Errors have `name`, and the text and the user's line
    that `first_collective` returns.
    """
    if devices.workers is None:
        return function
    enable_x64 = jax.enable_x64.value  # each thread has a setting of its own

    def run(*arrays: Any) -> Any:
        with jax.enable_x64(enable_x64):
            return function(*arrays)

    return WorkerStep(run, name, devices, first_collective)


class WorkerStep:
    """A step on the devices of several workers."""

    def __init__(
        self,
        function: StepFunction,
        name: str,
        devices: Devices,
        first_collective: Callable[[], tuple[str, Source]],
    ) -> None:
        """Wrap the function that runs the step on arrays of these devices."""
        assert devices.workers is not None
        self._function, self._name, self._workers = function, name, devices.workers
        self._first_collective = first_collective
        self._timeout, self._is_cpu = devices.timeout_seconds, devices.platform == "cpu"
        self._interrupted: Any = None

    def take_interrupted(self) -> Any:
        """Return the results of a step whose caller was interrupted, at most once, or None."""
        outputs, self._interrupted = self._interrupted, None
        return outputs

    def __call__(self, *arrays: Any) -> Any:
        """Run the step.

        Raises `WorkerError` when another worker has failed, `CollectiveTimeoutError` when the step
        does not end in time.
        """
        step = self._workers.begin_step()
        self._workers.check(step)
        call: Future[Any] = Future()
        if not self._is_cpu:
            outputs = self._translated(self._function, arrays)
            _runner.start(call, _wait_for, outputs)
            # JAX raises the error of a watched step where its result is used.
            _watcher.start(Future(), _watch, self, call, step)
            return outputs
        try:
            _runner.start(call, _run_and_wait, self._function, arrays)
            self.wait(call, step)
            return self._translated(call.result, ())
        except BaseException as error:
            if not isinstance(error, Exception):
                self._end_interrupted(call)
            raise

    def _end_interrupted(self, call: Future[Any]) -> None:
        """Keep the results of an interrupted step if the step ends soon, else abandon its call."""
        is_over = False
        try:
            is_over = has_ended(call, SECONDS_AFTER_INTERRUPT)
        finally:  # Ctrl-C may come again
            if is_over:
                self._interrupted = None if call.exception() else call.result()
            else:
                self._abandon()

    def _abandon(self) -> None:
        _runner.abandon()
        self._workers.set_stuck()

    def wait(self, call: Future[Any], step: int) -> None:
        """Return when a call has ended, with a result or an error.

        Raise `WorkerError` if another worker fails before the end, `CollectiveTimeoutError` if the
        call takes longer than the timeout.
        """
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        interval = BEAT_SECONDS if self._timeout is None else min(BEAT_SECONDS, self._timeout)
        while not has_ended(call, interval):
            try:
                self._workers.check(step)
                if deadline is not None and time.monotonic() > deadline:
                    self._workers.fail(self.too_late(step))
            except WorkerError:
                if has_ended(call, BEAT_SECONDS):  # the call has ended, with its own error
                    return
                self._abandon()
                raise

    def too_late(self, step: int) -> CollectiveTimeoutError:
        """Return the error for a step that takes longer than allowed."""
        time.sleep(2 * BEAT_SECONDS)  # for the latest heartbeats of all workers
        missing = self._workers.behind(step)
        collective, source = self._first_collective()
        who = f"{self._workers.names(missing)} did not arrive" if missing else "all have begun it"
        return CollectiveTimeoutError(
            f"step {step}, {self._name!r}, did not end within {self._timeout:g} s: {who}",
            source=source,
            node=collective,
            where="its first collective",
            hint="look at what those workers do; for steps that take longer raise "
            "CommunicationOptions(timeout_seconds)",
        )

    def _translated(self, call: StepFunction, arrays: Sequence[Any]) -> Any:
        """Return the result of a call; if a dead worker caused an error, name that worker."""
        try:
            return call(*arrays)
        except WorkerError:
            raise
        except (RuntimeError, ValueError) as error:
            behind = self._workers.failure_behind(error)
            if behind is None:
                raise
            raise WorkerError(behind.what, hint=behind.hint) from error


def _watch(step: WorkerStep, call: Future[Any], number: int) -> None:
    """Wait for a step that runs on the devices; end the process if the step never ends."""
    try:
        step.wait(call, number)
    except WorkerError as error:
        time.sleep(BEAT_SECONDS)  # until the report is sent
        end_process(error)


def end_process(error: WorkerError) -> NoReturn:
    """End the process at once, with the stack of the main thread and an error."""
    sys.stdout.flush()
    print("Traceback of the main thread (most recent call last):", file=sys.stderr)
    traceback.print_stack(sys._current_frames().get(threading.main_thread().ident or 0))
    print(f"graphdist.errors.{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE)


def _run_and_wait(function: StepFunction, arrays: Sequence[Any]) -> Any:
    outputs = function(*arrays)
    _wait_for(outputs)
    return outputs


def _wait_for(outputs: Sequence[Any]) -> None:
    for output in outputs:
        try:
            output.block_until_ready()
        except RuntimeError:
            if not output.is_deleted():  # a deleted one was donated to a later step
                raise


_runner, _watcher = Runner("graphdist-steps"), Runner("graphdist-watched-steps")
