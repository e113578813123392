"""What goes wrong in workers that JAX or mpirun connects ends in time, with an error that names it.

JAX's own service is in process 0 where the program initializes JAX: the service ends the other
processes when process 0 dies, after their error was printed.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.multi_worker.test_launchers import of_mpirun, outcomes
from tests.multi_worker.test_starting import free_address

Ends: TypeAlias = list[tuple[int, str, str]]
PROGRAM = [sys.executable, "-m", "tests.multi_worker.programs.initialized"]
TIMEOUTS = {
    "GRAPHDIST_WORKER_START_SECONDS": "60",
    "GRAPHDIST_WORKER_SILENCE_SECONDS": "6",
    "GRAPHDIST_WORKER_STEP_SECONDS": "4",
}


def by_jax(*program: str) -> Ends:
    address = free_address()
    lines = [[*PROGRAM, address, "2", str(index), *program] for index in range(2)]
    return outcomes(lines, *[TIMEOUTS] * 2)


def by_slurm(*program: str) -> Ends:
    of_job = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "JAX_COORDINATOR_PORT": free_address().rpartition(":")[2],
        **TIMEOUTS,
    }
    tasks = [{**of_job, "SLURM_PROCID": index, "SLURM_LOCALID": index} for index in "01"]
    return outcomes([[*PROGRAM, "launcher", "", "", *program]] * 2, *tasks)


@pytest.mark.long
@pytest.mark.parametrize("launch", [by_jax, by_slurm])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("kill", r"WorkerError: worker {victim} \(.*\) died"),
        ("raise", r"WorkerError: worker {victim} \(.*\) failed: KeyError"),
        ("leave", r"WorkerError: worker {victim} \(.*\) ended its program before the others"),
    ],
)
def test_the_other_worker_is_told(
    launch: Callable[..., Ends], victim: int, fault: str, told: str
) -> None:
    ends = launch("faulty", fault, str(victim))
    status, _, error = ends[1 - victim]
    assert status != 0
    assert re.search(told.format(victim=victim), error), error
    if fault == "kill":
        assert ends[victim][0] == -signal.SIGKILL
    if fault == "raise":
        assert 'KeyError: "the user\'s own"' in ends[victim][2]


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("fault", ["kill", "raise", "leave"])
def test_mpirun_ends_the_job(fault: str, victim: int) -> None:
    """It ends the other process, too, so that its error may come or not: mpirun names the rank."""
    began = time.monotonic()
    status, _, error = of_mpirun(*PROGRAM, "launcher", "", "", "faulty", fault, str(victim))
    assert status != 0
    assert time.monotonic() - began < 60
    told = {
        "kill": rf"process rank {victim} with PID \d+ on node \S+ exited on\s+signal 9",
        "raise": 'KeyError: "the user\'s own"',
        "leave": rf"WorkerError: worker {victim} \(.*\) ended its program before the others",
    }
    assert re.search(told[fault], error), error


def losses_in(folder: Path) -> dict[str, dict[int, str]]:
    """Return the losses of each step, by the process that wrote them."""
    lines = {file.name: file.read_text().split() for file in folder.glob("losses-*")}
    return {name: dict(zip(map(int, w[::2]), w[1::2], strict=True)) for name, w in lines.items()}


@pytest.mark.long
def test_killed_at_random_under_mpirun(tmp_path: Path) -> None:
    """A loop that starts the job again until it is done ends with the losses of one start."""
    kills, steps = 3, 100
    program = [sys.executable, "-m", "tests.multi_worker.programs.killed_at_random"]
    alone, drilled = tmp_path / "alone", tmp_path / "drilled"
    alone.mkdir()
    drilled.mkdir()
    status, _, error = of_mpirun(*program, str(alone), str(steps), "0")
    assert status == 0, error
    first, second = losses_in(alone).values()
    assert first == second
    assert [*first] == [*range(steps)]
    for number in range(kills + 1):
        status, _, error = of_mpirun(*program, str(drilled), str(steps), str(kills), **TIMEOUTS)
        assert (status == 0) == (number == kills), error
        assert len(list(drilled.glob("kill-*"))) == min(number + 1, kills)
    found = losses_in(drilled)
    for name, losses in found.items():
        assert losses == {step: first[step] for step in losses}, name
    for rank in (0, 1):
        made = [losses for name, losses in found.items() if name.startswith(f"losses-{rank}-")]
        assert len(made) > 1, "some kill came in a step"
        assert set().union(*made) == set(first)
