"""graphdist's datasets as data for `fit`, `evaluate` and `predict`.

Keras reads the data of other libraries through adapters. An instance of Keras's class `DataAdapter`
is used as the adapter.

Elements are global batches: an input, or a tuple of inputs, targets and weights of the rows. A
distributed dataset has placed the rows on the replicas already. The rows are copied back to the
host, because Keras reads a batch before a step splits the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any  # Any: pytrees of arrays

import jax
import numpy as np

from graphdist.data.dataset import Dataset
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.errors import ArgumentError, UnsupportedError
from graphdist.keras.unpublished_names import DataAdapter
from graphdist.strategy_base import StrategyBase
from graphdist.values.distributed import PerReplica, is_distributed


def adapt_datasets(method: str, arguments: dict[str, Any], strategy: StrategyBase | None) -> None:
    """Replace datasets of graphdist by adapters in the arguments of `fit`, `evaluate` or `predict`.

    `strategy` is the strategy of the model. Raises `ArgumentError` for targets or weights beside a
    dataset, `UnsupportedError` for a distributed dataset of several processes.
    """
    if _is_dataset(arguments.get("x")):
        for name in ("y", "sample_weight"):
            if arguments.get(name) is not None:
                raise ArgumentError(
                    f"{method} is given {name} beside a dataset, whose elements have it",
                    hint="make a dataset of tuples (x, y) or (x, y, sample_weight)",
                )
        class_weight = arguments.pop("class_weight", None)
        arguments["x"] = _adapter(arguments["x"], strategy, class_weight)
    if _is_dataset(arguments.get("validation_data")):
        arguments["validation_data"] = _adapter(arguments["validation_data"], strategy)


def _is_dataset(data: Any) -> bool:
    return isinstance(data, Dataset | DistributedDataset)


def _adapter(
    data: Any, strategy: StrategyBase | None, class_weight: dict[int, float] | None = None
) -> DatasetAdapter:
    workers = None if strategy is None else strategy.devices.workers
    if isinstance(data, DistributedDataset) and workers is not None:
        raise UnsupportedError(
            "a distributed dataset of several processes is given to a Keras model",
            hint="give it the dataset of global batches itself, the same in every process",
        )
    return DatasetAdapter(data, class_weight)


class DatasetAdapter(DataAdapter):
    """The batches of a dataset. Each epoch begins with the first batch."""

    batch_size = has_partial_batch = partial_batch_size = None
    """Not known before the batches are read."""

    def __init__(self, dataset: Any, class_weight: dict[int, float] | None = None) -> None:
        """Store a dataset of graphdist, and the weight of each class of rows."""
        self._dataset, self._class_weight = dataset, class_weight

    @property
    def num_batches(self) -> int | None:
        """Return the number of batches; None for an unknown or infinite number."""
        count = self._dataset.cardinality() if isinstance(self._dataset, Dataset) else -1
        return count if count >= 0 else None

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Yield batches as tuples of NumPy arrays."""
        for element in self._dataset:
            batch = jax.tree.map(_rows, element, is_leaf=is_distributed)
            yield self._weighted(batch if isinstance(batch, tuple) else (batch,))

    get_jax_iterator = get_numpy_iterator

    def _weighted(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._class_weight is None:
            return batch
        if len(batch) != 2:
            raise ArgumentError(
                f"class_weight is given for elements of length {len(batch)}, which are not (x, y)",
                hint="give elements (x, y), or weights of the rows instead of class_weight",
            )
        return (*batch, class_weights(batch[1], self._class_weight))


def class_weights(targets: Any, weights: dict[int, float]) -> np.ndarray[Any, Any]:
    """Return the weight of each row's class.

    The class is the row's target if the target is an integer, or else the index of the largest
    score. A class that is not in `weights` has weight 1.

    >>> class_weights(np.array([[0], [2]]), {0: 0.5}).tolist()
    [0.5, 1.0]
    """
    targets = np.asarray(targets)
    if targets.ndim > 1:
        is_scalar = targets.shape[-1] == 1
        targets = targets[..., 0] if is_scalar else targets.argmax(axis=-1)
    each = [weights.get(int(target), 1.0) for target in targets.ravel()]
    return np.array(each, np.float32).reshape(targets.shape)


def _rows(leaf: Any) -> Any:
    """Return an array of all rows, the rows of the first replica first."""
    if not isinstance(leaf, PerReplica):
        return np.asarray(leaf)
    return np.concatenate([np.asarray(part) for part in leaf.values])
