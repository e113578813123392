"""A dataflow-graph compiler for distributed training: `tf.distribute`'s API on JAX and XLA."""

from graphdist import config
from graphdist.context import (
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from graphdist.errors import (
    ArgumentError,
    ArgumentTypeError,
    ContextError,
    DeviceError,
    DistributionError,
    GraphdistError,
    RuntimeFailure,
    TraceError,
)
from graphdist.function import Function, RetraceWarning, function
from graphdist.options import (
    ReduceOp,
    ValueContext,
    VariableAggregation,
    VariableSynchronization,
)
from graphdist.replica_context import ReplicaContext
from graphdist.signature import PerReplicaSpec
from graphdist.strategies.base import Strategy
from graphdist.strategies.mirrored import MirroredStrategy
from graphdist.strategies.one_device import OneDeviceStrategy
from graphdist.trees import assign, read, variables
from graphdist.values import DistributedValues, Mirrored, PerReplica
from graphdist.variables import Variable

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ContextError",
    "DeviceError",
    "DistributedValues",
    "DistributionError",
    "Function",
    "GraphdistError",
    "Mirrored",
    "MirroredStrategy",
    "OneDeviceStrategy",
    "PerReplica",
    "PerReplicaSpec",
    "ReduceOp",
    "ReplicaContext",
    "RetraceWarning",
    "RuntimeFailure",
    "Strategy",
    "TraceError",
    "ValueContext",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "assign",
    "config",
    "function",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "read",
    "variables",
]
