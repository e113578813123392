"""Workers and servers that are stopped, or do not come: named, and the run goes on or ends soon."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any  # Any: users' functions and values

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.coordinator import ClusterCoordinator
from graphdist.parameter_server.messages import Change, Origin, Read
from graphdist.parameter_server.ray_cluster import ray
from graphdist.parameter_server.server import ParameterServer
from graphdist.parameter_server.storage import on_server

SILENCE, START = 3, 6


@pytest.fixture(scope="module")
def strategy() -> Iterator[gd.ParameterServerStrategy]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHDIST_WORKER_SILENCE_SECONDS", str(SILENCE))
        made = gd.ParameterServerStrategy(num_workers=2, num_servers=2)
    yield made
    made.shutdown()


@pytest.fixture
def coordinator(strategy: gd.ParameterServerStrategy) -> ClusterCoordinator:
    found = ClusterCoordinator(strategy)
    found.worker_processes()
    return found


def variable(strategy: Any, value: Any = 0.0, name: str = "count") -> gd.Variable:
    with strategy.scope():
        return gd.Variable(value, name=name)


class SlowElements:
    """A dataset whose elements take a while; it tells by a file that one is being made."""

    def __init__(self, seconds: float, began: Path) -> None:
        self.seconds, self.began = seconds, began

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self.began.touch()
        time.sleep(self.seconds)
        return 1.0


def slow_step(
    coordinator: ClusterCoordinator, count: gd.Variable, seconds: float, began: Path
) -> tuple[Any, Any]:
    """Return a step that adds an element, and its arguments."""
    elements = SlowElements(seconds, began)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: elements))

    @gd.function
    def step(iterator: Any) -> None:
        count.assign_add(next(iterator), read_value=False)

    return step, (iterator,)


@contextmanager
def stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def server_process(strategy: Any, number: int) -> int:
    found: int = ray().get(strategy.servers.actors[number].process.remote())
    return found


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.long
def test_the_function_of_a_stopped_worker_is_given_to_another(
    coordinator: ClusterCoordinator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "graphdist")
    count = variable(coordinator.strategy)
    step, arguments = slow_step(coordinator, count, 1.0, tmp_path / "began")
    before = coordinator.traffic.worker_deaths
    processes = coordinator.worker_processes()
    values = [coordinator.schedule(step, arguments) for _ in range(6)]
    wait_until((tmp_path / "began").exists)
    worker = next(value.worker for value in values if value.worker is not None)
    with stopped(processes[worker]):
        coordinator.join()
        assert coordinator.traffic.worker_deaths == before + 1
        assert f"worker {worker}, process {processes[worker]} on" in caplog.text
        assert f"has not answered for {SILENCE} s: 'step' is run again" in caplog.text
        # A new process takes its place.
        assert coordinator.worker_processes()[worker] != processes[worker]
    assert float(count) == 6 + coordinator.traffic.written_twice


@pytest.mark.long
def test_a_worker_that_is_stopped_while_it_has_nothing_to_do(
    coordinator: ClusterCoordinator,
) -> None:
    count = variable(coordinator.strategy)
    add = gd.function(lambda: count.assign_add(1.0, read_value=False))
    before = coordinator.traffic.worker_deaths
    with stopped(coordinator.worker_processes()[0]):
        for _ in range(8):
            coordinator.schedule(add)
        coordinator.join()
        assert coordinator.traffic.worker_deaths == before + 1
    assert float(count) == 8 + coordinator.traffic.written_twice


@pytest.mark.long
def test_one_that_computes_or_is_stopped_for_a_moment_is_not_silent(
    coordinator: ClusterCoordinator, tmp_path: Path
) -> None:
    count = variable(coordinator.strategy)
    step, arguments = slow_step(coordinator, count, 2.5 * SILENCE, tmp_path / "began")

    @gd.function
    def compute(x: Any, turns: Any) -> Any:
        return jax.lax.fori_loop(0, turns, lambda _, x: jnp.tanh(x @ x), x)

    x = np.ones((256, 256), np.float32)
    coordinator.schedule(compute, (x, 10)).fetch()
    began = time.monotonic()
    coordinator.schedule(compute, (x, 1000)).fetch()
    turns = int(1000 * 2.5 * SILENCE / (time.monotonic() - began))
    before = coordinator.traffic.worker_deaths
    processes = coordinator.worker_processes()
    coordinator.schedule(step, arguments)
    coordinator.schedule(compute, (x, turns))
    wait_until((tmp_path / "began").exists)
    for process in processes:
        with stopped(process):
            time.sleep(SILENCE / 6)
    coordinator.join()
    assert coordinator.traffic.worker_deaths == before
    assert coordinator.worker_processes() == processes


@pytest.mark.long
def test_a_stopped_server_is_named_at_the_line_that_asks(strategy: Any, coordinator: Any) -> None:
    first, second = variable(strategy, name="first"), variable(strategy, name="second")
    lost = strategy.server_of(second)
    add = gd.function(lambda: second.assign_add(1.0, read_value=False))
    coordinator.schedule(add).fetch()
    with stopped(server_process(strategy, lost)):
        value = coordinator.schedule(add)
        asking: dict[str, Callable[[], Any]] = {
            "coordinator.join()": lambda: coordinator.join(),
            "value.fetch()": lambda: value.fetch(),
            "second.read_value()": lambda: second.read_value(),
            "second.assign(3.0)": lambda: second.assign(3.0),
        }
        for line, ask in asking.items():
            with pytest.raises(gd.ServerLostError, match="'second'") as raised:
                ask()
            said = str(raised.value)
            assert f"parameter server {lost} has not answered for {SILENCE} s" in said
            assert f'"{line}": lambda: {line},' in said
        assert float(first) == 0
    # It comes back, and is used again.
    before = float(second)
    coordinator.schedule(add).fetch()
    assert float(second) == before + 1


@pytest.mark.long
def test_a_server_that_is_stopped_while_it_sends_an_answer(strategy: Any) -> None:
    large = variable(strategy, np.ones(25_000_000, np.float32), "large")
    server = strategy.server_of(large)
    connection = strategy.servers._connections[server]
    process = server_process(strategy, server)
    with connection.held(time.monotonic()):
        # More is under way than the system keeps: the server is in the middle of its answer.
        connection.request("read", ([Read(on_server(large).key)],))
        connection._channel._stream.recv(1, socket.MSG_PEEK)
        with stopped(process), pytest.raises(Exception, match="has not answered"):
            connection.answer()
        connection.close()
    np.testing.assert_array_equal(large, 1)


@pytest.mark.long
def test_workers_that_never_start_end_what_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "graphdist")
    monkeypatch.setenv("GRAPHDIST_WORKER_START_SECONDS", str(START))
    strategy = gd.ParameterServerStrategy(num_workers=1)
    count = variable(strategy)
    add = gd.function(lambda: count.assign_add(1.0, read_value=False))
    is_over = Event()
    # Tests may run in another order: workers of another strategy are left alone.
    keeper = Thread(target=keep_workers_stopped, args=(is_over, set(worker_processes())))
    keeper.start()
    try:
        coordinator = ClusterCoordinator(strategy)
        values = [coordinator.schedule(add) for _ in range(3)]
        with pytest.raises(gd.WorkerError, match=f"worker 0 has not started within {START} s"):
            coordinator.join()
        with pytest.raises(gd.ClosureCancelledError, match="not run: no worker runs"):
            values[0].fetch()
    finally:
        is_over.set()
        keeper.join()
    assert "it is started again" in caplog.text
    for _ in range(20):  # a busy machine may take longer than START to start a worker
        with suppress(gd.ClosureCancelledError):
            coordinator.schedule(add).fetch(timeout=60)
            break
    assert float(count) == 1
    strategy.shutdown()


def keep_workers_stopped(is_over: Event, others: set[int]) -> None:
    """Stop each worker of this process but `others` as soon as it begins to start."""
    while not is_over.wait(0.01):
        for process in worker_processes():
            with suppress(OSError):
                if process not in others:
                    os.kill(process, signal.SIGSTOP)


def worker_processes() -> Iterator[int]:
    """Yield the processes of workers that this process has started."""
    for process in descendants(os.getpid()):
        with suppress(OSError):
            if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::ClosureWorker"):
                yield process


def descendants(process: int) -> list[int]:
    """Return the processes that a process has started, and that these have."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(process, []))
    for child in found:
        found += children.get(child, [])
    return found


