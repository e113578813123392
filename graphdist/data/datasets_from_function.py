"""Distributed datasets of the datasets that a user's function returns.

Each element of such a dataset is the batch of one replica, and is not split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any  # Any: whatever the function returns

import jax
import numpy as np

from graphdist.data.adapters import DatasetSource, dataset_source
from graphdist.data.chunks import Step, StepInput
from graphdist.data.distributed_dataset import (
    Begun,
    DistributedDataset,
    PlaceParts,
    refuse_distributed,
)
from graphdist.data.elements import Array, Flat, leaf_name
from graphdist.data.input_options import InputContext
from graphdist.data.positions import Position
from graphdist.data.sources import DatasetNode
from graphdist.errors import BatchDimensionError, DatasetError
from graphdist.values.distributed import Shapes
from graphdist.values.specs import Dimensions
from graphdist.values.type_variables import Element_co

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase

_NOTHING = object()
"""Stands for the element of a replica that gets none in the last step."""


class DistributedDatasetsFromFunction(DistributedDataset[Element_co]):
    """Batches of single replicas, `num_replicas` of which make a step.

    Made by `Strategy.distribute_datasets_from_function`. `dataset_fn` is called with one context,
    and the replicas get the elements of its dataset in turn. Or it is called with one context for
    each replica, and each replica iterates a dataset of its own. In the last step, a replica
    without an element gets arrays without rows. If the dataset declares the full shape of its
    elements (`drop_remainder`), such a step is left out, as in `tf.distribute`.

    >>> import graphdist as gd
    >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    >>> dataset = strategy.distribute_datasets_from_function(
    ...     lambda context: gd.data.Dataset.range(6).batch(2))
    >>> for batch in dataset:
    ...     print([part.tolist() for part in batch.values])
    [[0, 1], [2, 3]]
    [[4, 5], []]
    """

    def __init__(
        self,
        dataset_fn: Callable[[InputContext], Any],
        contexts: Sequence[InputContext],
        strategy: StrategyBase,
        place: PlaceParts,
        ahead: int,
    ) -> None:
        """Call the function with each context; raises `DatasetError` when it returns no dataset."""
        first, *others = [_returned(dataset_fn, context) for context in contexts]
        super().__init__(first, strategy, place, ahead)
        self._others = [dataset_source(dataset).node for dataset in others]

    def _datasets(self) -> list[DatasetNode]:
        return [self._source.node, *self._others]

    def _start(self, taken: int) -> int:
        return taken if self._others else taken * len(self._local)

    def _inputs(self, begun: Begun) -> Iterator[Any]:
        sources = begun.sources if self._others else begun.sources * len(self._local)
        return self._complete(zip_longest(*sources, fillvalue=_NOTHING))

    def _complete(self, steps: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the steps, without a last step that lacks elements of a fixed shape."""
        for step in steps:
            elements = [element for element in step if element is not _NOTHING]
            if len(elements) < len(step) and self._source.declares:
                self._checked(elements[0])
                if not any(None in leaf.shape for leaf in jax.tree.leaves(self._spec)):
                    return
            yield step

    def _check_declared(self) -> None:
        """Accept any dataset, since no element is split."""

    def _source_of(self, dataset: Any) -> DatasetSource:
        return dataset_source(dataset)  # its context told the function which part to make

    def _divide(self, position: Position) -> None:
        """Do nothing: `dataset_fn` decides which part of the input it makes."""

    @property
    def _divided_by(self) -> int | None:
        return self.strategy.devices.num_pipelines

    def _steps_of(self, element: tuple[Any, ...]) -> list[Step]:
        flat = [self._checked(part) for part in element if part is not _NOTHING]
        rest = iter(flat)
        empty = None
        if len(flat) < len(element):
            empty = _without_rows(flat[0], len(flat), len(element))
        arrays = [empty if part is _NOTHING else next(rest).arrays for part in element]
        return [StepInput(flat[0].structure, list(zip(*arrays, strict=True)))]

    def _dimensions(self, dimensions: Dimensions) -> Dimensions:
        return dimensions

    def _shapes(self, first: Flat) -> Sequence[Shapes]:
        return [(array.shape,) for array in first.arrays]


def _returned(dataset_fn: Callable[[InputContext], Any], context: InputContext) -> Any:
    """Return the dataset that a function makes of a context.

    Raises `DatasetError` when the function returns None or a distributed dataset.
    """
    dataset = dataset_fn(context)
    if dataset is None:
        raise DatasetError(
            "dataset_fn returned None, not a dataset",
            hint="return the dataset of per-replica batches",
        )
    refuse_distributed(dataset)
    return dataset


def _without_rows(like: Flat, elements: int, replicas: int) -> list[Array]:
    """Return arrays with the dtypes and inner shapes of the element `like`, and no rows.

    Raises `BatchDimensionError` for a scalar. The step has `elements` elements for `replicas`
    replicas.
    """
    for index, array in enumerate(like.arrays):
        if array.ndim == 0:
            raise BatchDimensionError(
                f"the last step has elements for {elements} of {replicas} replicas, and the others "
                f"cannot have zero rows of {leaf_name(like.element, index)}, which is a scalar",
                hint=f"give a multiple of {replicas} elements, or batches",
            )
    return [np.zeros((0, *array.shape[1:]), array.dtype) for array in like.arrays]
