"""graphdist's datasets as data for `fit`, `evaluate` and `predict`.

Keras takes data of other libraries through adapters. It takes an instance of its class
`DataAdapter` as it is, which has no public name: this module alone imports it.

Elements are global batches: an input, or a tuple of inputs, targets and weights of the rows. A
distributed dataset has placed the rows on the replicas already. They are taken back to the host,
since Keras looks at batches before a step splits them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any  # Any: pytrees of arrays

import jax
import numpy as np
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from graphdist.data.dataset import Dataset
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.errors import UnsupportedError
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import PerReplica


def adapted(data: Any, strategy: StrategyBase | None) -> Any:
    """Return what Keras takes for a dataset of graphdist; anything else as it is.

    `strategy` is the strategy of the model. Raises `UnsupportedError` for a distributed dataset of
    several processes.
    """
    if not isinstance(data, Dataset | DistributedDataset):
        return data
    workers = None if strategy is None else strategy.devices.workers
    if isinstance(data, DistributedDataset) and workers is not None:
        raise UnsupportedError(
            "a distributed dataset of several processes is given to a Keras model",
            source=here(),
            hint="give it the dataset of global batches itself, the same in every process",
        )
    return DatasetAdapter(data)


class DatasetAdapter(DataAdapter):
    """The batches of a dataset, from the first one in each epoch."""

    batch_size = has_partial_batch = partial_batch_size = None
    """Not known before the batches are there."""

    def __init__(self, dataset: Any) -> None:
        """Take a dataset of graphdist."""
        self._dataset = dataset

    @property
    def num_batches(self) -> int | None:
        """Return how many batches there are; None if it is not known, or there is no end."""
        count = self._dataset.cardinality() if isinstance(self._dataset, Dataset) else -1
        return count if count >= 0 else None

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Yield batches as tuples of NumPy arrays."""
        for element in self._dataset:
            batch = jax.tree.map(_rows, element, is_leaf=_is_per_replica)
            yield batch if isinstance(batch, tuple) else (batch,)

    get_jax_iterator = get_numpy_iterator


def _is_per_replica(leaf: Any) -> bool:
    return isinstance(leaf, PerReplica)


def _rows(leaf: Any) -> Any:
    """Return an array of all rows, the rows of the first replica first."""
    if not _is_per_replica(leaf):
        return np.asarray(leaf)
    return np.concatenate([np.asarray(part) for part in leaf.values])
