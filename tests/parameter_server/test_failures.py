"""Workers and servers that are killed, and what is left behind when a program ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any  # Any: variables in shards are no variables

import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.coordinator import ClusterCoordinator
from graphdist.parameter_server.ray_cluster import ray


@pytest.fixture
def strategy() -> Iterator[gd.ParameterServerStrategy]:
    made = gd.ParameterServerStrategy(num_workers=2, num_servers=2)
    yield made
    made.shutdown()


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def counter(strategy: Any, name: str = "count") -> gd.Variable:
    with strategy.scope():
        return gd.Variable(0.0, name=name)


@pytest.mark.long
def test_a_killed_worker_loses_no_function(strategy: gd.ParameterServerStrategy) -> None:
    coordinator = ClusterCoordinator(strategy)
    count = counter(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: gd.data.Dataset.range(1_000_000)))

    @gd.function
    def step(iterator: Any) -> Any:
        count.assign_add(1.0, read_value=False)
        return next(iterator)

    before = coordinator.worker_processes()
    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(200)]
    values[5].fetch()
    kill(before[0])
    coordinator.join()
    assert all(value.fetch() >= 0 for value in values)
    traffic = coordinator.traffic
    assert traffic.closures == 200
    assert traffic.run_again <= traffic.worker_deaths <= 1
    assert float(count) == 200 + traffic.written_twice
    # Ray starts it again, and its dataset is made again.
    after = coordinator.worker_processes()
    assert after[0] != before[0]
    assert after[1] == before[1]
    deadline = time.monotonic() + 60
    least = 1_000_000
    while least >= 20 and time.monotonic() < deadline:  # the other worker may take many before
        again = [coordinator.schedule(step, args=(iterator,)) for _ in range(20)]
        coordinator.join()
        least = min(int(value.fetch()) for value in again)
    assert least < 20


@pytest.mark.long
def test_a_killed_server_is_named_with_its_variables(
    strategy: gd.ParameterServerStrategy, tmp_path: Path
) -> None:
    coordinator = ClusterCoordinator(strategy)
    first, second = counter(strategy, "first"), counter(strategy, "second")
    step = gd.function(lambda: (first.assign_add(1.0), second.assign_add(2.0)))
    for _ in range(10):
        coordinator.schedule(step)
    coordinator.join()
    path = gd.train.Checkpoint(first=first, second=second).save(str(tmp_path / "c"))
    lost = strategy.server_of(second)
    kill(ray().get(strategy.servers.actors[lost].process.remote()))
    began = time.monotonic()
    with pytest.raises(gd.ServerLostError, match=r"'second'") as raised:
        run(coordinator, step, 10)
    assert time.monotonic() - began < 30
    assert "'first'" not in str(raised.value)
    with pytest.raises(gd.ServerLostError, match=f"server {lost} has died"):
        second.read_value()
    assert float(first) >= 10
    # A new strategy goes on from the checkpoint.
    other = gd.ParameterServerStrategy(num_workers=1)
    first, second = counter(other, "first"), counter(other, "second")
    gd.train.Checkpoint(first=first, second=second).restore(path).assert_consumed()
    step = gd.function(lambda: (first.assign_add(1.0), second.assign_add(2.0)))
    for _ in range(5):
        ClusterCoordinator(other).schedule(step)
    ClusterCoordinator(other).join()
    assert (float(first), float(second)) == (15, 30)
    other.shutdown()


def run(coordinator: ClusterCoordinator, step: Any, count: int) -> None:
    for _ in range(count):
        coordinator.schedule(step)
    coordinator.join()


PROGRAM = """
import os, signal, sys, time
import graphdist as gd
strategy = gd.ParameterServerStrategy(num_workers=1)
coordinator = gd.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    v = gd.Variable(0.0)
step = gd.function(lambda: v.assign_add(1.0))
coordinator.schedule(step).fetch()
print("ready", flush=True)
how = sys.argv[1]
if how == "fails":
    raise SystemExit(3)
if how == "waits":
    for _ in range(50_000):
        coordinator.schedule(step)
    print("waiting", flush=True)
    coordinator.join()
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["ends", "fails", "interrupted", "killed"])
def test_nothing_is_left_behind(how: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    is_ended = how in ("interrupted", "killed")
    # A folder of its own: other tests run clusters at the same time.
    folder = tempfile.mkdtemp(prefix="gd")
    messages = tmp_path / "messages"
    with (
        open(messages, "wb") as stderr,
        subprocess.Popen(
            [sys.executable, str(program), "waits" if is_ended else how],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "TMPDIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        if is_ended:
            assert process.stdout.readline() == b"waiting\n"
            process.send_signal(signal.SIGINT if how == "interrupted" else signal.SIGKILL)
        expected = {"ends": (0,), "fails": (3,), "interrupted": (-2, 1, 130), "killed": (-9,)}
        assert process.wait(60) in expected[how]
    deadline = time.monotonic() + 120
    while (left := _processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left
    # Ray starts a second cluster where it is used after its end.
    assert b"Started a local Ray instance" not in messages.read_bytes()
    if how != "killed":
        assert not list(Path(folder).glob("gd-ray-*"))
    assert not _memory_of(process.pid)


def _processes_of(folder: str) -> list[str]:
    """Return the command lines of processes that were started with a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = (entry / "environ").read_bytes()
            if f"TMPDIR={folder}".encode() in environment:
                found.append((entry / "cmdline").read_bytes().decode()[:200])
    return found


def _memory_of(process: int) -> list[str]:
    """Return the shared memory that is named after a process."""
    return [entry.name for entry in Path("/dev/shm").glob(f"*{process}*")]


@pytest.mark.long
def test_a_hundred_kills_lose_none_of_two_thousand_functions() -> None:
    strategy = gd.ParameterServerStrategy(num_workers=4, num_servers=1)
    coordinator = ClusterCoordinator(strategy)
    count = counter(strategy)

    @gd.function
    def step(x: Any) -> Any:
        count.assign_add(1.0, read_value=False)
        return x.sum()

    generator = np.random.default_rng(0)
    coordinator.worker_processes()
    kills, x = 0, jnp.ones(1000)
    values: list[Any] = []
    while kills < 100 or len(values) < 2000:
        if len(values) < 2000:
            values += [coordinator.schedule(step, args=(x,)) for _ in range(20)]
        chosen = generator.permutation(4)[: min(2, 100 - kills)]
        processes = coordinator.worker_processes()
        for worker in chosen:
            kill(processes[int(worker)])
        kills += len(chosen)
    coordinator.join()
    assert [value.fetch() for value in values] == [1000] * 2000
    traffic = coordinator.traffic
    assert traffic.closures == 2000
    assert float(count) == 2000 + traffic.written_twice
    assert traffic.written_twice <= traffic.run_again <= traffic.worker_deaths
    strategy.shutdown()
