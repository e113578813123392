"""Checkpoints that are not there, do not fit, or cannot be written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # Any: wrong arguments
from unittest import mock

import numpy as np

import graphdist as gd
from graphdist.runtime.files import checkpoint as checkpoints
from graphdist.runtime.files.checkpoint_owner import OwnerProcess
from graphdist.runtime.processes.workers import Workers, set_workers
from tests.errors.programs import pair
from tests.errors.refusal import Refused


@contextlib.contextmanager
def _in_a_folder() -> Iterator[None]:
    """Work in an empty folder, so that names of files are the same in every run."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield
        gd.train.latest_checkpoint(folder)  # waits for what is being written


def checkpoint_not_there(refused: Refused) -> None:
    with _in_a_folder():
        checkpoint = gd.train.Checkpoint(step=3)
        path = checkpoint.save("ckpt")
        with refused(ValueError):
            checkpoint.restore("ckpt-7")
        checkpoint.restore(path)


def checkpoint_of_other_shapes(refused: Refused) -> None:
    with _in_a_folder():
        saved = {"w": gd.Variable(np.ones((3, 4), "f")), "b": gd.Variable(np.ones(4, "f"))}
        path = gd.train.Checkpoint(params=saved, step=1).save("ckpt")
        params = {"w": gd.Variable(np.ones((3, 5), "f")), "b": gd.Variable(np.ones(4, "i"))}
        with refused(ValueError):
            gd.train.Checkpoint(params=params, step=0).restore(path)
        gd.train.Checkpoint(params=saved, step=0).restore(path)


def checkpoint_with_other_entries(refused: Refused) -> None:
    with _in_a_folder():
        path = gd.train.Checkpoint(w=gd.Variable(1.0), step=3, name="run").save("ckpt")
        status = gd.train.Checkpoint(w=gd.Variable(0.0), bias=gd.Variable(0.0)).restore(path)
        with refused(AssertionError):
            status.assert_consumed()
        status.expect_partial()


def checkpoint_over_something_else(refused: Refused) -> None:
    with _in_a_folder():
        Path("results").mkdir()
        Path("results/table.csv").write_text("x,y\n")
        checkpoint = gd.train.Checkpoint(step=3)
        with refused(ValueError):
            checkpoint.write("results")
            checkpoint.sync()
        assert Path("results/table.csv").read_text() == "x,y\n"


def checkpoint_with_one_name_twice(refused: Refused) -> None:
    with _in_a_folder(), refused(ValueError):
        gd.train.Checkpoint(tree={"a/b": 1.0, "a": {"b": 2.0}}).write("c")


def checkpoint_of_a_function(refused: Refused) -> None:
    with refused(TypeError):
        gd.train.Checkpoint(model={"activation": np.tanh})


def checkpoint_of_a_per_replica(refused: Refused) -> None:
    strategy = pair()
    loss = strategy.run(lambda: gd.get_replica_context().replica_id_in_sync_group * 1.0)
    with refused(TypeError):
        gd.train.Checkpoint(loss=loss)


def checkpoint_object_named_like_a_method(refused: Refused) -> None:
    with refused(ValueError):
        gd.train.Checkpoint(restore=1)


def checkpoint_saved_inside_a_function(refused: Refused) -> None:
    checkpoint = gd.train.Checkpoint(w=gd.Variable(1.0))

    @gd.function
    def step() -> None:
        checkpoint.save("ckpt")

    with refused(RuntimeError):
        step()


def checkpoint_damaged(refused: Refused) -> None:
    with _in_a_folder():
        checkpoint = gd.train.Checkpoint(step=0)
        checkpoint.write("ckpt")
        checkpoint.sync()
        Path("ckpt", "index.json").write_text("")
        with refused(ValueError):
            checkpoint.restore("ckpt")


def checkpoint_with_a_damaged_array(refused: Refused) -> None:
    with _in_a_folder():
        checkpoint = gd.train.Checkpoint(w=np.arange(4.0), step=0)
        checkpoint.write("ckpt")
        checkpoint.sync()
        chunk = Path("ckpt/part-0/0/0")
        chunk.write_bytes(bytes([*chunk.read_bytes()[:-1], 1]))
        with refused(ValueError):
            checkpoint.restore("ckpt")


