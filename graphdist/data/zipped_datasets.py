"""Distributed datasets whose elements come together, as pairs do from `zip`, in loops of functions.

A loop runs over them in chunks, as over a single dataset: a step's input is the input of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any  # Any: elements

import jax

from graphdist.data.chunks import Chunk, ChunkSize, Step, StepInput
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.data.failures import made_from
from graphdist.data.stacked_elements import StackedElements


class ZippedDatasets:
    """Tuples of the elements of several distributed datasets, as many as the shortest has."""

    def __init__(self, datasets: Sequence[DistributedDataset[Any]]) -> None:
        """Take the datasets."""
        self._datasets = datasets

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self._datasets, strict=False)

    def chunks(self, size: ChunkSize, most: int | None = None) -> Iterator[Chunk]:
        """Return the tuples, `most` of them at most, stacked to chunks by a thread."""
        begun = [dataset.begin_steps() for dataset in self._datasets]
        steps = map(_joined, islice(zip(*(steps for steps, _ in begun), strict=False), most))
        draws = list(chain.from_iterable(draws for _, draws in begun))
        return self._datasets[0].chunks_of(steps, draws, size)


def zipped(iterables: Sequence[Any]) -> Any:
    """Return what a loop over `zip` of these iterates over.

    Several workers agree on the steps of each dataset by itself, element by element.
    """
    if all(isinstance(each, StackedElements) for each in iterables):
        elements = tuple(each.elements for each in iterables)
        shortest = min(leaf.shape[0] for leaf in jax.tree.leaves(elements))
        return StackedElements(jax.tree.map(lambda leaf: leaf[:shortest], elements))
    datasets = [each for each in iterables if isinstance(each, DistributedDataset)]
    can_be_stacked = len(datasets) == len(iterables) > 0 and all(
        dataset.strategy is datasets[0].strategy and dataset.workers is None for dataset in datasets
    )
    return ZippedDatasets(datasets) if can_be_stacked else zip(*iterables, strict=False)


def _joined(steps: Sequence[Step]) -> Step:
    def join(inputs: Sequence[StepInput]) -> StepInput:
        structure = jax.tree.structure(tuple(step.structure for step in inputs))
        return StepInput(structure, [parts for step in inputs for parts in step.parts])

    joined: Step = made_from(steps, join)
    return joined
