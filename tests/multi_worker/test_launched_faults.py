"""What goes wrong in workers that JAX or mpirun connects ends in time, with an error that names it.

JAX's own service is in process 0 where the program initializes JAX: the service ends the other
processes when process 0 dies, after their error was printed.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.multi_worker.test_launchers import outcomes
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