def checkpoints_all_damaged(refused: Refused) -> None:
    with _in_a_folder():
        manager = gd.train.CheckpointManager(gd.train.Checkpoint(w=np.ones(4)), "saved", 2)
        manager.save()
        manager.save()
        for path in manager.checkpoints:
            Path(path, "part-0/0/0").unlink()
        with refused(ValueError):
            manager.restore_or_initialize()


def checkpoint_with_another_writer(refused: Refused) -> None:
    with _in_a_folder():
        Path("saved").mkdir()
        with open("saved/.ckpt.writer", "wb") as file:  # as another process holds it
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(OwnerProcess("trainer-0", "another", 4242, "1", since=1.7e9).record(sign=1))
            file.flush()
            manager = gd.train.CheckpointManager(gd.train.Checkpoint(step=0), "saved", 2)
            with refused(ValueError):
                manager.save()
        Path("saved/.ckpt.writer").unlink()
        manager.save()


def checkpoint_of_a_reader(refused: Refused) -> None:
    with _in_a_folder():
        checkpoint = gd.train.Checkpoint(step=0)
        manager = gd.train.CheckpointManager(checkpoint, "saved", 2, read_only=True)
        with refused(ValueError):
            manager.save()


def checkpoint_on_a_full_disk(refused: Refused) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "as the system says it")

    with _in_a_folder(), mock.patch("shutil.disk_usage") as usage:
        usage.return_value.free = 3 * 2**20
        checkpoint = gd.train.Checkpoint(w=np.ones(4))
        with mock.patch.object(checkpoints, "write_arrays", full):
            checkpoint.write("ckpt")
            with refused(ValueError):
                checkpoint.sync()
        checkpoint.write("ckpt")


def manager_that_keeps_text(refused: Refused) -> None:
    text: Any = "3"
    with refused(TypeError):
        gd.train.CheckpointManager(gd.train.Checkpoint(step=0), "folder", max_to_keep=text)


def manager_without_a_folder(refused: Refused) -> None:
    folder: Any = os.environ.get("NO_SUCH_VARIABLE")
    with refused(TypeError):
        gd.train.CheckpointManager(gd.train.Checkpoint(step=0), folder, max_to_keep=2)


def manager_with_a_folder_in_its_name(refused: Refused) -> None:
    checkpoint = gd.train.Checkpoint(step=0)
    with refused(ValueError):
        gd.train.CheckpointManager(checkpoint, "folder", 2, checkpoint_name="run/ckpt")


def manager_that_saves_below_zero(refused: Refused) -> None:
    with _in_a_folder():
        manager = gd.train.CheckpointManager(gd.train.Checkpoint(step=-1), "saved", 2)
        with refused(ValueError):
            manager.save(checkpoint_number=manager.checkpoint.step)
        assert manager.save(checkpoint_number=0) == manager.latest_checkpoint


def manager_that_keeps_nothing(refused: Refused) -> None:
    with refused(ValueError):
        gd.train.CheckpointManager(gd.train.Checkpoint(step=0), "folder", max_to_keep=0)


def preemption_without_a_folder(refused: Refused) -> None:
    with refused(ValueError):
        gd.train.PreemptionCheckpointHandler(None, gd.train.Checkpoint(step=0))


def backup_outside_an_epoch(refused: Refused) -> None:
    with _in_a_folder():
        backup = gd.train.BackupAndRestore(gd.train.Checkpoint(), "backup")
        with refused(RuntimeError):
            backup.steps([1, 2])


def position_of_another_dataset(refused: Refused) -> None:
    position = iter(gd.data.Dataset.range(4).shuffle(4)).get_state()
    iterator = iter(gd.data.Dataset.range(4))
    with refused(ValueError):
        iterator.set_state(position)
    assert next(iterator) == 0


class _Alone(Workers):
    """One of two workers, the other of which is never there."""

    count = 2

    def heard(self, name: str, timeout_seconds: float) -> str | None:
        return super().heard(name, timeout_seconds=0)


def checkpoint_without_the_other_worker(refused: Refused) -> None:
    checkpoint = gd.train.Checkpoint(step=0)
    before = set_workers(_Alone())
    try:
        with _in_a_folder():
            checkpoint.write("ckpt")
            with refused(TimeoutError):
                checkpoint.sync()
    finally:
        set_workers(before)
