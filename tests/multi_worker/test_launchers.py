"""Workers that JAX or a launcher connects train as those that graphdist-run starts do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.multi_worker.launch import SECONDS, environment, run
from tests.multi_worker.test_starting import free_address

PROGRAM = [sys.executable, "-m", "tests.multi_worker.programs.launched"]


def outcomes(commands: list[list[str]], *variables: dict[str, str]) -> list[tuple[int, str, str]]:
    """Return exit status, output and errors of processes that run at the same time."""
    processes = [
        subprocess.Popen(
            command,
            env=environment(**each),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, each in zip(commands, variables or [{}] * len(commands), strict=True)
    ]
    texts = [process.communicate(timeout=SECONDS) for process in processes]
    return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]


def initialized(workers: int, *what: str, **variables: str) -> list[tuple[int, str, str]]:
    """Run processes that initialize JAX themselves."""
    address = free_address()
    return outcomes(
        [[*PROGRAM, address, str(workers), str(index), *what] for index in range(workers)],
        *[variables] * workers,
    )


def of_mpirun(*program: str, **variables: str) -> tuple[int, str, str]:
    """Return exit status, output and errors of two processes that Open MPI starts."""
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:/usr/bin")
    if mpirun is None:
        pytest.skip("mpirun is not installed")
    options = ["--allow-run-as-root", "--oversubscribe", "-n", "2"]
    return outcomes([[mpirun, *options, *program]], variables)[0]


def results(output: str) -> list[Any]:
    return [json.loads(line[5:]) for line in output.splitlines() if line.startswith("SAYS ")]


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """Return the losses, weights and rows of two workers of graphdist-run."""
    said = run(2, "training").said
    assert said[0] == said[1]
    return said[0]


@pytest.mark.long
def test_processes_that_initialized_jax(expected: list[Any]) -> None:
    first, second = initialized(2)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert results(first[1]) == results(second[1]) == expected
    assert "graphdist: 2 workers of jax.distributed, which is initialized" in first[2]
    assert "graphdist: 2 workers" not in second[2]


@pytest.mark.long
def test_three_processes_that_initialized_jax() -> None:
    said = run(3, "training").said
    assert said[0] == said[1] == said[2]
    for status, output, error in initialized(3):
        assert status == 0, error
        assert results(output) == said[0]


@pytest.mark.long
def test_beside_a_cluster_of_tf_config(expected: list[Any]) -> None:
    workers, address = [free_address(), free_address()], free_address()
    tasks = [{"type": "worker", "index": index} for index in (0, 1)]
    configs = [{"cluster": {"worker": workers}, "task": task} for task in tasks]
    cluster = [{"TF_CONFIG": json.dumps(config)} for config in configs]
    commands = [[*PROGRAM, address, "2", str(index)] for index in (0, 1)]
    for status, output, error in outcomes(commands, *cluster):
        assert status == 0, error
        assert results(output) == expected
    alone = [[*PROGRAM, free_address(), "1", "0"] for _ in workers]
    status, _, error = outcomes(alone, *cluster)[1]
    assert status != 0
    assert "this process is worker 1 (" in error
    assert ") of 2, and process 0 of 1 of JAX, which is initialized already" in error


@pytest.mark.long
def test_processes_of_mpirun(expected: list[Any]) -> None:
    status, output, error = of_mpirun(*PROGRAM, "launcher", "", "")
    assert status == 0, error
    assert results(output) == [*expected, *expected]
    assert "graphdist: 2 workers of Open MPI, by jax.distributed" in error


@pytest.mark.long
def test_tasks_of_slurm(expected: list[Any]) -> None:
    port = int(free_address().rpartition(":")[2])
    of_job = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "JAX_COORDINATOR_PORT": str(port),
    }
    tasks = [{**of_job, "SLURM_PROCID": index, "SLURM_LOCALID": index} for index in "01"]
    for status, output, error in outcomes([[*PROGRAM, "launcher", "", ""]] * 2, *tasks):
        assert status == 0, error
        assert results(output) == expected


@pytest.mark.long
@pytest.mark.needs("ray_train")
def test_workers_of_a_jax_trainer_of_ray(expected: list[Any], tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.multi_worker.programs.ray_training", str(tmp_path)]
    ((status, output, error),) = outcomes([program], {"RAY_AUTH_MODE": "disabled"})
    assert status == 0, error
    assert results(output) == [*expected, *expected]


@pytest.mark.long
@pytest.mark.parametrize("what", ["mirrored", "default"])
def test_one_process_of_several_is_refused(what: str) -> None:
    for status, _, error in initialized(2, what):
        assert status == 1
        assert "uses this process alone, and JAX has 2 processes" in error
        assert "launched.py" in error


@pytest.mark.long
def test_one_process_on_purpose() -> None:
    first, second = initialized(2, "own devices")
    assert (first[0], second[0]) == (0, 0), first[2]
    assert results(first[1]) == results(second[1]) != []


@pytest.mark.long
def test_a_killed_worker_is_named() -> None:
    (status, _, error), (killed, _, _) = initialized(2, "killed")
    assert (status, killed) == (1, -9)
    assert "WorkerError: worker 1 (" in error
    assert ") died" in error


@pytest.mark.long
def test_a_process_that_makes_no_strategy_is_waited_for_in_vain() -> None:
    first, _ = initialized(2, "late", GRAPHDIST_WORKER_START_SECONDS="3")
    assert first[0] == 1
    assert "not all made a strategy of all workers within 3 s" in first[2]
