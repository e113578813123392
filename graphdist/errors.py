"""The error classes of the public API, in one place.

Those of the graph come from `graphdist.ir.errors`, those of devices and steps from
`graphdist.runtime`.

The renderer is `GraphdistError.__str__`: what disagrees, the user's line, the node and pass, what
to do.
"""

from __future__ import annotations

from graphdist.ir.errors import (
    DistributionError,
    GraphdistError,
    ParseError,
    TypeRuleError,
    VerifyError,
)
from graphdist.runtime.buffers import RuntimeFailure
from graphdist.runtime.compilation import CompilerOptionError, DeviceMemoryError
from graphdist.runtime.devices import DeviceError
from graphdist.runtime.files.artifact import ArtifactError
from graphdist.runtime.files.checkpoint_files import CheckpointError, UnreadableCheckpointError
from graphdist.runtime.invalid_numbers import InvalidNumberError
from graphdist.runtime.processes.addresses import WorkerError
from graphdist.runtime.processes.cluster_workers import CollectiveTimeoutError
from graphdist.runtime.processes.workers import WorkerTimeoutError
from graphdist.runtime.targets.topologies import MissingExtraError
from graphdist.tracing.state import TraceError

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ArtifactError",
    "BatchDimensionError",
    "CheckpointError",
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
    "RuntimeFailure",
    "TraceError",
    "TypeRuleError",
    "UnmatchedError",
    "UnreadableCheckpointError",
    "UnsupportedError",
    "VerifyError",
    "WorkerError",
    "WorkerTimeoutError",
]


class ArgumentError(GraphdistError, ValueError):
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


class ArgumentTypeError(GraphdistError, TypeError):
    """An argument of a kind that cannot be used, such as a string where an array belongs."""


class UnsupportedError(GraphdistError, NotImplementedError):
    """A combination that has no meaning, or none that was defined."""


class ContextError(GraphdistError, RuntimeError):
    """A call in the wrong context: `run` inside `run`, say, or `reduce` in replica context."""


class MissingContextError(ContextError, AttributeError):
    """Something is asked of the replica context where there is none.

    `tf.distribute` gives None there, of which asking is an `AttributeError`.
    """


class DatasetError(ArgumentTypeError, AttributeError):
    """What is given as a dataset is none, or it is one that cannot be transformed.

    `tf.distribute` raises `AttributeError` for both.
    """


class BatchDimensionError(ArgumentError, IndexError):
    """A value without a batch dimension, where rows are to be split or left out."""


class UnmatchedError(CheckpointError, AssertionError):
    """A checkpoint and objects of which one has entries that the other has not."""


class OutOfRangeError(GraphdistError, IndexError):
    """An iterator is asked for an element past its last."""


class ClusterError(ArgumentError, KeyError):
    """Clusters that do not go together, or a task that is not in one."""

    __str__ = GraphdistError.__str__  # KeyError quotes


for _name in __all__:  # a traceback names them where users find them
    globals()[_name].__module__ = __name__
