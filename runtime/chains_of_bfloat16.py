"""Chains of elementwise operations on bfloat16, which are rounded once, in programs for CPUs.

XLA computes an operation on bfloat16 in float32 and rounds the result. Its compilers for GPUs and
TPUs leave out the roundings between operations that they fuse (`xla_allow_excess_precision`), the
one for CPUs does not, and rounding takes more instructions than what is rounded. So here a result
stays in float32 if one elementwise operation uses it and nothing else does. A value with several
uses is rounded, since XLA might keep it in the memory, where bfloat16 has half the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from graphdist.ir.analyses import users
from graphdist.ir.arrays import Array
from graphdist.ir.graph import Graph, Node, Value
from graphdist.ir.operation_table import ELEMENTWISE
from graphdist.runtime.bind_primitive import Bind, bind_jax_node

CONVERSION = "jax.convert_element_type"
_OPERATIONS = ELEMENTWISE - {
    CONVERSION,
    "jax.bitcast_convert_type",
    "jax.nextafter",
    "jax.reduce_precision",
    "scale",
}
"""Elementwise operations of JAX that approximate in float32 what they compute in bfloat16."""


def chains_of_bfloat16(graph: Graph) -> Mapping[Node, Bind]:
    """Return how to apply each node of a chain, so that only the last result is rounded.

    The nodes of nested graphs are left out.
    """
    uses, outputs = users(graph), {each for each in graph.outputs if type(each) is Value}
    chains: dict[Node, Bind] = {}
    for node in graph.nodes:
        if not _begins(node) or node.results[0] in outputs:
            continue
        match uses[node.results[0]]:
            case (following,) if _continues(node, following):
                chains[node] = partial(_bind, is_rounded=False)
                chains[following] = partial(_bind, is_rounded=_is_on_bfloat16(following))
    return chains


def _begins(node: Node) -> bool:
    """Return whether a node may leave its result in float32."""
    return _is_on_bfloat16(node) or _converts(node, "f32", "bf16")


def _continues(node: Node, following: Node) -> bool:
    """Return whether a node may leave its result in float32 for the one that uses it.

    A conversion to bfloat16 and back is no chain: it is written to round.
    """
    is_on_result = _is_on_bfloat16(node) and _converts(following, "bf16", "f32")
    return _is_on_bfloat16(following) or is_on_result


def _is_on_bfloat16(node: Node) -> bool:
    return node.op.name in _OPERATIONS and node.results[0].type.dtype == "bf16"


def _converts(node: Node, before: str, after: str) -> bool:
    if node.op.name != CONVERSION:
        return False
    return (node.operands[0].type.dtype, node.results[0].type.dtype) == (before, after)


def _bind(
    node: Node, operands: Sequence[jax.Array | Array], *, is_rounded: bool
) -> list[jax.Array]:
    wide = [_in_float32(jnp.asarray(operand)) for operand in operands]
    results = wide if node.op.name == CONVERSION else bind_jax_node(node, wide)
    return [result.astype(jnp.bfloat16) for result in results] if is_rounded else results


def _in_float32(operand: jax.Array) -> jax.Array:
    return operand.astype(jnp.float32) if operand.dtype == jnp.bfloat16 else operand
