"""The launcher is told from what it sets in the environment."""

from __future__ import annotations

import pytest

from graphdist.cluster.launcher import Launcher, launcher

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}
MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        (SLURM, Launcher("Slurm", "slurm")),
        (SLURM | {"SLURM_NTASKS": "1"}, None),
        ({name: text for name, text in SLURM.items() if name != "SLURM_STEP_NODELIST"}, None),
        (MPI, Launcher("Open MPI", "mpi4py")),
        (MPI | {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:3"}, Launcher("Open MPI", "ompi")),
        (MPI | {"OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, Launcher("MPI", "mpi4py")),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"},
            Launcher("Kubernetes"),
        ),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, Launcher("Cloud TPU")),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
        ({"MEGASCALE_COORDINATOR_ADDRESS": "a"}, Launcher("Cloud TPU")),
    ],
)
def test_launchers(
    variables: dict[str, str], found: Launcher | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert launcher() == found
