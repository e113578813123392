"""`PreemptionCheckpointHandler`: save and exit when the machine is about to be preempted."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any  # Any: the user's functions, resolvers and what signals are handled by

from graphdist.data.elements import at_the_users_line
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError, UnsupportedError
from graphdist.runtime.processes.step_agreement import StepAgreement
from graphdist.runtime.processes.workers import worker_group
from graphdist.train.checkpoint import Checkpoint
from graphdist.train.manager import CheckpointManager
from graphdist.train.user_paths import StrPath
from graphdist.values.distributed import type_name

_log = logging.getLogger("graphdist")
_handlers = itertools.count()
"""Numbers the handlers of this process. All workers make their handlers in the same order."""

CALLS = "total_run_calls"
"""The name of the checkpoint's entry for the count of calls."""
_SECONDS_BETWEEN_LOOKS = 1.0
_SHARE_TO_GO_ON = 2 / 3


@dataclass(frozen=True)
class TerminationConfig:
    """How the program learns that it will be stopped, and how it reacts.

    `termination_watcher_fn` returns whether there is a notice; it is called every second, on a
    thread. Without this function the notice is the signal SIGTERM. `grace_period` is the number of
    seconds from the notice to the end: the program goes on for two thirds of it, the rest is for
    saving. `save_fn` is called to save, in place of the checkpoint manager. `exit_fn` ends the
    program. By default the program exits with `exit_code`; 143 is the status that a shell reports
    for a program ended by SIGTERM.
    """

    termination_watcher_fn: Callable[[], bool] | None = None
    exit_fn: Callable[[], Any] | None = None
    grace_period: float | None = None
    save_fn: Callable[..., Any] | None = None
    exit_code: int = 143


