"""`CheckpointManager`: saves the checkpoints of a program in a folder, and removes older ones."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any  # Any: a step, a variable or whatever becomes an int

from graphdist.data.elements import at_the_users_line
from graphdist.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    UnreadableCheckpointError,
)
from graphdist.quoted import quoted
from graphdist.runtime.files.checkpoint import SECONDS_TO_WRITE, CheckpointPath, done_by_all
from graphdist.runtime.files.checkpoint_folders import (
    FoundCheckpoint,
    checkpoints_in,
    complete_in,
    damaged_in,
    latest_in,
)
from graphdist.runtime.files.checkpoint_index import MOST
from graphdist.runtime.processes.workers import exchange, worker_group
from graphdist.tracing.user_lines import here
from graphdist.train.checkpoint import Checkpoint, CheckpointOptions
from graphdist.train.status import LoadStatus
from graphdist.train.user_paths import StrPath, folder_of, path_in, prefix_of
from graphdist.train.writing import finish_writing
from graphdist.values.distributed import type_name

_log = logging.getLogger("graphdist")
_restores = itertools.count()
"""Counts the restores of this process; all workers restore in the same order."""


class CheckpointManager:
    """Saves numbered checkpoints in a folder, and keeps the last ones.

    `max_to_keep` is the number of checkpoints that are kept; None keeps all.
    `keep_every_n_hours=n` keeps one checkpoint of every n hours permanently; such a checkpoint is
    not in `checkpoints`. With `checkpoint_interval=n`, `save` saves only when `step_counter` has
    advanced by n since the last save. `step_counter` is a variable, or a function without arguments
    that returns an int. `restore_or_initialize` calls `init_fn` if there is nothing to restore.

    A checkpoint is removed once the next checkpoint is complete, by the first of several workers.
    From the first `save` of a manager on, only its process can save under `checkpoint_name` in the
    folder. Before the first `save`, and always with `read_only`, a manager changes nothing in the
    folder, so a program that evaluates may make any number of managers.

    A relative `directory` is the folder that it leads to when the manager is made. Paths start with
    `directory` as given, or are absolute while the current folder is another one.

    >>> import tempfile
    >>> manager = CheckpointManager(Checkpoint(step=0), tempfile.mkdtemp(), max_to_keep=2)
    >>> for step in range(4):
    ...     manager.checkpoint.step = step
    ...     path = manager.save()
    >>> [os.path.basename(path) for path in manager.checkpoints]
    ['ckpt-3', 'ckpt-4']
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: StrPath,
        max_to_keep: int | None,
        keep_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        """Manage a folder and the checkpoints in it; raises `ArgumentError` for wrong options."""
        folder = folder_of(directory, "the directory of a manager")
        _require_findable(checkpoint, checkpoint_name)
        _require_least("max_to_keep", max_to_keep, Integral, 1, "give None to keep all")
        _require_least("keep_every_n_hours", keep_every_n_hours, Real, 0, "give None to keep none")
        _require_least("checkpoint_interval", checkpoint_interval, Integral, 1, "count in steps")
        if checkpoint_interval is not None and step_counter is None:
            raise ArgumentError(
                f"checkpoint_interval is {checkpoint_interval} and there is no step_counter",
                hint="give step_counter=lambda: checkpoint.step",
            )
        self.checkpoint = checkpoint
        self.directory = os.fspath(directory)
        self.read_only = read_only
        """Whether `save` is refused."""
        self.checkpoint_interval = checkpoint_interval
        """The least number of steps between two checkpoints."""
        self._folder, self._name = folder, checkpoint_name
        self._max_to_keep, self._hours = max_to_keep, keep_every_n_hours
        self._step_counter, self._init_fn = step_counter, init_fn
        self._last_step: int | None = None
        self._made_at = time.time()

    def __repr__(self) -> str:
        return f"<CheckpointManager of {self.directory!r}>"

    @property
    def checkpoints(self) -> list[str]:
        """Return the paths of the managed checkpoints, in the order of their saving.

        Waits for a checkpoint that is being written.
        """
        finish_writing()
        return [self._path_of(checkpoint.name) for checkpoint in self._managed()]

    @property
    def latest_checkpoint(self) -> str | None:
        """Return the path of the checkpoint saved last; None if there is none.

        A checkpoint with incomplete files is passed over, and named in the log.
        """
        latest = self._latest(set())
        return None if latest is None else self._path_of(latest)

    def _latest(self, without: set[str]) -> str | None:
        finish_writing()
        with at_the_users_line():
            return latest_in(self._folder, self._name, without)

    def _path_of(self, name: str) -> str:
        """Return the path of a checkpoint, below `directory` if that still leads to the folder."""
        return path_in(self._folder, self.directory, name)

    def save(
        self,
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
    ) -> str | None:
        """Save under `<directory>/<name>-<number>` and return that path; None if it is too soon.

        The number is the count of `Checkpoint.save`, unless an int or a variable is given. Raises
        the errors of `Checkpoint.write`, and `CheckpointError` if the manager is read-only.
        """
        if self.read_only:
            raise CheckpointError(
                f"the manager of {self.directory} is read_only, and cannot save",
                source=here(),
                hint="make it without read_only=True in the one program that saves",
            )
        step = self._step()
        if check_interval and self._is_too_soon(step):
            return None
        number = None if checkpoint_number is None else int(checkpoint_number)
        hint = "leave it out: saves are counted"
        _require_least("checkpoint_number", number, Integral, 0, hint)
        if number is not None and number > MOST:
            raise ArgumentError(
                f"checkpoint_number is {quoted(number)}: it must be at most {MOST}", hint=hint
            )
        prefix = CheckpointPath(self._folder, self._name)
        path = self.checkpoint.save_numbered(str(prefix), number, options, self._sweep)
        self._last_step = step
        return self._path_of(os.path.basename(path))

    def restore_or_initialize(self) -> str | None:
        """Restore the latest checkpoint and return its path, or call `init_fn` and return None.

        If a checkpoint is damaged, all workers log its name and restore the checkpoint before it.
        Raises `UnreadableCheckpointError` if all checkpoints are damaged, because the program
        should not start again from the beginning unnoticed. Raises the errors of
        `Checkpoint.restore` for a checkpoint that does not fit the objects. If nothing can be
        written to the folder, the log says so now, before the first `save` fails.
        """
        self._warn_if_it_cannot_save()
        passed_over: set[str] = set()
        while (latest := self._latest_of_all(passed_over)) is not None:
            if self._restored_by_all(latest):
                self._last_step = self._step()
                return self._path_of(latest)
            passed_over.add(latest)
        if self._init_fn is not None:
            self._init_fn()
        return None

    def _warn_if_it_cannot_save(self) -> None:
        obstacle = self._folder.obstacle_to_writing()
        if obstacle and not self.read_only and worker_group().index == 0:
            _log.warning(
                "no checkpoint can be saved in %s: %s; a program that only restores makes its "
                "manager with read_only=True",
                *(self.directory, obstacle),
            )

    @at_the_users_line()
    def _restored_by_all(self, name: str) -> bool:
        """Restore a checkpoint if all workers can read it; return whether they could."""
        path, status = self._folder.path_of(name), list[LoadStatus]()

        def read() -> None:
            status.append(self.checkpoint.prepared(path))

        call = f"checkpoint/restored/{next(_restores)}"
        try:
            done_by_all(worker_group(), call, read, f"{name} is read")
        except UnreadableCheckpointError as error:
            _log.warning("checkpoint %s is passed over: %s", self._path_of(name), error.what)
            return False
        self.checkpoint.put_back(status.pop())
        return True

    def sync(self) -> None:
        """Wait until the checkpoint being saved is durable; raises the error of a failed write."""
        finish_writing()

    def _latest_of_all(self, without: set[str]) -> str | None:
        """Return the name of the latest checkpoint that the first worker sees, the same for all.

        Raises `UnreadableCheckpointError` if there are checkpoints, and all are damaged.
        """
        mine, damaged = None, []
        if worker_group().index == 0:
            mine = self._latest(without)
            if mine is None:
                still = [name for name in without if self._folder.has(name)]
                damaged = sorted({*still, *damaged_in(self._folder, self._name)})
        call, doing = f"checkpoint/latest/{next(_restores)}", "the latest checkpoint is looked for"
        of_all = exchange(worker_group(), call, [mine, damaged], SECONDS_TO_WRITE, doing)
        name, names = of_all[0]
        if names:
            raise UnreadableCheckpointError(
                f"no checkpoint in {self.directory} can be read: {', '.join(names)} "
                f"{'are' if names[1:] else 'is'} damaged",
                source=here(),
                hint="the log says what is wrong with each; to start from the beginning, "
                "move them away",
            )
        return name

    def _step(self) -> int | None:
        if self._step_counter is None:
            return None
        counter = self._step_counter
        return int(counter() if callable(counter) else counter)

    def _is_too_soon(self, step: int | None) -> bool:
        if self.checkpoint_interval is None or step is None or self._last_step is None:
            return False
        return step < self._last_step + self.checkpoint_interval

    def _managed(self) -> list[FoundCheckpoint]:
        with at_the_users_line():
            complete = complete_in(self._folder, self._name)
        return [each for each in complete if not each.folder.is_marked(each.name)]

    def _sweep(self) -> None:
        """Remove the checkpoints beyond the limit, on the thread that wrote the last one.

        Damaged checkpoints do not count, so that no good one is removed for them.
        """
        if self._max_to_keep is None or worker_group().index != 0:
            return
        for checkpoint in self._managed()[: -self._max_to_keep]:
            if self._hours is not None and self._is_kept(checkpoint):
                self._folder.mark(checkpoint.name)
            else:
                self._folder.remove(checkpoint.name)

    def _is_kept(self, checkpoint: FoundCheckpoint) -> bool:
        """Return whether a checkpoint is to be kept permanently.

        The hours count from the checkpoint that was kept last, in the order of saving. A change of
        the clock, forward or back, may delay one checkpoint, and no later ones.
        """
        assert self._hours is not None
        found = checkpoints_in(self._folder, self._name)
        kept = [each for each in found if self._folder.is_marked(each.name)]
        since = kept[-1].index.saved_at if kept else self._made_at
        return abs(checkpoint.index.saved_at - since) >= self._hours * 3600


