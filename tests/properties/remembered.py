"""Operations of JAX evaluated once on the same numbers.

The graphs of a history compute much of the same. An operation is looked up by its parameters and
the bits of its operands; one with an effect, or with parameters or operands that have no hash, is
evaluated.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from graphdist.ir.arrays import Array
from graphdist.ir.graph import Node
from graphdist.runtime.bind_primitive import evaluate_jax_node


class Remembered:
    """What evaluates operations of JAX for the interpreter, and remembers results."""

    def __init__(self) -> None:
        self._results: dict[Hashable, list[Array]] = {}

    def __call__(self, node: Node, operands: Sequence[Array]) -> list[Array]:
        """Return the results of an operation."""
        if node.op.has_effect or not all(isinstance(array, np.ndarray) for array in operands):
            return evaluate_jax_node(node, operands)
        bits = tuple((array.dtype, array.shape, array.tobytes()) for array in operands)
        key = node.op.name, tuple(node.params.items()), bits
        try:
            if key not in self._results:
                self._results[key] = evaluate_jax_node(node, operands)
        except TypeError:  # unhashable
            return evaluate_jax_node(node, operands)
        return self._results[key]
