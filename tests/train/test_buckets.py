"""Checkpoints in buckets, on servers of this host that speak the protocols of S3 and of Google."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdist as gd
from graphdist.config import s3_server as s3_of_environment
from graphdist.runtime.files import checkpoint_bucket, checkpoint_lock
from graphdist.runtime.files.bucket_objects import BucketObjects
from graphdist.runtime.files.checkpoint_bucket import ObjectLock
from graphdist.runtime.files.checkpoint_owner import OwnerProcess, start_of
from graphdist.runtime.files.foreign_folders import FolderInBucket
from tests.train import buckets
from tests.train.processes import finished, start

SERVERS = {"gs": buckets.gs_server, "s3": buckets.s3_server}


@pytest.fixture(scope="module", params=sorted(SERVERS))
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, str]]]:
    """Run a server; return the scheme of its addresses, and the variables that name it."""
    with SERVERS[request.param]() as variables:
        yield request.param, variables


@pytest.fixture
def folder(
    served: tuple[str, dict[str, str]],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """Return the address of a folder of this test's own."""
    scheme, variables = served
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    yield f"{scheme}://bucket/{abs(hash(request.node.name))}"
    for held in list(checkpoint_lock._all_held.values()):
        if isinstance(held, ObjectLock):
            held._generation = None  # the server ends: nothing of it is to be removed


def objects_in(folder: str) -> BucketObjects:
    return BucketObjects(folder, s3_of_environment())


def keys_in(folder: str) -> list[str]:
    return sorted(objects_in(folder).listed())


def checkpoint_of(step: int) -> gd.train.Checkpoint:
    return gd.train.Checkpoint(step=step, array=np.full(10, step))


def manager_of(folder: str, step: int = 1, **options: Any) -> gd.train.CheckpointManager:
    return gd.train.CheckpointManager(checkpoint_of(step), folder, **{"max_to_keep": 2, **options})


def restored(path: str) -> int:
    checkpoint = checkpoint_of(0)
    checkpoint.restore(path).assert_consumed()
    assert (checkpoint.array == checkpoint.step).all()
    return int(checkpoint.step)


def test_a_manager_saves_and_restores(folder: str) -> None:
    manager = manager_of(folder)
    assert manager.restore_or_initialize() is None
    for _ in range(3):
        manager.save()
        manager.checkpoint.step += 1
        manager.checkpoint.array += 1
    assert manager.checkpoints == [f"{folder}/ckpt-2", f"{folder}/ckpt-3"]
    assert manager.latest_checkpoint == gd.train.latest_checkpoint(folder) == f"{folder}/ckpt-3"
    assert restored(f"{folder}/ckpt-3") == 3
    assert manager_of(f"{folder}/", 0).restore_or_initialize() == f"{folder}/ckpt-3"
    assert gd.train.list_variables(folder) == [("array", [10])]
    assert gd.train.load_variable(f"{folder}/ckpt-2", "array").tolist() == [2] * 10


def test_one_is_written_in_the_place_of_another(folder: str) -> None:
    checkpoint = checkpoint_of(1)
    checkpoint.write(f"{folder}/best")
    checkpoint.sync()
    before = keys_in(folder)
    checkpoint.step, checkpoint.array = 2, np.full(10, 2)
    checkpoint.write(f"{folder}/best")
    checkpoint.sync()
    assert restored(f"{folder}/best") == 2
    assert len(keys_in(folder)) == len(before) == 3
    assert set(keys_in(folder)) & set(before) == {"best/index.json"}


def test_one_is_kept_of_every_few_hours(folder: str) -> None:
    manager = manager_of(folder, max_to_keep=1, keep_every_n_hours=0)
    for _ in range(3):
        manager.save()
    manager.sync()
    assert manager.checkpoints == [f"{folder}/ckpt-3"]
    assert restored(f"{folder}/ckpt-1") == 1


