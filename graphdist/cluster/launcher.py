"""The launcher that started this process as one of several, found by environment variables.

JAX finds the other processes itself (`jax.distributed.initialize` without arguments). This module
decides whether JAX has to find the processes, and by which method.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdist.config import launch_variables


@dataclass(frozen=True)
class Launcher:
    """A program that started this process as one of several.

    `method` is JAX's name of the method that finds the other processes; None lets JAX choose.
    """

    name: str
    method: str | None = None


_COUNTS = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI",
    "PMI_SIZE": "MPI",
    "MV2_COMM_WORLD_SIZE": "MVAPICH",
}
_OF_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID")


def launcher() -> Launcher | None:
    """Return the launcher that started this process as one of several; None without one."""
    names = launch_variables()
    if _is_several(names.get("SLURM_NTASKS")) and all(name in names for name in _OF_SLURM):
        return Launcher("Slurm", "slurm")
    for count, name in _COUNTS.items():
        if _is_several(names.get(count)):
            # JAX reads the older of Open MPI's two ways to name the first process.
            return Launcher(name, "ompi" if "OMPI_MCA_orte_hnp_uri" in names else "mpi4py")
    if "JOB_COMPLETION_INDEX" in names and "KUBERNETES_SERVICE_HOST" in names:
        return Launcher("Kubernetes")  # JAX has no name for the way, and finds it by itself
    if "," in names.get("TPU_WORKER_HOSTNAMES", "") or "MEGASCALE_COORDINATOR_ADDRESS" in names:
        return Launcher("Cloud TPU")
    return None


def _is_several(count: str | None) -> bool:
    return count is not None and count.isdecimal() and int(count) > 1
