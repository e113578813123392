"""Maps the leaves of a function's arguments and results to inputs and outputs of its graph.

The arrays of a result are outputs of the graph. The other leaves of a result are stored at the
trace. Every call returns them between the outputs, as the result's structure says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any  # Any: users' results

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.program.argument_keys import LeafKey, is_static
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.slots import Slot
from graphdist.values.distributed import (
    Mirrored,
    PerReplica,
    Shapes,
    TracedParts,
    TracedPerReplica,
    is_array,
    put_together,
)


@dataclass
class Interface:
    """The leaves of arguments and results, as inputs and outputs of the graph."""

    keys: tuple[LeafKey, ...]
    names: list[str]
    strategy: StrategyBase
    paths: tuple[str, ...] = ()
    """The path of each leaf of the arguments in `(args, kwargs)`."""
    structure: Any = None
    statics: list[Any] = field(default_factory=list)
    """The leaves of the result; `OUTPUT` instead of each array."""
    per_replica: list[bool] = field(default_factory=list)
    """For each output, whether it becomes a per-replica value."""
    shapes: list[Shapes | None] = field(default_factory=list)
    """For each output, its shape on each replica; None if all shapes are equal."""
    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By index, the number of rows on each replica of outputs computed from unequal rows."""

    @property
    def dynamic(self) -> list[int]:
        """Return the indices of the leaves of the arguments that are inputs."""
        return [index for index, key in enumerate(self.keys) if not is_static(key)]


OUTPUT = object()


class _Parts:
    """A per-replica leaf whose components are Python values or components of outputs."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = [OUTPUT if isinstance(part, Slot) else part for part in parts]

    def filled(self, results: Iterator[Any]) -> PerReplica:
        return PerReplica(
            [
                next(results).values[replica] if part is OUTPUT else part
                for replica, part in enumerate(self._parts)
            ]
        )


class MirroredLeaf:
    """A leaf of the result that is a `Mirrored` value."""

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas

    def filled(self, results: Iterator[Any]) -> Mirrored:
        """Return the leaf with the next output."""
        return Mirrored(next(results), self.num_replicas)


def output_arrays(result: Any, interface: Interface) -> list[Any]:
    """Return the arrays of a result; store its structure and other leaves in `interface`."""
    leaves, interface.structure = jax.tree.flatten(
        result, is_leaf=lambda leaf: isinstance(leaf, PerReplica | Mirrored)
    )
    interface.statics, interface.per_replica, interface.shapes = [], [], []
    outputs: list[Any] = []

    def add(array: Any, per_replica: bool, shapes: Shapes | None) -> None:
        outputs.append(jnp.asarray(array))
        interface.per_replica.append(per_replica)
        interface.shapes.append(shapes)

    for leaf in map(put_together, leaves):
        interface.statics.append(OUTPUT)
        if isinstance(leaf, TracedPerReplica):
            add(leaf.local, True, leaf.shapes)
        elif isinstance(leaf, TracedParts):
            arrays = [part for part in leaf.parts if isinstance(part, Slot)]
            interface.statics[-1] = _Parts(leaf.parts)
            for part in arrays:
                add(part.array, True, (part.shape,) * len(leaf.parts))
        elif isinstance(leaf, Mirrored):
            interface.statics[-1] = MirroredLeaf(leaf.num_replicas)
            add(leaf.array, False, None)
        elif is_array(leaf):
            add(leaf, False, None)
        else:
            # The gradient of an integer is a tracer of dtype float0, which devices cannot hold.
            is_float0 = getattr(leaf, "dtype", None) == jax.dtypes.float0
            interface.statics[-1] = np.zeros(leaf.shape, leaf.dtype) if is_float0 else leaf
    return outputs


def filled(leaf: Any, results: Iterator[Any]) -> Any:
    """Return a leaf of the result, with the next outputs in `results` if it has arrays."""
    if leaf is OUTPUT:
        return next(results)
    return leaf.filled(results) if isinstance(leaf, _Parts | MirroredLeaf) else leaf
