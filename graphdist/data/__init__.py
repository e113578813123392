"""Input: datasets, and their distribution over replicas."""

from graphdist.data.dataset import Dataset
from graphdist.data.datasets_from_function import DistributedDatasetsFromFunction
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.data.input_options import AutoShardPolicy, Options
from graphdist.data.iterators import DatasetIterator, DistributedIterator, OptionalElement
from graphdist.data.prefetch import AUTOTUNE
from graphdist.data.rebatching import batch_sizes_for_worker
from graphdist.data.sources import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from graphdist.data.transformations import SHARD_HINT
from graphdist.data.worker_input import auto_shard

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "SHARD_HINT",
    "UNKNOWN_CARDINALITY",
    "AutoShardPolicy",
    "Dataset",
    "DatasetIterator",
    "DistributedDataset",
    "DistributedDatasetsFromFunction",
    "DistributedIterator",
    "OptionalElement",
    "Options",
    "auto_shard",
    "batch_sizes_for_worker",
]
