"""Apply one JAX operation of a graph.

The node's primitive is bound with the node's own parameters, which are not translated. Only a
scatter-add gets a new function that adds, since a pass may have changed its dtype.
`bind_jax_node` takes all operands that JAX takes, tracers included. `evaluate_jax_node` is for the
reference interpreter, whose values are NumPy arrays on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast  # Any: primitives of JAX have no public type

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.ir.arrays import Array
from graphdist.ir.graph import Node
from graphdist.ir.ops import RANDOM_SHARD
from graphdist.runtime.random_shard import all_bits

Bind: TypeAlias = Callable[[Node, Sequence[jax.Array | Array]], list[jax.Array]]
"""A function that applies a node to its operands, as `bind_jax_node` does."""


def bind_jax_node(node: Node, operands: Sequence[jax.Array | Array]) -> list[jax.Array]:
    """Apply the node's primitive to the operands, under JAX's current trace."""
    if node.op.name == "jax.scatter-add":
        return [_scatter_add(node, *operands)]
    primitive: Any = node.op.primitive
    results = primitive.bind(*operands, **node.params)
    return list(results) if primitive.multiple_results else [results]


def _scatter_add(node: Node, operand: Any, indices: Any, updates: Any) -> jax.Array:
    names = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    params: dict[str, Any] = {name: node.params[name] for name in names}
    return jax.lax.scatter_add(operand, indices, updates, **params)


def evaluate_jax_node(node: Node, operands: Sequence[jax.Array | Array]) -> list[Array]:
    """Return the results of a node as NumPy arrays; random keys stay arrays of JAX.

    The result of a `random_shard` is the unsharded bits.

    >>> from graphdist.ir.graph import Op
    >>> negative = jax.make_jaxpr(jax.lax.neg)(1.0).eqns[0].primitive
    >>> node = Node(Op("jax.neg", primitive=negative), (), {}, (), ())
    >>> evaluate_jax_node(node, [np.float32([1, 2])])
    [array([-1., -2.], dtype=float32)]
    """
    if node.op is RANDOM_SHARD:
        return [np.asarray(all_bits(operands[0], RANDOM_SHARD.of(node)))]
    return [numpy_or_keys(result) for result in bind_jax_node(node, operands)]


def numpy_or_keys(array: jax.Array) -> Array:
    """Return an array as a NumPy array; random keys, which NumPy lacks, unchanged."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return cast(Array, array)
    return np.asarray(array)
