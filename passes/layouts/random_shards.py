"""Generate only each replica's shard of random bits, if nothing uses the bits unsharded.

Before:  %b = jax.random_bits(%key) {shape=(8,), bit_width=32}   %s = own_slice(%b) {axis=0, ..}
After:   %s = random_shard(%key) {shape=(8,), bit_width=32, axis=0, ..}

The bits are the same: JAX's default generator, threefry, hashes the index of each element alone.

Left alone: bits that are also used unsharded, several keys at once, and other generators.
"""

from __future__ import annotations

from graphdist.ir.analyses import operations, use_counts, users
from graphdist.ir.graph import Graph, Node, Operands
from graphdist.ir.ops import OWN_SLICE, RANDOM_SHARD
from graphdist.ir.rewrite import Answer, Rewriter, rewrite

NAME = "random_shards"
_RANDOM_BITS = "jax.random_bits"
_KEY = ("key<fry>", ())
"""The dtype and the shape of one key of threefry."""


def random_shards(graph: Graph) -> Graph:
    """Return the graph in which shards of random bits are generated from the key."""
    if _RANDOM_BITS not in operations(graph):
        return graph
    return rewrite(graph, _rule, NAME, {OWN_SLICE.name})


def _rule(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    made = rewriter.definition(operands[0], _RANDOM_BITS)
    if made is None or made.operands[0].type[:2] != _KEY:
        return None
    bits, graph = node.operands[0], rewriter.graph
    using = users(graph)[bits]
    is_output = len(using) < use_counts(graph)[bits]  # an own_slice has one operand
    if is_output or any(user.op is not OWN_SLICE for user in using):
        return None
    drawn = {name: made.params[name] for name in ("shape", "bit_width")}
    params, hint = {**node.params, **drawn}, node.results[0].hint
    return rewriter.add(RANDOM_SHARD, made.operands, params, at=made.source, hint=hint)
