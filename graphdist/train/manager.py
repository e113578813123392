"""`CheckpointManager`: the checkpoints of one program in one folder, the older ones removed."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: a step, a variable or whatever becomes an int

from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.runtime.checkpoints import (
    SECONDS_TO_WRITE,
    checkpoints_in,
    existing,
    read_index,
    remove,
    remove_remains,
)
from graphdist.runtime.workers import exchange, workers
from graphdist.tracing.sources import here
from graphdist.train.checkpoint import Checkpoint, CheckpointOptions, StrPath
from graphdist.train.writing import finish_writing
from graphdist.values import kind_of

_restores = itertools.count()
"""Numbers the restores of this process, and so of each worker."""
_KEPT = "kept"
"""A file of this name in a checkpoint says that it is not removed."""


class CheckpointManager:
    """Saves a checkpoint under numbers in a folder, and keeps the last ones.

    `max_to_keep` is how many; None keeps all. `keep_every_n_hours` keeps one of each so many hours
    for good: those are not in `checkpoints` any more. With `checkpoint_interval`, `save` saves only
    when `step_counter`, a variable or a function without arguments that returns an int, has gone
    that far since. `init_fn` is called by `restore_or_initialize` where there is nothing to
    restore.

    A checkpoint is removed after the next one is there whole. With several workers the first
    removes them.

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
    ) -> None:
        """Take what is in the folder already; raises `ArgumentError` for impossible options."""
        if not isinstance(checkpoint, Checkpoint):
            raise ArgumentTypeError(
                f"the checkpoint of a manager is of type {kind_of(checkpoint)}",
                source=here(),
                hint="make one: gd.train.Checkpoint(params=params, step=0)",
            )
        if max_to_keep is not None and max_to_keep < 1:
            raise ArgumentError(
                f"max_to_keep is {max_to_keep}: a manager keeps at least 1",
                source=here(),
                hint="give None to keep all",
            )
        if checkpoint_interval is not None and step_counter is None:
            raise ArgumentError(
                f"checkpoint_interval is {checkpoint_interval} and there is no step_counter",
                source=here(),
                hint="give step_counter=lambda: checkpoint.step",
            )
        self.checkpoint = checkpoint
        self._directory, self._name = os.fspath(directory), checkpoint_name
        self._max_to_keep, self._hours = max_to_keep, keep_every_n_hours
        self._step_counter, self._interval = step_counter, checkpoint_interval
        self._init_fn = init_fn
        self._last_step: int | None = None
        self._made_at = time.time()
        finish_writing()
        if workers().index == 0:
            remove_remains(self._folder, checkpoint_name)

    @property
    def _folder(self) -> Path:
        return Path(self._directory).absolute()

    @property
    def directory(self) -> str:
        """Return the folder."""
        return self._directory

    @property
    def checkpoint_interval(self) -> int | None:
        """Return how many steps are between two checkpoints at least."""
        return self._interval

    @property
    def checkpoints(self) -> list[str]:
        """Return the paths of the checkpoints that are managed, in the order of their saving.

        The one being written is waited for.
        """
        finish_writing()
        return [os.path.join(self._directory, path.name) for path in self._managed()]

    @property
    def latest_checkpoint(self) -> str | None:
        """Return the path of the checkpoint saved last; None if there is none."""
        finish_writing()
        paths = checkpoints_in(self._folder, self._name)
        return os.path.join(self._directory, paths[-1].name) if paths else None

    def save(
        self,
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
    ) -> str | None:
        """Save under `<directory>/<name>-<number>` and return that; None where it is too soon.

        Numbers are those of `Checkpoint.save` unless one is given, an int or a variable. Raises
        what `Checkpoint.write` raises.
        """
        step = self._step()
        if check_interval and self._is_too_soon(step):
            return None
        prefix = os.path.join(self._directory, self._name)
        number = None if checkpoint_number is None else int(checkpoint_number)
        path = self.checkpoint.save_numbered(prefix, number, options, self._sweep)
        self._last_step = step
        return path

    def restore_or_initialize(self) -> str | None:
        """Restore the latest checkpoint and return its path, or call `init_fn` and return None."""
        latest = self._latest_of_all()
        if latest is not None:
            self.checkpoint.restore(latest)
            self._last_step = self._step()
            return latest
        if self._init_fn is not None:
            self._init_fn()
        return None

    def sync(self) -> None:
        """Return once what is being saved is on the disk; raises what went wrong."""
        finish_writing()

    def _latest_of_all(self) -> str | None:
        """Return the latest checkpoint as the first worker sees it, so that all take the same."""
        group, latest = workers(), self.latest_checkpoint
        if group.count == 1:
            return latest
        name = f"checkpoint/latest/{next(_restores)}"
        mine = "" if latest is None else os.path.basename(latest)
        doing = "the latest checkpoint is restored"
        first = exchange(group, name, mine, SECONDS_TO_WRITE, doing)
        return os.path.join(self._directory, first[0]) if first[0] else None

    def _step(self) -> int | None:
        if self._step_counter is None:
            return None
        counter = self._step_counter
        return int(counter() if callable(counter) else counter)

    def _is_too_soon(self, step: int | None) -> bool:
        if self._interval is None or step is None or self._last_step is None:
            return False
        return step < self._last_step + self._interval

    def _managed(self) -> list[Path]:
        paths = checkpoints_in(self._folder, self._name)
        return [path for path in paths if not (path / _KEPT).exists()]

    def _sweep(self) -> None:
        """Remove checkpoints that are too many; on the thread that wrote the last one."""
        if self._max_to_keep is None or workers().index != 0:
            return
        for path in self._managed()[: -self._max_to_keep]:
            if self._hours is not None and self._is_kept(path):
                (path / _KEPT).touch()
            else:
                remove(path)

    def _is_kept(self, path: Path) -> bool:
        """Return whether a checkpoint is the one of its hours."""
        assert self._hours is not None
        kept = [one for one in checkpoints_in(self._folder, self._name) if (one / _KEPT).exists()]
        last = max(map(_saved_at, kept), default=self._made_at)
        return _saved_at(path) - self._hours * 3600 >= last


def _saved_at(path: Path) -> float:
    place = existing(path)
    return 0.0 if place is None else float(read_index(place)["saved_at"])
