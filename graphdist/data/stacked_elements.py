"""The elements of a distributed dataset in a graph: as many as a chunk has, stacked.

A function that loops over datasets has no graph of its own, since the host runs it. Its graph for
people to read is traced with `StackedElements` in place of each dataset, and has a loop over them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn  # Any: users' states and elements

import jax

from graphdist.data.chunks import MOST_BYTES
from graphdist.data.dataset_reduction import MOST_STEPS, as_array, in_steps
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.errors import UnsupportedError
from graphdist.tracing.user_lines import here
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
            "an iterator over a dataset has no elements in a graph: loops over the dataset have",
            source=here(),
            hint="loop with `for batch in dataset`, or trace the function of one step",
        )


def stacked_specs(arguments: Any, steps: int | None) -> Any:
    """Return arguments with the specs of so many stacked elements in place of each dataset.

    Without a number as many as a chunk has at most.
    """

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, DistributedDataset):
            return leaf
        specs = leaf.element_spec
        size = sum(map(_bytes, jax.tree.leaves(specs)))
        number = steps or min(MOST_STEPS, max(MOST_BYTES // max(size, 1), 1))
        return StackedElements(jax.tree.map(lambda spec: _stacked(spec, number), specs))

    return jax.tree.map(of, arguments)


def _shapes(spec: ArraySpec | PerReplicaSpec) -> tuple[tuple[int, ...], ...]:
    """Return the shape of each replica's part, one alone if they are equal."""
    if isinstance(spec, PerReplicaSpec):
        return spec.traced_shapes or ()
    return () if spec.traced_shape is None else (spec.traced_shape,)


def _bytes(spec: ArraySpec | PerReplicaSpec) -> int:
    return sum(map(prod, _shapes(spec))) * spec.dtype.itemsize


def _stacked(spec: ArraySpec | PerReplicaSpec, number: int) -> ArraySpec | PerReplicaSpec:
    shapes = tuple((number, *shape) for shape in _shapes(spec))
    if isinstance(spec, PerReplicaSpec):
        return PerReplicaSpec((number, *spec.shape), spec.dtype, shapes or None, spec.strategy)
    return ArraySpec((number, *spec.shape), spec.dtype, shapes[0] if shapes else None)