PROGRAM = """
import os, signal, sys, time
import graphdist as gd

strategy = gd.ParameterServerStrategy(num_workers=1)
coordinator = gd.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    count = gd.Variable(0.0)


class Slow:
    def __iter__(self):
        return self

    def __next__(self):
        time.sleep(2)
        return 1.0


iterator = iter(coordinator.create_per_worker_dataset(lambda: Slow()))
step = gd.function(lambda iterator: count.assign_add(next(iterator), read_value=False))
for _ in range(5):
    coordinator.schedule(step, (iterator,))
coordinator.worker_processes()
print("joins", flush=True)
try:
    coordinator.join()
except KeyboardInterrupt:
    coordinator.join()
print(float(count), coordinator.traffic.worker_deaths, flush=True)
"""


@pytest.mark.long
def test_a_coordinator_that_was_stopped_or_interrupted_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    settings = {"GRAPHDIST_WORKER_SILENCE_SECONDS": str(SILENCE)}
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **settings, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"joins\n"
        with stopped(process.pid):  # not its servers and workers
            time.sleep(2 * SILENCE)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.stdout.readline() == b"5.0 0\n"
        assert process.wait(60) == 0


def test_a_lost_worker_cannot_write_for_a_function_that_another_runs() -> None:
    server = ParameterServer(False, b"a key", True)
    server.create(1, np.zeros(2, np.float32))
    change = [Change((1,), (0,), None)]
    server.apply(change, [np.ones(2, np.float32)], Origin(closure=7, attempt=0))
    server.end_attempts(7, 1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="writes too late"):
            server._answer("apply", (change, [np.full(2, 9, np.float32)], Origin(7, 0)))
    (value,) = server.read([Read(1)])
    np.testing.assert_array_equal(value, 1)
    # The next attempt is told that the function has written before.
    assert server.apply(change, [np.full(2, 2, np.float32)], Origin(7, 1)) is True
    assert server.apply(change, [np.full(2, 3, np.float32)], Origin(8, 0)) is False
    with pytest.raises(RuntimeError, match="no request 'process'"):
        server._answer("process", ())
