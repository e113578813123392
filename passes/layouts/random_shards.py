"""Generate only each replica's shard of random bits, if nothing uses the bits unsharded.

Before:  %b = jax.random_bits(%key) {shape=(8,), bit_width=32}   %s = own_slice(%b) {axis=0, ..}
After:   %s = random_shard(%key) {shape=(8,), bit_width=32, axis=0, ..}

The bits are the same: JAX's default generator, threefry, hashes the index of each element alone.

Left alone: bits that are also used unsharded, several keys at once, and other generators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from graphdist.ir.analyses import operations, users
from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.jax_parameters import parameter
from graphdist.ir.op_parameters import RandomBits
from graphdist.ir.ops import OWN_SLICE, RANDOM_SHARD
from graphdist.ir.rewrite import Rewriter, rewrite

NAME = "random_shards"
_RANDOM_BITS = "jax.random_bits"
_KEY = ("key<fry>", ())
"""The dtype and the shape of one key of threefry."""


def random_shards(graph: Graph) -> Graph:
    """Return the graph in which shards of random bits are generated from the key."""
    if not {_RANDOM_BITS, OWN_SLICE.name} <= operations(graph):
        return graph
    return rewrite(graph, partial(_rule, set(_used_in_shards(graph))), NAME, {OWN_SLICE.name})


def _used_in_shards(graph: Graph) -> Iterator[Operand]:
    """Yield the random bits that only own_slice nodes use."""
    using, outputs = users(graph), set(graph.outputs)
    for node in graph.nodes:
        for nested in node.graphs:
            yield from _used_in_shards(nested)
        if node.op.name == _RANDOM_BITS and node.operands[0].type[:2] == _KEY:
            (bits,) = node.results
            if bits not in outputs and all(user.op is OWN_SLICE for user in using[bits]):
                yield bits


def _rule(
    sharded: Collection[Operand], node: Node, operands: tuple[Operand, ...], rewriter: Rewriter
) -> Sequence[Operand] | None:
    made = rewriter.definition(operands[0], _RANDOM_BITS)
    if made is None or node.operands[0] not in sharded:
        return None
    slicing = OWN_SLICE.of(node)
    params = RandomBits(
        slicing.axis,
        parameter(made, "shape"),
        parameter(made, "bit_width"),
        group_size=slicing.group_size,
        num_groups=slicing.num_groups,
    )
    hint = node.results[0].hint
    return rewriter.add(RANDOM_SHARD, made.operands, params, at=made.source, hint=hint)
