"""The workers of a trainer of Ray Train, asked inside its training function.

`JaxTrainer` initializes JAX on GPUs and TPUs, and not on CPUs: there each worker would train alone.
Ray tells each worker its rank, and carries a small value from rank 0 to the others.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NamedTuple  # Any: Ray, which is imported by the program


class RayTrainWorker(NamedTuple):
    """The rank of this worker, and the number of workers."""

    rank: int
    size: int


def ray_train_worker() -> RayTrainWorker | None:
    """Return this process as a worker of Ray Train; None outside a training function."""
    train: Any = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        rank, size = context.get_world_rank(), context.get_world_size()
    except (RuntimeError, AttributeError):  # no function of Ray Train runs
        return None
    return None if rank is None or size is None else RayTrainWorker(rank, size)


def own_address() -> str:
    """Return the IP address of this worker's node."""
    return str(import_module("ray").util.get_node_ip_address())


def from_rank_zero(text: str) -> str:
    """Return the text of rank 0; all workers call this function together."""
    return str(import_module("ray.train.collective").broadcast_from_rank_zero(text))