class PreemptionCheckpointHandler:
    """Saves and exits when a notice comes that the program will be stopped.

    A step is a call of `run`. All workers save after the same step, whichever worker gets the
    notice. The handler is made with a checkpoint manager, or with a checkpoint and its folder. It
    restores the latest checkpoint in the folder, including the count of calls, so that a restarted
    program continues with `range(handler.total_run_calls, steps)`.

    `cluster_resolver` is the strategy's, or None. A second SIGTERM does what it would have done
    without the handler. Raises `ArgumentError` for a checkpoint without a folder,
    `UnsupportedError` for a cluster with parameter servers, and `ContextError` on another thread
    than the main one, where signals cannot be handled.

    >>> import tempfile
    >>> checkpoint = Checkpoint(step=0)
    >>> handler = PreemptionCheckpointHandler(None, checkpoint, tempfile.mkdtemp())
    >>> for step in range(handler.total_run_calls, 3):
    ...     print(handler.run(lambda: step * 10))
    0
    10
    20
    >>> handler.close()
    """

    def __init__(
        self,
        cluster_resolver: Any,
        checkpoint_or_manager: Checkpoint | CheckpointManager,
        checkpoint_dir: StrPath | None = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        """Restore the latest checkpoint, and watch for the notice."""
        _refuse_parameter_servers(cluster_resolver)
        self._manager = _manager_of(checkpoint_or_manager, checkpoint_dir)
        self._config = termination_config or TerminationConfig()
        self._objects = self._manager.checkpoint.objects
        setattr(self._manager.checkpoint, CALLS, 0)
        self._manager.restore_or_initialize()
        self._agreement = StepAgreement(worker_group(), f"preemption/{next(_handlers)}")
        self._is_noticed = self._is_closed = False
        self._before: Any = None
        """The previous handler of SIGTERM, while this object handles SIGTERM."""
        watcher = self._config.termination_watcher_fn
        if watcher is None:
            self._before = _handled_by(self._on_signal)
        else:
            name = "graphdist-termination"
            threading.Thread(target=self._watch, args=(watcher,), name=name, daemon=True).start()

    @property
    def total_run_calls(self) -> int:
        """Return how often `run` was called, including calls before a restart."""
        return int(self._objects[CALLS])

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a step and return its result; after the agreed step, save and exit.

        After the agreed step `run` does not return. So `fn` itself must do what every step needs,
        such as reporting a loss. Raises `WorkerTimeoutError` if another worker does not take part
        in the agreement.
        """
        self._agreement.begin_step()
        result = fn(*args, **kwargs)
        self._objects[CALLS] += 1
        self._end_step()
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Save and exit if this is the agreed step; for programs that do not use `run`.

        Call it between two steps, on all workers alike. The arguments are for `save_fn`.
        """
        self._end_step(*args, **kwargs)
        self._agreement.begin_step()

    @contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """Return a context manager for a loop that calls `save_checkpoint_if_preempted`."""
        self._agreement.begin_step()
        yield
        self._end_step()

    def close(self) -> None:
        """Stop watching, and restore the previous signal handler."""
        self._is_closed = True
        self._agreement.close()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _end_step(self, *args: Any, **kwargs: Any) -> None:
        """End a step; after the agreed step save, and end the program. Arguments: `save_fn`'s."""
        with at_the_users_line():
            is_agreed = self._agreement.end_step()
        if not is_agreed:
            return
        _log.warning("the program will be stopped: saving after call %d", self.total_run_calls)
        if self._config.save_fn is not None:
            self._config.save_fn(*args, **kwargs)
        else:
            self._manager.save(check_interval=False)
        self._manager.sync()
        self.close()
        if self._config.exit_fn is None:
            sys.exit(self._config.exit_code)
        self._config.exit_fn()

    # The notice.

    def _on_signal(self, number: int, frame: Any) -> None:
        if self._is_noticed:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._notice()

    def _watch(self, is_noticed: Callable[[], bool]) -> None:
        has_failed = False
        while not self._is_closed:
            try:
                if is_noticed():
                    self._notice()
                    return
            except Exception:  # such as a connection that is reset; the next call may succeed
                if not has_failed:
                    _log.exception("termination_watcher_fn fails; it is asked again")
                has_failed = True
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _notice(self) -> None:
        self._is_noticed = True
        grace = self._config.grace_period
        if not grace:
            self._agreement.request()
            return
        timer = threading.Timer(grace * _SHARE_TO_GO_ON, self._agreement.request)
        timer.daemon = True
        timer.start()


def _manager_of(saver: Any, folder: StrPath | None) -> CheckpointManager:
    """Return the manager that saves: `saver`, or a new one of the checkpoint `saver`."""
    if isinstance(saver, CheckpointManager):
        if saver.read_only:
            raise ArgumentError(
                "a PreemptionCheckpointHandler is given a read_only manager, which cannot save",
                hint="make the manager without read_only=True in the one program that saves",
            )
        return saver
    if not isinstance(saver, Checkpoint):
        raise ArgumentTypeError(
            f"checkpoint_or_manager is of type {type_name(saver)}",
            hint="give a gd.train.Checkpoint or a gd.train.CheckpointManager",
        )
    if not folder:
        raise ArgumentError(
            "a PreemptionCheckpointHandler is given a checkpoint and no checkpoint_dir",
            hint="give checkpoint_dir, the folder to save in, or a manager, which has one",
        )
    return CheckpointManager(saver, folder, max_to_keep=1)


def _refuse_parameter_servers(resolver: Any) -> None:
    cluster = resolver.cluster_spec() if hasattr(resolver, "cluster_spec") else None
    jobs = getattr(cluster, "jobs", cluster) or ()
    if "ps" in jobs:
        raise UnsupportedError(
            "PreemptionCheckpointHandler on a cluster with parameter servers",
            hint="use a CheckpointManager on the coordinator",
        )


def _handled_by(handler: Callable[[int, Any], None]) -> Any:
    """Let `handler` handle SIGTERM, and return the previous handler."""
    if threading.current_thread() is not threading.main_thread():
        raise ContextError(
            "a PreemptionCheckpointHandler for SIGTERM is made on another thread than the main one",
            hint="make it on the main thread, or give TerminationConfig(termination_watcher_fn=..)",
        )
    return signal.signal(signal.SIGTERM, handler)
