"""`Checkpoint`: save the values of a program's objects, and restore them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar  # Any: the user's objects
from weakref import WeakSet

from graphdist.data.elements import at_the_users_line
from graphdist.errors import ArgumentError
from graphdist.runtime.files.checkpoint import CheckpointPath, write_checkpoint
from graphdist.runtime.files.checkpoint_files import CheckpointError, UnreadableCheckpointError
from graphdist.runtime.files.checkpoint_folders import checkpoints_in, is_changed, latest_in
from graphdist.runtime.files.checkpoint_lock import CheckpointWriter
from graphdist.runtime.processes.addresses import WorkerError
from graphdist.runtime.processes.joining import current_workers
from graphdist.runtime.processes.workers import worker_group
from graphdist.tracing.user_lines import here
from graphdist.train.entries import Objects, entries_of, outside_scopes, require_outside
from graphdist.train.foreign_files import is_foreign
from graphdist.train.index import SavedCheckpoint, Snapshot, snapshot
from graphdist.train.status import LoadStatus
from graphdist.train.user_paths import StrPath, checkpoint_path, folder_of, prefix_of
from graphdist.train.writing import finish_writing, is_python_ending, start_writing
from graphdist.values.distributed import type_name

_T = TypeVar("_T")
_TRIES = 20
"""How often a checkpoint is read again if another one replaces it meanwhile."""

_calls = itertools.count()
"""Counts the writes of this process; all workers write in the same order."""


@dataclass(frozen=True)
class CheckpointOptions:
    """How a checkpoint is saved.

    `experimental_enable_async_checkpoint`: return once the values are copied to the memory of the
    host, and write them on a thread; if not, return when they are on the disk.
    """

    experimental_enable_async_checkpoint: bool = True


class Checkpoint(Objects):
    """Objects whose values are saved together under names, and restored.

    An object is a variable, an array, a number, a metric, a generator of random numbers, an
    iterator over a dataset, or a pytree of such objects; `graphdist.train.entries` has the rules.
    Objects are attributes: `checkpoint.step += 1`. An array or a number cannot be written to. So a
    restore replaces the array or number, and the program takes the new object from the checkpoint.

    Saving copies the values to the memory of the host, and writes them while the program goes on.
    One checkpoint is written at a time. A checkpoint appears complete or not at all, even if the
    process is killed. Methods that read checkpoints wait for a checkpoint that is being written.

    With several workers every worker calls every method, and writes its part of a checkpoint.

    >>> import tempfile
    >>> import graphdist as gd
    >>> w = gd.Variable([1.0, 2.0], name="w")
    >>> checkpoint = Checkpoint(params={"w": w}, step=3)
    >>> path = checkpoint.save(tempfile.mkdtemp() + "/ckpt")
    >>> w.assign([0.0, 0.0], read_value=False)
    >>> checkpoint.step = 0
    >>> status = checkpoint.restore(path).assert_consumed()
    >>> w.read_value(), checkpoint.step
    (Array([1., 2.], dtype=float32), 3)
    """

    def __init__(self, **objects: Any) -> None:
        """Take the objects; raises `ArgumentTypeError` for an object that cannot be saved."""
        vars(self).update(_save_counter=0, _status=None, _outer=WeakSet(), _writers={}, objects={})
        for name, value in objects.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        """Add an object, and restore it if the checkpoint that was restored last has its values."""
        if name.startswith("_") or hasattr(type(self), name) or name in vars(self):
            raise ArgumentError(
                f"an object of a checkpoint has the reserved name {name!r}",
                hint="give it another name",
            )
        alone = Objects({name: value})
        entries_of(alone)  # raises for a value that cannot be saved
        self.objects[name] = value
        if self._status is not None:
            self._status.prepared([name]).restore()
        for status in list(self._outer):
            status.prepared().restore()

    def __getattr__(self, name: str) -> Any:
        try:
            return vars(self)["objects"][name]
        except KeyError:
            raise AttributeError(f"the checkpoint has no object {name!r}") from None

    def __delattr__(self, name: str) -> None:
        self.objects.pop(name)

    _save_counter: int
    _status: LoadStatus | None
    _outer: WeakSet[LoadStatus]
    """The statuses of the checkpoints that contain this checkpoint."""
    _writers: dict[CheckpointPath, CheckpointWriter]
    """The locks of the prefixes under which this checkpoint has saved, by prefix."""

    def follow(self, status: LoadStatus) -> None:
        """Let the status of a checkpoint around this one restore later objects, too."""
        others = [other for other in self._outer if other.objects is not status.objects]
        vars(self)["_outer"] = WeakSet([*others, status])

    @property
    def save_counter(self) -> int:
        """Return how often `save` was called, including the restored count."""
        return self._save_counter

    def save(self, file_prefix: StrPath, options: CheckpointOptions | None = None) -> str:
        """Save under `<file_prefix>-<count>`, counted from 1, and return that path.

        From the first save on, no other process can save under the prefix until this object is
        garbage-collected.
        Raises the errors of `write`.
        """
        return self.save_numbered(file_prefix, None, options)

    def save_numbered(
        self,
        file_prefix: StrPath,
        number: int | None,
        options: CheckpointOptions | None = None,
        afterwards: Callable[[], None] | None = None,
    ) -> str:
        """Save under a number, by default the next count; then call `afterwards`, on a thread."""
        prefix = prefix_of(file_prefix, "the prefix of a checkpoint")
        count = self._save_counter + 1
        suffix = f"-{count if number is None else number}"
        name, path = f"{os.fspath(file_prefix)}{suffix}", prefix._replace(name=prefix.name + suffix)
        writer = self._writers.setdefault(prefix, CheckpointWriter(*prefix))
        self._write(name, path, options, count, writer, afterwards)
        vars(self)["_save_counter"] = count
        return name

    def write(self, file_prefix: StrPath, options: CheckpointOptions | None = None) -> str:
        """Save under exactly this name, and return the name; replace a checkpoint of the name.

        Raises the error of the previous write, if it failed; `CheckpointError` while another
        process writes checkpoints of the name, or where nothing can be written; `ArgumentError` for
        an ON_READ variable without aggregation, which has no single value; `ContextError` inside a
        function. With several workers, `CheckpointError` is raised by the next call that waits for
        the checkpoint.
        """
        path = prefix_of(file_prefix, "the path of a checkpoint")
        return self._write(os.fspath(file_prefix), path, options, self._save_counter)

    def _write(
        self,
        name: str,
        path: CheckpointPath,
        options: CheckpointOptions | None,
        number: int,
        series: CheckpointWriter | None = None,
        afterwards: Callable[[], None] | None = None,
    ) -> str:
        require_outside("a checkpoint is saved")
        finish_writing()  # before its values are copied, so that memory holds one checkpoint
        group, call = worker_group(), f"{next(_calls)}/{path.name}"
        taken: Snapshot = outside_scopes(lambda: snapshot(entries_of(self), group))
        writer = series or CheckpointWriter(*path)
        if group.count == 1:
            with at_the_users_line():
                writer.take_for(path.name)  # not on the thread, so that the call itself is refused

        def job() -> None:
            make_index = partial(taken.index, folder=path.folder, save_counter=number)
            try:
                write_checkpoint(path, taken.files, taken.report, make_index, writer, group, call)
                if afterwards is not None:
                    afterwards()
            finally:
                if series is None or is_python_ending():  # no later release
                    writer.release()

        try:
            start_writing(job, name)
        except CheckpointError:  # it was not begun
            if series is None:
                writer.release()
            raise
        if not (options or CheckpointOptions()).experimental_enable_async_checkpoint:
            finish_writing()
        return name

    def sync(self) -> None:
        """Wait until the checkpoint being saved is durable; raises the error of a failed write."""
        finish_writing()

    def restore(self, save_path: StrPath | None, options: Any = None) -> LoadStatus:
        """Restore the saved values and the count of saves; None does nothing.

        Objects that were not saved stay as they are. The returned status lists these objects, and
        the saved values without an object. An object that is added to the checkpoint later is
        restored when it is added. Raises `UnreadableCheckpointError` for a checkpoint that does not
        exist or is damaged, and `CheckpointError` for entries whose dtypes or shapes differ; after
        an error nothing is restored. `options` is not used: `tf.train` has this argument.
        """
        return self.put_back(self.prepared(save_path))

    def prepared(self, save_path: StrPath | None) -> LoadStatus:
        """Read the saved values, which `put_back` writes; raises the errors of `restore`."""
        require_outside("a checkpoint is restored")
        if save_path is None:
            return LoadStatus(self, None)
        return read_saved(save_path, lambda saved: LoadStatus(self, saved).prepared())

    def put_back(self, status: LoadStatus, restores_count: bool = True) -> LoadStatus:
        """Write the values that `status` has read; with `restores_count`, the count of saves."""
        _require_same_on_all(status.saved)
        if status.saved is not None:
            status.restore()
            vars(self)["_status"] = status
            if restores_count:
                vars(self)["_save_counter"] = status.saved.index.save_counter
        return status

    def read(self, save_path: StrPath | None, options: Any = None) -> LoadStatus:
        """Restore the values that `write` saved, as `restore` does, but not the count of saves."""
        return self.put_back(self.prepared(save_path), restores_count=False)

    def __repr__(self) -> str:
        return f"Checkpoint({', '.join(f'{n}={type_name(o)}' for n, o in self.objects.items())})"


@at_the_users_line()
def _require_same_on_all(saved: SavedCheckpoint | None) -> None:
    """Raise `WorkerError` unless all workers restore the same checkpoint, or all of them none.

    Otherwise variables would have worker 0's values, and other state each worker's own.
    """
    workers = current_workers()
    if workers is None:
        return
    mine = ["", ""]
    if saved is not None:
        mine = [saved.path, f"{saved.index.saved_at} {saved.index.seal}"]
    key = f"restored {workers.ordinal('restored')}"
    of_all = workers.exchange(key, mine, "restoring a checkpoint", here())
    for worker, (other, its_identity) in enumerate(of_all):
        if its_identity != of_all[0][1]:
            first, second = (
                f"checkpoint {each}" if each else "none" for each in (of_all[0][0], other)
            )
            raise WorkerError(
                f"{workers.name(0)} restores {first}, and {workers.name(worker)} restores {second}"
                + (", which is another one" if first == second else ""),
                source=here(),
                hint="all workers restore the same files: use a folder that all of them see",
            )


@at_the_users_line()
def read_saved(save_path: StrPath, read: Callable[[SavedCheckpoint], _T]) -> _T:
    """Return what a function reads from a saved checkpoint.

    The function is called again if another checkpoint replaces this one meanwhile. Raises
    `UnreadableCheckpointError` if there is none, or it is damaged or was removed.
    """
    folder, name = checkpoint_path(save_path)
    finish_writing()
    files = folder.find(name)
    if files is None:
        others = [other.name for other in checkpoints_in(folder)]
        hint = f"in that folder are {', '.join(others[-3:])}" if others else ""
        if is_foreign(CheckpointPath(folder, name)):
            hint = "gd.train.load(path, objects) reads files of orbax and of safetensors"
        raise UnreadableCheckpointError(f"there is no checkpoint {os.fspath(save_path)}", hint=hint)
    for _ in range(_TRIES):
        saved: SavedCheckpoint | None = None
        try:
            saved = SavedCheckpoint(os.fspath(save_path), files)
            return read(saved)
        except UnreadableCheckpointError:
            now = folder.find(name)
            is_same = now == files and (saved is None or not is_changed(folder, name, saved.index))
            if is_same:
                raise
            if now is None:
                break
            files = now
    raise UnreadableCheckpointError(
        f"checkpoint {os.fspath(save_path)} was removed while it was read",
        hint="a program that saves removes the older ones: read the latest again, as "
        "CheckpointManager(.., read_only=True).restore_or_initialize() does",
    )


@at_the_users_line()
def latest_checkpoint(checkpoint_dir: StrPath) -> str | None:
    """Return the path of the checkpoint saved last in a folder; None if there is none.

    The checkpoints of `Checkpoint.save` and of managers are considered. A checkpoint with a damaged
    index or incomplete files is passed over, and named in the log.

    >>> latest_checkpoint("/no/such/folder")
    """
    folder = folder_of(checkpoint_dir, "the folder of checkpoints")
    finish_writing()
    latest = latest_in(folder)
    return None if latest is None else os.path.join(checkpoint_dir, latest)


def list_variables(ckpt_dir_or_file: StrPath) -> list[tuple[str, list[int]]]:
    """Return the names and shapes of the arrays in a checkpoint, or in the latest of a folder.

    Raises `UnreadableCheckpointError` where there is none, or a damaged one.
    """
    return read_saved(
        _named_or_latest(ckpt_dir_or_file),
        lambda saved: [(name, list(saved.arrays[name].shape)) for name in sorted(saved.arrays)],
    )


def load_variable(ckpt_dir_or_file: StrPath, name: str) -> Any:
    """Return an array of a checkpoint, or of the latest in a folder, as a NumPy array.

    Random keys are returned as integers. Raises `CheckpointError` for an unknown name, and
    `UnreadableCheckpointError` where there is no checkpoint, or a damaged one.
    """

    def load(saved: SavedCheckpoint) -> Any:
        known = saved.saved_as(name)
        if known is None or known not in saved.arrays:
            raise CheckpointError(
                f"checkpoint {saved.path} has no array {name!r}",
                hint="gd.train.list_variables names those it has",
            )
        return next(iter(saved.read([known])))

    return read_saved(_named_or_latest(ckpt_dir_or_file), load)


@at_the_users_line()
def _named_or_latest(name: StrPath) -> StrPath:
    folder, its_name = checkpoint_path(name)
    latest = None if folder.find(its_name) else latest_checkpoint(name)
    return name if latest is None else latest
