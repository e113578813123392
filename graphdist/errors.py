"""The error classes of the public API, in one place.

Errors of the graph are defined in `graphdist.ir.errors`, errors of devices and steps in
`graphdist.runtime`. The errors that are defined here name the user's current line by themselves.
`GraphdistError.__str__` renders all of them: what disagrees, the user's line, the node and pass,
and a hint.
"""

from __future__ import annotations

import threading

from graphdist.ir.errors import (
    DistributionError,
    GraphdistError,
    ParseError,
    PlanError,
    RuntimeFailure,
    TypeRuleError,
    VerifyError,
)
from graphdist.ir.source import Source
from graphdist.runtime.compilation import CompilerOptionError, DeviceMemoryError
from graphdist.runtime.extras import MissingExtraError
from graphdist.runtime.files.artifact import ArtifactError
from graphdist.runtime.files.checkpoint_files import CheckpointError, UnreadableCheckpointError
from graphdist.runtime.invalid_numbers import InvalidNumberError
from graphdist.runtime.processes.addresses import WorkerError
from graphdist.runtime.processes.cluster_workers import CollectiveTimeoutError
from graphdist.runtime.processes.workers import WorkerTimeoutError
from graphdist.runtime.targets.topologies import DeviceError
from graphdist.tracing.trace_in_progress import TraceError
from graphdist.tracing.user_lines import here

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ArtifactError",
    "BatchDimensionError",
    "CheckpointError",
    "ClosureCancelledError",
    "ClusterError",
    "CollectiveTimeoutError",
    "CompilerOptionError",
    "ContextError",
    "DatasetError",
    "DeviceError",
    "DeviceMemoryError",
    "DistributionError",
    "GraphdistError",
    "InvalidNumberError",
    "MissingContextError",
    "MissingExtraError",
    "OutOfRangeError",
    "ParseError",
    "PlanError",
    "RuntimeFailure",
    "ServerLostError",
    "TraceError",
    "TypeRuleError",
    "UnmatchedError",
    "UnreadableCheckpointError",
    "UnsupportedError",
    "VerifyError",
    "WorkerError",
    "WorkerTimeoutError",
]


def users_line() -> Source | None:
    """Return the user's current line; None in a thread of graphdist's own."""
    line = here()
    return None if line.frame is None or line.frame.file == threading.__file__ else line


class _ErrorAtUsersLine(GraphdistError):
    """An error that names the user's current line by itself, if this thread runs one."""

    default_source = staticmethod(users_line)


class ArgumentError(_ErrorAtUsersLine, ValueError):
    """An argument of the right kind with a value that cannot be used.

    >>> import graphdist as gd
    >>> gd.get_strategy().reduce("PRODUCT", 1.0, axis=None)
    Traceback (most recent call last):
    ...
    graphdist.errors.ArgumentError: reduce op 'PRODUCT' is not one of SUM, MEAN
      <doctest graphdist.errors.ArgumentError[1]>:1, in <module>
        gd.get_strategy().reduce("PRODUCT", 1.0, axis=None)
      hint: for another reduction gather the values, then reduce them with jax.numpy
    """


class ArgumentTypeError(_ErrorAtUsersLine, TypeError):
    """An argument of a kind that cannot be used, such as a string where an array belongs."""


class UnsupportedError(_ErrorAtUsersLine, NotImplementedError):
    """A combination of features that has no defined meaning."""


class ContextError(_ErrorAtUsersLine, RuntimeError):
    """A call in the wrong context: `run` inside `run`, say, or `reduce` in replica context."""


class MissingContextError(ContextError, AttributeError):
    """An attribute of the replica context is used where there is no replica context.

    In `tf.distribute` the replica context is None there, so its use raises `AttributeError`.
    """


class DatasetError(ArgumentTypeError, AttributeError):
    """A value that is not a dataset, or a dataset that cannot be transformed.

    `tf.distribute` raises `AttributeError` for both.
    """


class BatchDimensionError(ArgumentError, IndexError):
    """A value without a batch dimension, whose rows would be split or left out."""


class UnmatchedError(CheckpointError, AssertionError):
    """A checkpoint has entries that the objects lack, or lacks entries that the objects have."""


class OutOfRangeError(_ErrorAtUsersLine, IndexError):
    """An iterator has no further element."""


class ClosureCancelledError(GraphdistError, RuntimeError):
    """A scheduled function that was not run, or whose result is lost.

    Another function failed before this one was run, no worker was left, or the strategy was shut
    down.
    """


class ServerLostError(GraphdistError, RuntimeError):
    """A parameter server has died, so that the values of its variables are lost."""


class ClusterError(ArgumentError, KeyError):
    """Clusters that contradict each other, or a task that its cluster does not have."""

    __str__ = GraphdistError.__str__  # KeyError would quote the message


for _name in __all__:  # tracebacks name the classes by the module where users find them
    globals()[_name].__module__ = __name__
