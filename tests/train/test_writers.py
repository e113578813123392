"""One process writes the checkpoints of a name at a time; readers change nothing."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

import graphdist as gd
from graphdist.runtime.files import checkpoint as checkpoints
from graphdist.runtime.files import checkpoint_arrays, checkpoint_lock, disk_lock
from graphdist.runtime.files.checkpoint_disk import DiskFiles, DiskFolder
from graphdist.runtime.files.checkpoint_lock import CheckpointWriter
from graphdist.runtime.files.checkpoint_owner import OwnerProcess, start_of
from graphdist.train import index as train_index
from tests.train.processes import finished, start


def manager_of(folder: Path, **options: Any) -> gd.train.CheckpointManager:
    checkpoint = gd.train.Checkpoint(step=1, w=np.ones(10))
    return gd.train.CheckpointManager(checkpoint, folder, max_to_keep=2, **options)


def listed(folder: Path) -> dict[str, tuple[int, int]]:
    """Return all there is in a folder, and when it was changed."""
    found = [folder, *folder.rglob("*")]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in found}


@contextlib.contextmanager
def held_by_another(file: Path) -> Iterator[None]:
    """Hold a file as another process does."""
    with file.open("wb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.write(OwnerProcess("elsewhere", "", 4242, "", since=1.7e9).record(1))
        opened.flush()
        try:
            yield
        finally:
            opened.truncate(0)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which has saved in the folder and goes on."""
    process = start("save_once", tmp_path)
    assert said(process) == "saved"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.long
