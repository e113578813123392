"""Workers that do not come together are an error within the time, that says which and why."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time

import pytest

from tests.multi_worker.launch import PROGRAMS, SECONDS, environment, run


def start_alone(worker: int, addresses: list[str]) -> tuple[int, str]:
    """Start one worker of a cluster, and return its exit status and its error."""
    process = started(worker, addresses, GRAPHDIST_WORKER_START_SECONDS="2")
    _, error = process.communicate(timeout=SECONDS)
    return process.returncode, error


def started(worker: int, addresses: list[str], **variables: str) -> subprocess.Popen[str]:
    """Start one worker of a cluster."""
    task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
    return subprocess.Popen(
        [sys.executable, PROGRAMS / "starting.py"],
        env=environment(TF_CONFIG=json.dumps(task), **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return f"127.0.0.1:{one.getsockname()[1]}"


@pytest.mark.long
def test_a_worker_that_never_starts_is_named() -> None:
    addresses = [free_address(), free_address()]
    status, error = start_alone(0, addresses)
    assert status == 1
    assert f"WorkerError: worker 1 ({addresses[1]}) did not start within 2 s" in error
    assert "starting.py:13" in error


@pytest.mark.long
def test_an_address_where_nobody_is() -> None:
    addresses = [free_address(), free_address()]
    status, error = start_alone(1, addresses)
    assert status == 1
    assert f"worker 1 ({addresses[1]}) cannot reach worker 0 ({addresses[0]}) within 2 s" in error
    assert "Connection refused" in error


@pytest.mark.long
def test_a_name_that_is_none() -> None:
    status, error = start_alone(1, ["nobody.invalid:2222", free_address()])
    assert status == 1
    assert "cannot reach worker 0 (nobody.invalid:2222) within 2 s" in error


@pytest.mark.long
def test_two_jobs_at_the_same_addresses() -> None:
    addresses = [free_address(), free_address()]
    limits = {"GRAPHDIST_WORKER_START_SECONDS": "15"}
    one = [started(index, addresses, GRAPHDIST_JOB_ID="one", **limits) for index in [0]]
    other = started(1, addresses, GRAPHDIST_JOB_ID="other", **limits)
    _, error = other.communicate(timeout=SECONDS)
    assert other.returncode == 1
    assert "worker 1 is of the job 'other', worker 0 of another one" in error
    status, error = start_alone(0, addresses)
    assert status == 1
    assert "cannot listen at" in error
    assert "in use" in error
    one.append(started(1, addresses, GRAPHDIST_JOB_ID="one", **limits))  # it goes on undisturbed
    for process in one:
        _, error = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, error


@pytest.mark.long
def test_a_worker_with_another_token() -> None:
    addresses = [free_address(), free_address()]
    limits = {"GRAPHDIST_WORKER_START_SECONDS": "8"}
    both = [started(i, addresses, GRAPHDIST_JOB_TOKEN=f"secret {i}", **limits) for i in range(2)]
    for process in both:
        _, error = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert "the job's token that worker 1 was given is another than worker 0's" in error
        assert "secret" not in error


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, error = start_alone(0, [address, free_address()])
    assert status == 1
    assert address in error
    assert "in use" in error


@pytest.mark.long
@pytest.mark.parametrize(
    ("phase", "fault", "victim"),
    [
        ("joining", "kill", 0),
        ("joining", "raise", 1),
        ("between", "raise", 0),
        ("devices", "kill", 1),
        ("devices", "stop", 0),
        ("compiling", "kill", 1),
        ("compiling", "raise", 0),
    ],
)
def test_a_worker_that_fails_early_is_named(phase: str, fault: str, victim: int) -> None:
    patience = {"GRAPHDIST_WORKER_START_SECONDS": "60", "GRAPHDIST_WORKER_SILENCE_SECONDS": "3"}
    began = time.monotonic()
    outcome = run(2, "early", phase, fault, str(victim), variables=patience)
    assert time.monotonic() - began < 60  # JAX itself waits for two minutes
    assert outcome.status == (137 if fault == "kill" else 1)
    why = {"kill": "died", "stop": r"was not heard of for \d s", "raise": "failed: KeyError: .*own"}
    error = (
        rf"\[worker {1 - victim}\] graphdist.\S*WorkerError: worker {victim} \(.*\) {why[fault]}"
    )
    assert re.search(error, outcome.err), outcome.err
    assert "Fatal Python error" not in outcome.err


@pytest.mark.long
def test_workers_on_loopback_listen_on_loopback_alone() -> None:
    outcome = run(2, "listening")
    assert outcome.status == 0, outcome.err
    for worker in range(2):
        ((total, addresses),) = outcome.said[worker]
        assert total == 2.0
        assert addresses == ["127.0.0.1"]


@pytest.mark.long
def test_workers_over_ipv6() -> None:
    outcome = run(2, "listening", options=("--host", "::1"))
    assert outcome.status == 0, outcome.err
    assert [outcome.said[worker][0][0] for worker in range(2)] == [2.0, 2.0]


@pytest.mark.long
def test_workers_with_different_numbers_of_devices() -> None:
    outcome = run(2, "starting", "3", devices=2)
    assert outcome.status == 1
    for worker in range(2):
        error = (
            rf"\[worker {worker}\] .*WorkerError: worker 1 \(.*\) has 3 devices, worker 0 .* has 2"
        )
        assert re.search(error, outcome.err)