def test_a_loop_is_resumed_and_leaves_nothing(folder: str) -> None:
    def train(stop_at: int | None) -> list[int]:
        seen: list[int] = []
        backup = gd.train.BackupAndRestore(gd.train.Checkpoint(), folder, save_freq=1)
        for _ in backup.epochs(1):
            for batch in backup.steps(gd.data.Dataset.range(4)):
                if int(batch) == stop_at:
                    backup.manager.sync()
                    return seen
                seen.append(int(batch))
        return seen

    assert train(2) == [0, 1]
    assert train(None) == [2, 3]
    assert keys_in(folder) in ([], [".backup.writer"])


class BrokenOff(BaseException):
    """Stands for the end of the process: no code of ours handles it."""


def broken_off(act: Callable[[], None], point: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Act up to the request of a number; return whether that was before the end."""
    left, original = [point], BucketObjects._done

    def counted(*arguments: Any, **options: Any) -> Any:
        # Heartbeats go on: they come at any time, and an error would end their thread.
        if threading.current_thread().name != "graphdist-writer":
            left[0] -= 1
            if left[0] < 0:
                raise BrokenOff
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(BucketObjects, "_done", counted)
        try:
            act()
        except BrokenOff:
            return True
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_point_of_a_write_in_place_of_another(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(step: int, path: str) -> None:
        checkpoint = checkpoint_of(step)
        checkpoint.write(path)
        checkpoint.sync()

    found = []
    for point in range(60):
        path = f"{folder}/at-{point}/best"
        write(1, path)
        is_broken_off = broken_off(lambda: write(2, path), point, monkeypatch)  # noqa: B023
        found.append(restored(path))
        _forget_lock(f"{folder}/at-{point}", "best")
        write(3, path)
        assert restored(path) == 3
        assert len(keys_in(f"{folder}/at-{point}")) == 3, "nothing else is left"
        if not is_broken_off:
            break
    else:
        pytest.fail("the write has more requests than were tried")
    assert found == sorted(found)
    assert found.count(1) > 3
    assert found.count(2) > 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_point_of_a_new_one(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A heartbeat is a request of another thread, which would break off in place of the save.
    monkeypatch.setattr(checkpoint_lock, "SECONDS_BETWEEN_SIGNS", 3600.0)
    for point in range(60):
        place = f"{folder}/{point}"
        manager = manager_of(place, 1, max_to_keep=1)
        manager.save()
        manager.sync()
        manager.checkpoint.step, manager.checkpoint.array = 2, np.full(10, 2)

        def save(manager: gd.train.CheckpointManager = manager) -> None:
            manager.save()
            manager.sync()

        is_broken_off = broken_off(save, point, monkeypatch)
        again = manager_of(place, 0, max_to_keep=1)
        latest = again.restore_or_initialize()
        assert latest is not None
        assert again.checkpoint.step == int(latest.rpartition("-")[2])
        again.save()
        again.sync()
        assert len(keys_in(place)) == 4, "one checkpoint of three objects, and the writer's record"
        if not is_broken_off:
            return
    pytest.fail("the save has more requests than were tried")


def _forget_lock(folder: str, stem: str) -> None:
    """Drop a lock as the end of its process would; the record stays."""
    for key in [key for key in checkpoint_lock._all_held if key == (folder, stem)]:
        del checkpoint_lock._all_held[key]


# Writers.


@pytest.fixture
def record(folder: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that leaves the record of a writer, as another process would."""
    monkeypatch.setattr(checkpoint_lock, "SECONDS_OF_SILENCE", 0.2)

    def leave(sign: int = 1, **fields: Any) -> None:
        owner = {**vars(OwnerProcess.this_process()), "process": os.getppid(), **fields}
        objects_in(folder).write(".ckpt.writer", OwnerProcess(**owner).record(sign))

    return leave


def owner_of(folder: str) -> int:
    return int(json.loads(objects_in(folder).content(".ckpt.writer"))["process"])


def test_a_process_of_this_host_is_looked_up(folder: str, record: Callable[..., None]) -> None:
    record(started=start_of(os.getppid()))
    with pytest.raises(gd.CheckpointError, match=f"process {os.getppid()} on"):
        manager_of(folder).save()
    record(started="1")  # the number is used again
    manager_of(folder).save()
    gd.train.latest_checkpoint(folder)


def test_another_host_that_is_silent_counts_as_dead(
    folder: str, record: Callable[..., None]
) -> None:
    record(host="another")
    manager = manager_of(folder)
    manager.save()
    manager.sync()
    assert owner_of(folder) == os.getpid()
    del manager
    assert ".ckpt.writer" not in keys_in(folder)


@pytest.mark.parametrize("served", ["gs"], indirect=True)
def test_a_heartbeat_that_gets_no_answer_in_time_is_not_the_last(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(folder)
    manager.save()
    manager.sync()
    held = checkpoint_lock._all_held[folder, "ckpt"]
    assert isinstance(held, ObjectLock)
    post, may_answer = buckets._Requests.do_POST, threading.Event()
    was_written = threading.Event()

    def silent(self: Any) -> None:
        self._answer = lambda *_: None
        post(self)
        del self._answer
        was_written.set()
        may_answer.wait(10)
        self._answer(503)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_bucket, "SECONDS_BETWEEN_SIGNS", 0.05)
        patch.setattr(buckets._Requests, "do_POST", silent)
        held.renew()
        assert was_written.wait(10)
    may_answer.set()
    held.renew()
    record = json.loads(objects_in(folder).content(".ckpt.writer"))
    assert record["sign"] == 3
    manager.save()
    manager.sync()


@pytest.mark.parametrize("served", ["gs"], indirect=True)
def test_an_interrupted_write_ends_before_the_interrupt(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would come after the removal of what an interrupted export has written."""
    post, main = buckets._Requests.do_POST, threading.main_thread().ident
    assert main is not None

    def slow(self: Any) -> None:
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.2)
        post(self)

    monkeypatch.setattr(buckets._Requests, "do_POST", slow)
    with pytest.raises(KeyboardInterrupt):
        FolderInBucket(objects_in(folder)).write("late", b"1")
    assert keys_in(folder) == ["late"]


def test_another_host_that_gives_signs_is_refused(folder: str, record: Callable[..., None]) -> None:
    record(host="another")
    sign = threading.Timer(0.05, lambda: record(2, host="another"))
    sign.start()
    with pytest.raises(gd.CheckpointError, match=f"process {os.getppid()} on another"):
        manager_of(folder).save()
    sign.join()


def test_two_that_begin_at_once(folder: str, record: Callable[..., None]) -> None:
    """The server refuses the second, which then finds the first."""
    read, is_late = BucketObjects.read, [True]

    def read_and_lose(objects: BucketObjects, key: str) -> Any:
        found = read(objects, key)
        if key == ".ckpt.writer" and is_late:
            is_late.clear()
            record(started=start_of(os.getppid()))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BucketObjects, "read", read_and_lose)
        with pytest.raises(gd.CheckpointError, match=f"process {os.getppid()} on"):
            manager_of(folder).save()


def test_a_process_that_was_taken_for_dead_gives_up(
    folder: str, record: Callable[..., None]
) -> None:
    manager = manager_of(folder)
    manager.save()
    manager.sync()
    held = checkpoint_lock._all_held[folder, "ckpt"]
    held.renew()
    assert held.is_in_place()
    record(host="another")
    held.renew()  # leaves the record to the other
    assert owner_of(folder) == os.getppid()
    (writer,) = manager.checkpoint._writers.values()
    with pytest.raises(gd.CheckpointError, match="no longer this process's"):
        manager._folder.give_name("ckpt-9", "0" * 8, b"{}", writer.confirm)
    assert manager.checkpoints == [f"{folder}/ckpt-1"]


# Damage, outages, and other programs.


def test_a_changed_object_is_found(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    manager = manager_of(folder)
    for _ in range(2):
        manager.save()
    manager.sync()
    chunk = next(key for key in keys_in(folder) if key.startswith("ckpt-2") and key.endswith("/0"))
    objects_in(folder).write(chunk, bytes(80))
    with pytest.raises(gd.UnreadableCheckpointError, match="its checksum is"):
        restored(f"{folder}/ckpt-2")
    assert manager_of(folder, 0).restore_or_initialize() == f"{folder}/ckpt-1"
    objects_in(folder).write(chunk, b"short")
    with pytest.raises(gd.UnreadableCheckpointError, match="it has 5 bytes, its index says 80"):
        restored(f"{folder}/ckpt-2")
    objects_in(folder).write(chunk, None)
    assert gd.train.latest_checkpoint(folder) == f"{folder}/ckpt-1"
    assert "ckpt-2 is damaged and is passed over" in caplog.text


def test_what_is_no_checkpoint_is_not_replaced(folder: str) -> None:
    objects_in(folder).write("notes/today.txt", b"text")
    with pytest.raises(gd.CheckpointError, match="'notes' exists and is no checkpoint"):
        checkpoint_of(1).write(f"{folder}/notes")
    assert keys_in(folder) == ["notes/today.txt"]


def test_an_outage_is_no_damage(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = manager_of(folder)
    manager.save()
    manager.sync()

    def fail(*_: Any, **__: Any) -> Any:
        raise gd.CheckpointError("no answer")

    monkeypatch.setattr(BucketObjects, "content", fail)  # after the index was read
    with pytest.raises(gd.CheckpointError, match="no answer") as caught:
        manager_of(folder, 0).restore_or_initialize()
    assert not isinstance(caught.value, gd.UnreadableCheckpointError)


def test_checkpoints_may_be_copied_to_a_disk_and_back(folder: str, tmp_path: Path) -> None:
    checkpoint_of(5).write(f"{folder}/ckpt-1")
    gd.train.latest_checkpoint(folder)
    for key in keys_in(folder):
        file = tmp_path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(objects_in(folder).content(key))
    assert restored(str(tmp_path / "ckpt-1")) == 5
    checkpoint_of(6).write(tmp_path / "best")
    gd.train.latest_checkpoint(tmp_path)
    for file in (tmp_path / "best").rglob("*"):
        if file.is_file():
            objects_in(folder).write(str(file.relative_to(tmp_path)), file.read_bytes())
    assert restored(f"{folder}/best") == 6
    checkpoint_of(7).write(f"{folder}/best")
    gd.train.latest_checkpoint(folder)
    assert restored(f"{folder}/best") == 7
    assert not [key for key in keys_in(folder) if key.startswith("best/part-")]
    shutil.rmtree(tmp_path / "ckpt-1")


@pytest.mark.long
def test_a_forked_process_is_refused(folder: str) -> None:
    process = start("fork_and_read", folder, **_variables())
    (said_there,) = finished(process)
    assert "do not survive a fork" in said_there


@pytest.mark.long
def test_workers_write_and_read_together(folder: str, tmp_path: Path) -> None:
    """Two workers each write a part; one process reads what they wrote."""
    workers = [
        start("write_together", tmp_path, index, 2, f"{folder}/ckpt", **_variables())
        for index in range(2)
    ]
    lines = [finished(worker)[0] for worker in workers]
    assert [line.split(" ", 1)[1] for line in lines] == [lines[0].split(" ", 1)[1]] * 2
    assert " 3 {'a': 81, 'b': 25, 'c': 16, 'd': 1} 1" in lines[0]
    assert {key.split("/")[2] for key in keys_in(folder) if "part" in key} == {"part-0", "part-1"}


@pytest.mark.long
def test_killed_at_random_moments(folder: str) -> None:
    moments = random.Random(5)
    last = 0
    for _ in range(5):
        process = start("save_for_ever", folder, **_variables())
        assert process.stdout is not None
        for _ in range(moments.randint(1, 3)):
            assert process.stdout.readline()
        time.sleep(moments.uniform(0, 0.3))
        process.kill()
        process.communicate()
        arrays = gd.train.Checkpoint(step=0, arrays=[np.zeros(200_000, int)] * 8)
        manager = gd.train.CheckpointManager(arrays, folder, max_to_keep=2, read_only=True)
        if manager.restore_or_initialize() is not None:
            assert arrays.step >= last
            assert all((array == arrays.step).all() for array in arrays.arrays)
            last = arrays.step
    assert last > 0


def _variables() -> dict[str, str]:
    names = ("AWS_", "TENSORSTORE_", "GOOGLE_AUTH_")
    return {name: value for name, value in os.environ.items() if name.startswith(names)}
