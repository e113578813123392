"""Apply one JAX operation of a graph.

1. The node's primitive is bound with the node's own parameters: nothing is translated.
2. `bind_jax_node` takes everything that JAX takes, tracers included. `evaluate_jax_node` does the
   same on one device for the reference interpreter, whose values are NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.ir.arrays import Array
from graphdist.ir.graph import Node
from graphdist.ir.ops import RANDOM_SHARD
from graphdist.runtime.random_shard import all_bits

__all__ = ["bind_jax_node", "evaluate_jax_node"]


class _Primitive(Protocol):
    """The part of `jax.extend.core.Primitive` used here; in graphs it is an opaque object."""

    multiple_results: bool

    def bind(self, *operands: object, **params: object) -> Any: ...  # Any: one array, or several


def bind_jax_node(node: Node, operands: Sequence[jax.Array | Array]) -> list[jax.Array]:
    """Apply the node's primitive to the operands, under JAX's current trace."""
    primitive = cast(_Primitive, node.op.primitive)
    results = primitive.bind(*operands, **node.params)
    return list(results) if primitive.multiple_results else [results]


def evaluate_jax_node(node: Node, operands: Sequence[jax.Array | Array]) -> list[Array]:
    """Return the results as NumPy arrays; random keys, which NumPy lacks, stay JAX arrays.

    The result of a `random_shard` is the unsharded bits.

    >>> from graphdist.ir.graph import Op
    >>> negative = jax.make_jaxpr(jax.lax.neg)(1.0).eqns[0].primitive
    >>> node = Node(Op("jax.neg", primitive=negative), (), {}, (), ())
    >>> evaluate_jax_node(node, [np.float32([1, 2])])
    [array([-1., -2.], dtype=float32)]
    """
    if node.op is RANDOM_SHARD:
        return [np.asarray(all_bits(operands[0], RANDOM_SHARD.of(node)))]
    return [_to_numpy(result) for result in bind_jax_node(node, operands)]


def _to_numpy(array: jax.Array) -> Array:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return cast(Array, array)
    return np.asarray(array)
