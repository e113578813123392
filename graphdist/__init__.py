"""A dataflow-graph compiler for distributed training: `tf.distribute`'s API on JAX and XLA."""

from graphdist import command_process  # noqa: F401  # first: importing JAX takes a second

# isort: split

from graphdist import (
    aot,
    cluster,
    config,
    coordinator,
    data,
    experimental,
    metrics,
    nn,
    random,
    train,
    viz,
)
from graphdist.context import has_strategy, in_cross_replica_context
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.data.input_options import InputContext, InputOptions, InputReplicationMode
from graphdist.data.iterators import DistributedIterator
from graphdist.errors import (
    ArgumentError,
    ArgumentTypeError,
    ArtifactError,
    BatchDimensionError,
    CheckpointError,
    ClosureCancelledError,
    ClusterError,
    CollectiveTimeoutError,
    CompilerOptionError,
    ContextError,
    DatasetError,
    DeviceError,
    DeviceMemoryError,
    DistributionError,
    GraphdistError,
    MissingContextError,
    MissingExtraError,
    OutOfRangeError,
    PlanError,
    RuntimeFailure,
    ServerLostError,
    TraceError,
    UnmatchedError,
    UnreadableCheckpointError,
    UnsupportedError,
    WorkerError,
    WorkerTimeoutError,
)
from graphdist.options import (
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
    ReduceOp,
    RunOptions,
    ValueContext,
    VariableAggregation,
    VariableSynchronization,
)
from graphdist.parameter_server.strategy import ParameterServerStrategy
from graphdist.passes.plan import Keep, Plan
from graphdist.planning.plan_function import plan
from graphdist.program.accumulation import accumulate
from graphdist.program.element_by_element import ElementByElementWarning
from graphdist.program.function import Function, function
from graphdist.program.kept_programs import RetraceWarning
from graphdist.state.sharded_variable import ShardedVariable
from graphdist.state.trees import assign, read, variables
from graphdist.state.variable import Variable
from graphdist.state.variable_updates import IndexedSlices
from graphdist.strategies.base import Strategy
from graphdist.strategies.central_storage import CentralStorageStrategy
from graphdist.strategies.cross_device_ops import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from graphdist.strategies.current import (
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
)
from graphdist.strategies.extended import StrategyExtended
from graphdist.strategies.mirrored import FullyShardedStrategy, MirroredStrategy
from graphdist.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
from graphdist.strategies.one_device import OneDeviceStrategy
from graphdist.strategies.replica_context import ReplicaContext
from graphdist.strategies.tpu import TPUStrategy
from graphdist.values.distributed import DistributedValues, Mirrored, PerReplica
from graphdist.values.replica_warnings import ReplicaWarning
from graphdist.values.specs import ArraySpec, PerReplicaSpec
from graphdist.version import VERSION

__version__ = VERSION

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ArraySpec",
    "ArtifactError",
    "BatchDimensionError",
    "CentralStorageStrategy",
    "CheckpointError",
    "ClosureCancelledError",
    "ClusterError",
    "CollectiveHints",
    "CollectiveTimeoutError",
    "CommunicationImplementation",
    "CommunicationOptions",
    "CompilerOptionError",
    "ContextError",
    "CrossDeviceOps",
    "DatasetError",
    "DeviceError",
    "DeviceMemoryError",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "DistributionError",
    "ElementByElementWarning",
    "FullyShardedStrategy",
    "Function",
    "GraphdistError",
    "HierarchicalCopyAllReduce",
    "IndexedSlices",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "Keep",
    "Mirrored",
    "MirroredStrategy",
    "MissingContextError",
    "MissingExtraError",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "OutOfRangeError",
    "ParameterServerStrategy",
    "PerReplica",
    "PerReplicaSpec",
    "Plan",
    "PlanError",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "ReplicaWarning",
    "RetraceWarning",
    "RunOptions",
    "RuntimeFailure",
    "ServerLostError",
    "ShardedVariable",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "TraceError",
    "UnmatchedError",
    "UnreadableCheckpointError",
    "UnsupportedError",
    "ValueContext",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "WorkerError",
    "WorkerTimeoutError",
    "accumulate",
    "aot",
    "assign",
    "cluster",
    "config",
    "coordinator",
    "data",
    "experimental",
    "experimental_set_strategy",
    "function",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "metrics",
    "nn",
    "plan",
    "random",
    "read",
    "train",
    "variables",
    "viz",
]