def _require_findable(checkpoint: Any, name: Any) -> None:
    """Raise if a manager could not save the checkpoint, or could not find it again."""
    if not isinstance(checkpoint, Checkpoint):
        raise ArgumentTypeError(
            f"the checkpoint of a manager is of type {type_name(checkpoint)}",
            hint="make one: gd.train.Checkpoint(params=params, step=0)",
        )
    prefix_of(name, "checkpoint_name")
    if not isinstance(name, str) or os.path.basename(name) != name:
        raise ArgumentError(
            f"checkpoint_name is {name!r}: a manager looks for names in its folder alone",
            hint='a folder belongs to directory: checkpoint_name="ckpt"',
        )


def _require_least(
    name: str, value: Any, kind: type[Integral] | type[Real], least: int, hint: str
) -> None:
    """Raise `ArgumentError` for a value that is no number or is below `least`; None is accepted."""
    if value is None:
        return
    if not isinstance(value, kind):
        word = "an integer" if kind is Integral else "a number"
        raise ArgumentTypeError(
            f"{name} is {quoted(value)}, of type {type_name(value)}, not {word}",
            hint=hint,
        )
    limit: Any = least  # not a float, which rounds large integers; `Real` has no typed `>=` for int
    if not value >= limit:
        raise ArgumentError(f"{name} is {quoted(value)}: it must be at least {least}", hint=hint)
