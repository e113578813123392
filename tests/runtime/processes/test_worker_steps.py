"""Steps over several workers, of which the others are connections of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import graphdist as gd
from graphdist.ir.source import at_line
from graphdist.runtime import supervised_steps as worker_steps
from graphdist.runtime.processes import cluster_workers
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.processes.workers import WorkerTimeouts
from graphdist.runtime.supervised_steps import WorkerStep
from tests.free_port import free_port


@pytest.fixture
def pair() -> Iterator[list[ClusterWorkers]]:
    addresses = [f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2)]
    made = [ClusterWorkers(addresses, index, WorkerTimeouts(start=30.0)) for index in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ClusterWorkers.rendezvous, made))
    yield made
    for workers in reversed(made):
        workers.leave()


@pytest.fixture
def never() -> Iterator[Callable[..., Any]]:
    """Return a step that another worker keeps from ending, until the test is over."""
    over = threading.Event()

    def step(*arrays: Any) -> list[Any]:
        over.wait(60)
        return []

    yield step
    over.set()


def step_of(
    workers: ClusterWorkers, function: Any, platform: str = "cpu", seconds: float | None = None
) -> WorkerStep:
    devices: Any = SimpleNamespace(platform=platform, timeout_seconds=seconds, workers=workers)
    line = at_line("train.py", 7, "step")
    return WorkerStep(function, "step", devices, lambda: ("%0 = all_reduce(%x)", line))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_step_returns_what_its_function_does(pair: list[ClusterWorkers], platform: str) -> None:
    output = SimpleNamespace(block_until_ready=lambda: None, value=3)
    step = step_of(pair[0], lambda *arrays: [output, *arrays], platform)
    assert step(output) == [output, output]


def test_an_error_of_the_step_is_its_own(pair: list[ClusterWorkers]) -> None:
    def fails() -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        step_of(pair[0], fails)()


@pytest.mark.long
def test_a_step_that_takes_too_long(pair: list[ClusterWorkers], never: Any) -> None:
    message = r"step 1, 'step', did not end within 0.1 s: worker 1 .* did not arrive"
    with pytest.raises(gd.CollectiveTimeoutError, match=message) as caught:
        step_of(pair[0], never, seconds=0.1)()
    assert "train.py:7" in str(caught.value)
    assert "%0 = all_reduce(%x)" in str(caught.value)


def test_a_step_that_all_have_begun(
    pair: list[ClusterWorkers], never: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine that does much else may be late with the news.
    monkeypatch.setattr(cluster_workers, "SECONDS_TO_NOTICE", 30.0)
    pair[1].begin_step()
    deadline = time.monotonic() + 20
    while pair[0].behind(1) and time.monotonic() < deadline:  # until the others know
        time.sleep(0.05)
    with pytest.raises(gd.CollectiveTimeoutError, match="all have begun it"):
        step_of(pair[0], never, seconds=0.1)()


def test_a_worker_that_fails_ends_the_step_of_the_others(
    pair: list[ClusterWorkers], never: Any
) -> None:
    timer = threading.Timer(0.1, pair[1]._connection.tell_failed, ["failed: KeyError: 'theirs'"])
    timer.start()
    with pytest.raises(gd.WorkerError, match=r"worker 1 .* failed: KeyError: 'theirs'"):
        step_of(pair[0], never)()
    with pytest.raises(gd.WorkerError, match="theirs"):
        step_of(pair[0], lambda: [])()


def test_a_collective_that_fails_names_who_is_behind_it(pair: list[ClusterWorkers]) -> None:
    def fails() -> Any:
        pair[1]._connection.tell_failed("died of it")
        raise ValueError("Connection closed by peer")

    with pytest.raises(gd.WorkerError, match=r"worker 1 .* died of it") as caught:
        step_of(pair[0], fails)()
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.long
def test_a_step_on_accelerators_that_never_ends(
    pair: list[ClusterWorkers], never: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[BaseException] = []
    done = threading.Event()

    def end(error: BaseException) -> None:
        ended.append(error)
        done.set()

    monkeypatch.setattr(worker_steps, "end_process", end)
    output = SimpleNamespace(block_until_ready=never, is_deleted=lambda: False)
    step = step_of(pair[0], lambda: [output], "gpu", seconds=0.1)
    assert step() == [output]
    assert done.wait(20)
    assert "did not end within 0.1 s" in str(ended[0])


def test_an_output_that_a_later_step_took(pair: list[ClusterWorkers]) -> None:
    def gone() -> None:
        raise RuntimeError("Array has been deleted")

    output = SimpleNamespace(block_until_ready=gone, is_deleted=lambda: True)
    call: Future[Any] = Future()
    worker_steps._runner.start(call, worker_steps._wait_for, [output])
    assert call.result(20) is None
