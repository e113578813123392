"""How leaves of a function's arguments and results correspond to inputs and outputs of its graph.

Of a result arrays become outputs, anything else is kept as it is; a call puts both together again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any  # Any: users' results

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.program.signature import LeafKey
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.slots import Slot
from graphdist.values.distributed import (
    Mirrored,
    PerReplica,
    Shapes,
    TracedParts,
    TracedPerReplica,
    is_array,
)


@dataclass
class Interface:
    """How leaves of arguments and results correspond to inputs and outputs of the graph."""

    keys: tuple[LeafKey, ...]
    names: list[str]
    strategy: StrategyBase
    paths: tuple[str, ...] = ()
    """Of each leaf of the arguments, where it stands in `(args, kwargs)`."""
    structure: Any = None
    statics: list[Any] = field(default_factory=list)
    """Each leaf of the result that is not an array; `OUTPUT` where it is one."""
    per_replica: list[bool] = field(default_factory=list)
    """Of each output, whether the user gets it as one value a replica."""
    shapes: list[Shapes | None] = field(default_factory=list)
    """Of each output its shape on each replica, where they differ."""
    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Of outputs that come from unequal numbers of rows, how many each replica had."""


OUTPUT = object()


class _Parts:
    """A leaf of which each replica has a part: a Python value, or its component of an output."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = [OUTPUT if isinstance(part, Slot) else part for part in parts]

    def put_together(self, results: Iterator[Any]) -> PerReplica:
        return PerReplica(
            [
                next(results).values[replica] if part is OUTPUT else part
                for replica, part in enumerate(self._parts)
            ]
        )


class MirroredLeaf:
    """A leaf that is one value which every replica holds."""

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas

    def put_together(self, results: Iterator[Any]) -> Mirrored:
        """Return the leaf, with the next of the outputs."""
        return Mirrored(next(results), self.num_replicas)


def take_apart(result: Any, interface: Interface) -> list[Any]:
    """Return the arrays of a result, and note in the interface what else it is made of."""
    leaves, interface.structure = jax.tree.flatten(
        result, is_leaf=lambda leaf: isinstance(leaf, PerReplica | Mirrored)
    )
    interface.statics, interface.per_replica, interface.shapes = [], [], []
    outputs: list[Any] = []

    def add(array: Any, per_replica: bool, shapes: Shapes | None) -> None:
        outputs.append(jnp.asarray(array))
        interface.per_replica.append(per_replica)
        interface.shapes.append(shapes)

    for leaf in leaves:
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
            # The gradient of an integer: a tracer that stands for nothing.
            is_float0 = getattr(leaf, "dtype", None) == jax.dtypes.float0
            interface.statics[-1] = np.zeros(leaf.shape, leaf.dtype) if is_float0 else leaf
    return outputs


def filled(leaf: Any, results: Iterator[Any]) -> Any:
    """Return a leaf of the result, with the next of the outputs if it is one."""
    if leaf is OUTPUT:
        return next(results)
    return leaf.put_together(results) if isinstance(leaf, _Parts | MirroredLeaf) else leaf
