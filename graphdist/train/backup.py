"""`BackupAndRestore`: a loop over epochs and steps that resumes where it was stopped."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Literal  # Any: datasets and their elements, JSON

from graphdist.data.adapters import other_dataset
from graphdist.data.dataset import Dataset
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.data.failures import element_or_raise
from graphdist.data.iterators import ElementIterator
from graphdist.data.sources import ElementStream
from graphdist.errors import ArgumentError, ContextError
from graphdist.runtime.files.checkpoint_folders import remove_all
from graphdist.runtime.files.checkpoint_lock import CheckpointWriter
from graphdist.runtime.processes.workers import worker_group
from graphdist.train.checkpoint import Checkpoint
from graphdist.train.manager import CheckpointManager
from graphdist.train.user_paths import StrPath, folder_of

PROGRESS = "backup"
"""The name of the checkpoint's entry for the progress of the loop, and of the checkpoints."""


class _OfOtherDataset:
    """An iterator over a dataset of another library.

    Its state is the number of elements that were read and, if the dataset has a state, that state.
    Without a state of the dataset, a resumed iterator reads the elements before its position again
    and drops them.
    """

    def __init__(self, dataset: Iterable[Any]) -> None:
        self._node = other_dataset(dataset, as_it_is=True)
        self._stream: ElementStream | None = None
        self._taken, self._state = 0, None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._stream is None:
            self._stream = self._node.stream()
        element = next(self._stream)
        self._taken += 1
        # Not in `get_state`: past the last element a loader's state may be of the next epoch.
        self._state = self._stream.state()
        return element_or_raise(element)

    def get_state(self) -> Any:
        has_state = self._state is not None
        return {"taken": self._taken, **({"state": self._state} if has_state else {})}

    def set_state(self, state: Any) -> None:
        self._taken, self._state = state["taken"], state.get("state")
        self._stream = self._node.stream(self._taken, self._state)


class _Progress:
    """The progress of the loop: the epoch, and the position in its dataset."""

    def __init__(self) -> None:
        self.epoch = 0
        self.is_done = False
        """Whether the epoch is over, and its position is the end of the dataset."""
        self._iterator: Any = None
        self._restored: Any = None
        """The saved position, until there is a dataset to resume."""

    def get_state(self) -> Any:
        position = self._restored if self._iterator is None else self._iterator.get_state()
        return {"epoch": self.epoch, "is_done": self.is_done, "position": position}

    def set_state(self, state: Any) -> None:
        self.epoch, self.is_done = int(state["epoch"]), bool(state["is_done"])
        self._iterator, self._restored = None, state["position"]

    def begin(self, epoch: int, dataset: Iterable[Any]) -> Any:
        """Return an iterator over the epoch, or over the rest of an epoch that is resumed."""
        iterator = _positioned(dataset)
        is_counted = isinstance(iterator, _OfOtherDataset) and "state" not in (self._restored or {})
        if self._restored is not None and not (self.is_done and is_counted):
            iterator.set_state(self._restored)
            if self.is_done:
                for _ in iterator:  # so that shuffles have drawn their random order of that epoch
                    pass
                iterator = _positioned(dataset)
        self.epoch, self.is_done = epoch, False
        self._iterator, self._restored = iterator, None
        return iterator


def _positioned(dataset: Iterable[Any]) -> Any:
    if isinstance(dataset, Dataset | DistributedDataset | ElementIterator):
        return iter(dataset)
    return _OfOtherDataset(dataset)


class BackupAndRestore:
    """Saves a training loop while it runs, and resumes it when the program is started again.

    `epochs` and `steps` are the two loops. If `save_freq` is "epoch", a backup is made after each
    epoch. If it is a number, a backup is made after that many steps and after each epoch. A backup
    includes the position in the dataset: no batch is left out or seen twice, and shuffles continue
    as without a restart. After the last epoch the backups are removed, unless `delete_checkpoint`
    is false.

    Raises `ArgumentError` for another `save_freq`.

    >>> import tempfile
    >>> import graphdist as gd
    >>> folder, total = tempfile.mkdtemp(), gd.Variable(0)
    >>> def train(stop_at):
    ...     backup = BackupAndRestore(Checkpoint(total=total), folder, save_freq=1)
    ...     for epoch in backup.epochs(2):
    ...         for batch in backup.steps(gd.data.Dataset.range(3)):
    ...             if (epoch, int(batch)) == stop_at:
    ...                 return
    ...             total.assign_add(1)
    ...             print(epoch, batch)
    >>> train(stop_at=(1, 1))
    0 0
    0 1
    0 2
    1 0
    >>> train(stop_at=None)
    1 1
    1 2
    >>> int(total)
    6
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        backup_dir: StrPath,
        save_freq: int | Literal["epoch"] = "epoch",
        delete_checkpoint: bool = True,
    ) -> None:
        """Restore the backup, if there is one."""
        is_count = isinstance(save_freq, int) and not isinstance(save_freq, bool) and save_freq > 0
        if save_freq != "epoch" and not is_count:
            raise ArgumentError(
                f"save_freq is {save_freq!r}, not 'epoch' or a positive number of steps"
            )
        self._save_freq: int | Literal["epoch"] = save_freq
        self._deletes = delete_checkpoint
        self._epoch: int | None = None
        self._progress = _Progress()
        setattr(checkpoint, PROGRESS, self._progress)
        self.manager = CheckpointManager(checkpoint, backup_dir, 1, checkpoint_name=PROGRESS)
        self._folder = folder_of(backup_dir, "the folder of backups")
        self.manager.restore_or_initialize()

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the indices of the remaining epochs, of `count` in all."""
        progress = self._progress
        for epoch in range(progress.epoch + progress.is_done, count):
            self._epoch = epoch
            yield epoch
            self._epoch = None
            progress.epoch, progress.is_done = epoch, True
            self.manager.save()
        self.manager.sync()
        if self._deletes and worker_group().index == 0:
            self._remove_all()

    def _remove_all(self) -> None:
        """Remove the backups, also damaged ones, so that the next start is from the beginning."""
        if not any(self._folder.names()):
            return
        writer = CheckpointWriter(self._folder, PROGRESS)
        try:
            writer.take()
            remove_all(self._folder, PROGRESS)
        finally:
            writer.release()

    def steps(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """Yield the remaining elements of the epoch, and back up after every `save_freq` steps.

        Call it once per epoch, with a dataset made in the same way. Raises `ContextError` outside
        the loop over `epochs`.
        """
        if self._epoch is None:
            raise ContextError(
                "backup.steps is called outside the loop over backup.epochs",
                hint="for epoch in backup.epochs(3): for batch in backup.steps(dataset): ...",
            )
        iterator = self._progress.begin(self._epoch, dataset)
        return self._backed_up(iterator)

    def _backed_up(self, iterator: Any) -> Iterator[Any]:
        for step in itertools.count(1):
            try:
                element = next(iterator)
            except StopIteration:
                return
            yield element
            if self._save_freq != "epoch" and step % self._save_freq == 0:
                self.manager.save()
