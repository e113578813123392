"""Distributed datasets as functions loop over them: stacked in a graph, or joined by `zip`.

A function that loops over datasets has no graph of its own, since the host runs it. The graph that
people read is traced with `StackedElements` in place of each dataset, and has a loop over them. A
loop over `zip` of datasets runs in chunks, as over a single dataset: the input of a step is the
input of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import prod
from typing import Any, NoReturn  # Any: users' states and elements

import jax

from graphdist.data.chunks import MOST_BYTES, Chunk, ChunkSize, Step, StepInput
from graphdist.data.dataset_reduction import MOST_STEPS, as_array, in_steps
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.data.failures import made_from
from graphdist.errors import UnsupportedError
from graphdist.values.specs import ArraySpec, PerReplicaSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StackedElements:
    """Elements of a dataset along a new first dimension, or the specs of such arrays."""

    elements: Any

    def reduce(
        self,
        initial_state: Any,
        reduce_func: Callable[[Any, Any], Any],
        *,
        steps_per_execution: int | None = None,
    ) -> Any:
        """Return the last of the states, as `DistributedDataset.reduce` does, by a loop."""
        return in_steps(reduce_func, jax.tree.map(as_array, initial_state), self.elements)

    def __iter__(self) -> NoReturn:
        raise UnsupportedError(
            "an iterator over a dataset is read inside a function, where only loops have elements",
            hint="loop with `for batch in dataset`, or trace the function of one step",
        )


def stacked_specs(arguments: Any, steps: int | None) -> Any:
    """Return arguments with the specs of `steps` stacked elements in place of each dataset.

    If `steps` is None, the number is the largest that a chunk may have.
    """

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, DistributedDataset):
            return leaf
        specs = leaf.element_spec
        size = sum(map(_bytes, jax.tree.leaves(specs)))
        count = steps or min(MOST_STEPS, max(MOST_BYTES // max(size, 1), 1))
        return StackedElements(jax.tree.map(lambda spec: _stacked(spec, count), specs))

    return jax.tree.map(of, arguments)


def _shapes(spec: ArraySpec | PerReplicaSpec) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the replicas' parts, or the one shape of an array.

    The result is empty if a size is not known.
    """
    if isinstance(spec, PerReplicaSpec):
        return spec.traced_shapes or ()
    return () if spec.traced_shape is None else (spec.traced_shape,)


def _bytes(spec: ArraySpec | PerReplicaSpec) -> int:
    return sum(map(prod, _shapes(spec))) * spec.dtype.itemsize


def _stacked(spec: ArraySpec | PerReplicaSpec, count: int) -> ArraySpec | PerReplicaSpec:
    shapes = tuple((count, *shape) for shape in _shapes(spec))
    if isinstance(spec, PerReplicaSpec):
        return PerReplicaSpec((count, *spec.shape), spec.dtype, shapes or None, spec.strategy)
    return ArraySpec((count, *spec.shape), spec.dtype, shapes[0] if shapes else None)


class ZippedDatasets:
    """Tuples of the elements of several distributed datasets; the shortest dataset ends them."""

    def __init__(self, datasets: Sequence[DistributedDataset[Any]]) -> None:
        """Take the datasets, which have one strategy."""
        self._datasets = datasets

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self._datasets, strict=False)

    def chunks(self, size: ChunkSize, most: int | None = None) -> Iterator[Chunk]:
        """Return the tuples, `most` of them at most, stacked to chunks by a thread."""
        begun = [dataset.begin_steps() for dataset in self._datasets]
        steps = map(_joined, islice(zip(*(steps for steps, _ in begun), strict=False), most))
        orders = list(chain.from_iterable(orders for _, orders in begun))
        return self._datasets[0].chunks_of(steps, orders, size)


def zipped(iterables: Sequence[Any]) -> Any:
    """Return the iterable for a loop over `zip(*iterables)`.

    Datasets of several workers are not stacked, since the workers agree on each element of each
    dataset.
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
