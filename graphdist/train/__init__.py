"""Checkpoints, and programs that resume where they stopped: `gd.train`."""

from graphdist.train.backup import BackupAndRestore
from graphdist.train.checkpoint import (
    Checkpoint,
    CheckpointOptions,
    latest_checkpoint,
    list_variables,
    load_variable,
)
from graphdist.train.exporting import export
from graphdist.train.loading import LoadedStatus, load
from graphdist.train.manager import CheckpointManager
from graphdist.train.name_maps import Reshaped, Transposed
from graphdist.train.preemption import PreemptionCheckpointHandler, TerminationConfig
from graphdist.train.status import LoadStatus

__all__ = [
    "BackupAndRestore",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "LoadStatus",
    "LoadedStatus",
    "PreemptionCheckpointHandler",
    "Reshaped",
    "TerminationConfig",
    "Transposed",
    "export",
    "latest_checkpoint",
    "list_variables",
    "load",
    "load_variable",
]