def test_another_process_is_refused_by_name(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    manager = manager_of(tmp_path)
    assert manager.restore_or_initialize() == str(tmp_path / "ckpt-1")
    name = rf"'ckpt' of .* by process {other.pid} on {socket.gethostname()}, since 20"
    with pytest.raises(gd.CheckpointError, match=name):
        manager.save()
    with pytest.raises(gd.CheckpointError, match=name):
        manager.checkpoint.write(tmp_path / "ckpt-7")
    with pytest.raises(gd.CheckpointError, match=name):
        manager.checkpoint.save(tmp_path / "ckpt")
    manager.checkpoint.write(tmp_path / "best")  # another name
    manager.sync()
    assert manager.checkpoints == [str(tmp_path / "ckpt-1")]

    other.kill()
    other.wait()
    assert (tmp_path / ".ckpt.writer").exists()
    assert manager.save() == str(tmp_path / "ckpt-2")
    manager.sync()
    (refused,) = finished(start("save_once", tmp_path))
    assert f"written by process {os.getpid()} on" in refused


def test_a_process_that_ends_lets_go(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.communicate("\n")
    assert not (tmp_path / ".ckpt.writer").exists()
    manager_of(tmp_path).save()


@pytest.mark.long
def test_a_fork_neither_writes_nor_holds(tmp_path: Path) -> None:
    process = start("fork_and_save", tmp_path)
    assert said(process) == "True"
    process.wait()  # killed; the fork lives
    manager = manager_of(tmp_path)
    manager.restore_or_initialize()
    assert manager.save() == str(tmp_path / "ckpt-2")
    process.communicate("\n")


@pytest.mark.long
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    before = gd.train.Checkpoint(step=3)
    before.write(tmp_path / "ckpt")
    before.sync()
    process = start("save_on_a_full_disk", tmp_path / "ckpt")
    (line,) = finished(process)
    assert line.startswith(f"there is no room for a checkpoint in {tmp_path}: File too large")
    assert os.listdir(tmp_path) == ["ckpt"]
    again = gd.train.Checkpoint(step=0)
    again.restore(tmp_path / "ckpt").assert_consumed()
    assert again.step == 3


@pytest.mark.long
def test_managers_of_one_process_share(tmp_path: Path) -> None:
    first, second = manager_of(tmp_path), manager_of(tmp_path)
    first.save()
    second.restore_or_initialize()
    second.save()
    first.save(checkpoint_number=7)
    first.sync()
    assert [Path(path).name for path in second.checkpoints] == ["ckpt-2", "ckpt-7"]
    del first
    gc.collect()
    assert (tmp_path / ".ckpt.writer").exists()
    del second
    gc.collect()
    assert not (tmp_path / ".ckpt.writer").exists()


@pytest.mark.long
def test_readers_change_nothing(tmp_path: Path) -> None:
    manager_of(tmp_path).save()
    gd.train.latest_checkpoint(tmp_path)
    (tmp_path / "ckpt-2.0123abcd.partial" / "part-0").mkdir(parents=True)
    shutil.copytree(tmp_path / "ckpt-1", tmp_path / "ckpt-1.replaced")
    gc.collect()
    before = listed(tmp_path)
    for read_only in (False, True):
        manager = manager_of(tmp_path, read_only=read_only)
        latest = manager.restore_or_initialize()
        assert latest == manager.latest_checkpoint == gd.train.latest_checkpoint(tmp_path)
        assert manager.checkpoints == [latest]
        gd.train.list_variables(tmp_path)
        gd.train.load_variable(str(latest), "w")
    with pytest.raises(gd.CheckpointError, match="read_only"):
        manager.save()
    assert listed(tmp_path) == before
    manager = manager_of(tmp_path)
    manager.save()
    manager.sync()
    assert sorted(os.listdir(tmp_path)) == [".ckpt.writer", "ckpt-1"]


def test_a_write_holds_while_it_writes(tmp_path: Path) -> None:
    checkpoint = gd.train.Checkpoint(step=1)
    checkpoint.write(tmp_path / "best")
    checkpoint.sync()
    assert os.listdir(tmp_path) == ["best"]


def test_names_that_differ_in_their_numbers_are_written_side_by_side(tmp_path: Path) -> None:
    with held_by_another(tmp_path / ".run-1.writer"):
        (tmp_path / "run-1.0123abcd.partial").mkdir()
        checkpoint = gd.train.Checkpoint(step=1)
        checkpoint.write(tmp_path / "run-2")
        with pytest.raises(gd.CheckpointError, match=r"'run-1' of .* process 4242 on elsewhere"):
            checkpoint.save(tmp_path / "run")
        with pytest.raises(gd.CheckpointError, match="process 4242"):
            checkpoint.write(tmp_path / "run-1")
        checkpoint.save_numbered(tmp_path / "run", 3)
        checkpoint.sync()
    left = sorted(os.listdir(tmp_path))
    assert left == [".run-1.writer", ".run.writer", "run-1.0123abcd.partial", "run-2", "run-3"]


def test_a_number_of_a_name_that_another_saves(tmp_path: Path) -> None:
    checkpoint = gd.train.Checkpoint(step=1)
    with held_by_another(tmp_path / ".run.writer"):
        with pytest.raises(gd.CheckpointError, match=r"'run' of .* process 4242"):
            checkpoint.write(tmp_path / "run-2")
        assert os.listdir(tmp_path) == [".run.writer"]
    checkpoint.write(tmp_path / "run-2")
    checkpoint.sync()


def test_a_folder_that_was_removed(tmp_path: Path) -> None:
    manager = manager_of(tmp_path / "saved")
    manager.save()
    manager.sync()
    shutil.rmtree(tmp_path / "saved")
    manager.save()
    manager.sync()
    assert sorted(os.listdir(tmp_path / "saved")) == [".ckpt.writer", "ckpt-2"]


# Other hosts, and file systems without locks.


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(checkpoint_lock, "SECONDS_OF_SILENCE", 0.2)
    return tmp_path / ".ckpt.writer"


def left_by(file: Path, sign: int = 1, **fields: Any) -> None:
    """Write the file as another process left it."""
    owner = {**vars(OwnerProcess.this_process()), "process": os.getppid(), **fields}
    file.write_bytes(OwnerProcess(**owner).record(sign))


def take(file: Path) -> CheckpointWriter:
    writer = CheckpointWriter(DiskFolder(file.parent), "ckpt")
    writer.take()
    return writer


@pytest.mark.parametrize("other", [{"host": "another"}, {"kernel": "another"}])
def test_another_host_that_is_silent_counts_as_dead(file: Path, other: dict[str, Any]) -> None:
    left_by(file, **other)
    writer = take(file)
    writer.confirm()
    assert json.loads(file.read_bytes())["process"] == os.getpid()
    writer.release()
    assert not file.exists()


def test_another_host_that_gives_signs_is_refused(file: Path) -> None:
    left_by(file, host="another")
    sign = threading.Timer(0.02, lambda: left_by(file, 2, host="another"))
    sign.start()
    with pytest.raises(gd.CheckpointError, match=f"process {os.getppid()} on another"):
        take(file)
    sign.join()


def test_file_systems_without_locks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_lock, "_has_locked", lambda descriptor, is_shared=False: False)
    left_by(file, started=start_of(os.getppid()))
    with pytest.raises(gd.CheckpointError, match=f"process {os.getppid()} on"):
        take(file)
    left_by(file, started="1")  # the number is used again
    take(file).release()
    take(file).confirm()


def test_what_is_no_record_is_no_owner(file: Path) -> None:
    for content in (b"", b"{", b"[]", b"[" * 2000, b'{"host": 1}', bytes(5000), b"\xff"):
        file.write_bytes(content)
        take(file).release()


def test_the_time_in_a_record_is_a_time(file: Path) -> None:
    for since in ("NaN", "Infinity", "-1e300"):
        left_by(file, since=1234.5)
        text = file.read_text().replace("1234.5", since)
        assert "UTC" in str(OwnerProcess.of(text.encode()))


@pytest.fixture
def signs_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give signs often, on a new thread: that of a lock of another test may wait for long."""
    monkeypatch.setattr(checkpoint_lock, "SECONDS_BETWEEN_SIGNS", 0.005)
    monkeypatch.setattr(checkpoint_lock, "_heartbeats", None)


def test_signs_of_life(file: Path, signs_often: None) -> None:
    writer = take(file)
    wait_for_signs(file, 3)
    writer.confirm()
    writer.release()


def test_an_error_of_one_lock_does_not_end_the_heartbeats(
    file: Path,
    signs_often: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    renew, errors = disk_lock.FileLock.renew, [ValueError("broken"), ValueError("broken")]

    def renew_or_fail(lock: disk_lock.FileLock) -> None:
        if errors:
            raise errors.pop()
        renew(lock)

    monkeypatch.setattr(disk_lock.FileLock, "renew", renew_or_fail)
    writer = take(file)
    wait_for_signs(file, 3)
    writer.release()
    assert caplog.text.count("ValueError: broken") == 2


def test_a_thread_that_ended_is_replaced(
    file: Path, signs_often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Thread(target=int)
    ended.start()
    ended.join()
    monkeypatch.setattr(checkpoint_lock, "_heartbeats", ended)
    writer = take(file)
    wait_for_signs(file, 3)
    writer.release()


def wait_for_signs(file: Path, count: int) -> None:
    """Wait until a record has been written `count` times."""
    deadline = time.monotonic() + 60
    while json.loads(file.read_bytes())["sign"] < count:
        assert time.monotonic() < deadline, "no heartbeat is written"
        time.sleep(0.001)


def test_a_process_that_was_taken_for_dead_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(tmp_path)
    manager.save()
    manager.sync()
    write = checkpoint_arrays.write_arrays

    def taken_over(*arguments: Any) -> dict[str, str]:
        left_by(tmp_path / ".ckpt.writer", host="another")
        return write(*arguments)

    monkeypatch.setattr(checkpoints, "write_arrays", taken_over)
    monkeypatch.setattr(checkpoint_lock, "SECONDS_OF_SILENCE", 0.2)
    manager.save()
    with pytest.raises(gd.CheckpointError, match="no longer this process's"):
        manager.sync()
    held = checkpoint_lock._all_held[tmp_path.resolve() / ".ckpt.writer"]
    held.renew()  # leaves the file to the other
    assert json.loads((tmp_path / ".ckpt.writer").read_bytes())["host"] == "another"
    assert sorted(os.listdir(tmp_path)) == [".ckpt.writer", "ckpt-1"]


# What is written, and what is read meanwhile.


def test_a_save_that_fails_removes_what_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = checkpoint_arrays.write_arrays

    def fail(*arguments: Any) -> None:
        write(*arguments)
        raise OSError("broken")

    manager = manager_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_arrays", fail)
        manager.save()
        with pytest.raises(OSError, match="broken"):
            manager.sync()
    assert os.listdir(tmp_path) == [".ckpt.writer"]
    manager.save()
    assert manager.checkpoints == [str(tmp_path / "ckpt-2")]


@pytest.mark.parametrize("name", ["0.0", ".zarray", "0"])
def test_files_that_go_away_while_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write = checkpoint_arrays.write_arrays

    def lose(files: DiskFiles, folder: PurePosixPath, arrays: Any) -> dict[str, str]:
        found = write(files, folder, arrays)
        next((files.folder / folder).rglob(name)).rename(tmp_path / "away")
        return found

    monkeypatch.setattr(checkpoints, "write_arrays", lose)
    checkpoint = gd.train.Checkpoint(w=np.ones((3, 3)), v=np.ones(4))
    checkpoint.write(tmp_path / "ckpt")
    with pytest.raises(gd.CheckpointError, match=r"disappeared.*is not there"):
        checkpoint.sync()
    assert os.listdir(tmp_path) == ["away"]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list for what is to be done before arrays are read, one after the other."""
    acts: list[Any] = []
    original = checkpoint_arrays.read_arrays

    def reading(*arguments: Any) -> Any:
        if acts:
            acts.pop(0)()
        return original(*arguments)

    monkeypatch.setattr(train_index, "read_arrays", reading)
    return acts


def saved(path: Path, step: int) -> None:
    checkpoint = gd.train.Checkpoint(step=step, w=np.full(10 + step, step))
    checkpoint.write(path)
    checkpoint.sync()


def test_a_checkpoint_removed_while_it_is_read(tmp_path: Path, read: list[Any]) -> None:
    manager = manager_of(tmp_path)
    manager.save()
    manager.sync()
    read.append(lambda: shutil.rmtree(tmp_path / "ckpt-1"))
    with pytest.raises(gd.UnreadableCheckpointError, match="was removed while it was read"):
        manager.checkpoint.restore(tmp_path / "ckpt-1")


def test_a_manager_takes_the_next_if_one_is_removed(tmp_path: Path, read: list[Any]) -> None:
    manager, evaluator = manager_of(tmp_path), manager_of(tmp_path, read_only=True)
    manager.save()
    manager.sync()

    def train() -> None:
        manager.checkpoint.step += 1
        for _ in range(2):
            manager.save()
        manager.sync()

    read.extend([train, train])
    assert evaluator.restore_or_initialize() == str(tmp_path / "ckpt-5")
    assert evaluator.checkpoint.step == 3


def test_another_put_in_the_place_of_one_that_is_read(tmp_path: Path, read: list[Any]) -> None:
    path = tmp_path / "best"
    saved(path, 1)
    read.append(lambda: saved(path, 2))
    assert gd.train.load_variable(path, "w").tolist() == [2] * 12
