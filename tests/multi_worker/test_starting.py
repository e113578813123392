"""Workers that do not come together are an error within the time, that says which and why."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys

import pytest

from tests.multi_worker.launch import PROGRAMS, SECONDS, environment, run

pytestmark = pytest.mark.slow


def start_alone(worker: int, addresses: list[str]) -> tuple[int, str]:
    """Start one worker of a cluster, and return its exit status and its error."""
    task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
    variables = {"TF_CONFIG": json.dumps(task), "GRAPHDIST_WORKER_START_SECONDS": "2"}
    done = subprocess.run(
        [sys.executable, PROGRAMS / "starting.py"],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stderr


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return f"127.0.0.1:{one.getsockname()[1]}"


def test_a_worker_that_never_starts_is_named() -> None:
    addresses = [free_address(), free_address()]
    status, error = start_alone(0, addresses)
    assert status == 1
    assert f"WorkerError: worker 1 ({addresses[1]}) did not start within 2 s" in error
    assert "starting.py:13" in error


def test_an_address_where_nobody_is() -> None:
    addresses = [free_address(), free_address()]
    status, error = start_alone(1, addresses)
    assert status == 1
    assert f"worker 1 ({addresses[1]}) cannot reach worker 0 ({addresses[0]}) within 2 s" in error
    assert "Connection refused" in error


def test_a_name_that_is_none() -> None:
    status, error = start_alone(1, ["nobody.invalid:2222", free_address()])
    assert status == 1
    assert "cannot reach worker 0 (nobody.invalid:2222) within 2 s" in error


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, error = start_alone(0, [address, free_address()])
    assert status == 1
    assert address in error
    assert "in use" in error


def test_workers_with_different_numbers_of_devices() -> None:
    outcome = run(2, "starting", "3", devices=2)
    assert outcome.status == 1
    for worker in range(2):
        error = (
            rf"\[worker {worker}\] .*WorkerError: worker 1 \(.*\) has 3 devices, worker 0 .* has 2"
        )
        assert re.search(error, outcome.err)
