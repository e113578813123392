"""Checkpoints, and programs that resume where they stopped: `gd.train`."""

from graphdist.train.backup import BackupAndRestore
from graphdist.train.checkpoint import (
    Checkpoint,
    CheckpointOptions,
    latest_checkpoint,
    list_variables,
    load_variable,
)
from graphdist.train.manager import CheckpointManager
from graphdist.train.preemption import PreemptionCheckpointHandler, TerminationConfig
from graphdist.train.status import LoadStatus

__all__ = [
    "BackupAndRestore",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "LoadStatus",
    "PreemptionCheckpointHandler",
    "TerminationConfig",
    "latest_checkpoint",
    "list_variables",
    "load_variable",
]
