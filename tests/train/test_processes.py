"""Real processes: killed while they save, several that save together, stopped by a signal."""

from __future__ import annotations

import ast
import json
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import graphdist as gd
from tests.train.processes import SIZES, finished, start


@pytest.mark.long
def test_a_kill_at_any_moment_leaves_the_last_complete_checkpoint(tmp_path: Path) -> None:
    chosen = random.Random(0)
    partial = 0
    for _ in range(4):
        process = start("save_for_ever", tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        last = int(process.stdout.readline())
        time.sleep(chosen.uniform(0, 0.15))
        os.kill(process.pid, signal.SIGKILL)
        rest, _ = process.communicate(timeout=60)
        last = int(([str(last), *rest.split()])[-1])
        partial += any(path.name.endswith(".partial") for path in tmp_path.iterdir())

        latest = gd.train.latest_checkpoint(tmp_path)
        assert latest is not None
        checkpoint = gd.train.Checkpoint(step=0, arrays=[np.zeros(200_000, int)] * 8)
        checkpoint.restore(latest).assert_consumed()
        assert checkpoint.step in (last, last + 1), "what was said to be saved is there"
        for array in checkpoint.arrays:
            assert (array == checkpoint.step).all()
    assert partial, "no kill was inside a write"


@pytest.mark.long
@pytest.mark.parametrize("count", [3])
def test_each_worker_writes_its_part_once(tmp_path: Path, count: int) -> None:
    path = tmp_path / "ckpt"
    workers = [
        start("write_together", tmp_path / "meeting", index, count, path) for index in range(count)
    ]
    for index, worker in enumerate(workers):
        (line,) = finished(worker)
        number, step, rest = line.split(maxsplit=2)
        sums, _, following = rest.rpartition(" ")
        assert (number, step, following) == (str(index), "3", "1")
        assert ast.literal_eval(sums) == {"a": 81, "b": 25, "c": 16, "d": 1}
    index_of = json.loads((path / "index.json").read_text())
    parts = {name: record["part"] for name, record in index_of["arrays"].items()}
    assert [parts[f"params/{name}"] for name in "abc"] == [0, 1, min(2, count - 1)]
    for part in range(count):
        mine = [name for name, owner in parts.items() if owner == part]
        folders = [one for one in (path / f"part-{part}").iterdir() if one.is_dir()]
        assert len(folders) == len(mine) > 0

    # On another number of workers: one.
    params = gd.variables({name: np.zeros(size, int) for name, size in SIZES.items()})
    iterator = iter(gd.data.Dataset.range(10))
    gd.train.Checkpoint(params=params, step=0, iterator=iterator).restore(path).assert_consumed()
    assert [int(v[...].sum()) for v in params.values()] == [81, 25, 16, 1]
    assert int(next(iterator)) == 1


def test_a_worker_killed_in_a_write_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    gd.train.Checkpoint(step=3).write(path)
    gd.train.latest_checkpoint(tmp_path)  # waits
    alone = start("write_together", tmp_path / "meeting", 1, 2, path)
    other = start("write_together", tmp_path / "meeting", 0, 2, path)
    os.kill(other.pid, signal.SIGKILL)
    other.communicate()
    alone.kill()
    alone.communicate()
    checkpoint = gd.train.Checkpoint(step=0)
    checkpoint.restore(path).assert_consumed()
    assert checkpoint.step == 3


@pytest.mark.long
def test_a_worker_that_cannot_write_is_named_on_the_others(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    first, second = (start("fail_to_write", tmp_path / "meeting", i, 2, path) for i in range(2))
    (said,) = finished(first)
    assert said.startswith("CheckpointError worker 1 of 2 failed")
    assert said.endswith("OSError: no space left")
    assert finished(second) == ["OSError no space left"]
    gd.train.Checkpoint(step=0).restore(path).assert_consumed()


@pytest.mark.long
def test_the_end_of_the_program_waits(tmp_path: Path) -> None:
    finished(start("save_and_end", tmp_path / "ckpt"))
    assert (gd.train.load_variable(tmp_path / "ckpt", "array") == 1).all()


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 3])
def test_all_save_the_same_step_and_leave(tmp_path: Path, count: int) -> None:
    directory, steps = tmp_path / "saved", 1000
    meeting = tmp_path / "first"
    workers = [
        start("train_until_stopped", meeting, index, count, directory, steps)
        for index in range(count)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready 0\n"
        for _ in range(5):
            worker.stdout.readline()
    os.kill(workers[-1].pid, signal.SIGTERM)
    for worker in workers:
        lines = finished(worker, code=143)
        assert not [line for line in lines if line.startswith("done")]
    latest = gd.train.latest_checkpoint(directory)
    total = int(gd.train.load_variable(directory, "total"))
    assert 5 <= total < steps
    assert latest == str(directory / "ckpt-1")

    meeting = tmp_path / "second"
    workers = [
        start("train_until_stopped", meeting, index, count, directory, total + 3)
        for index in range(count)
    ]
    for worker in workers:
        lines = finished(worker)
        assert lines[0] == f"ready {total}"
        assert lines[-1] == f"done {total + 3}"
