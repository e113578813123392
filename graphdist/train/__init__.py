"""Checkpoints, and programs that go on where they were: `gd.train`."""

from graphdist.train.checkpoint import (
    Checkpoint,
    CheckpointOptions,
    latest_checkpoint,
    list_variables,
    load_variable,
)
from graphdist.train.manager import CheckpointManager
from graphdist.train.status import LoadStatus

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "LoadStatus",
    "latest_checkpoint",
    "list_variables",
    "load_variable",
]
