"""Compute a product with its operands exchanged where only the transposed result is used.

JAX writes the gradient of `x @ w` for `w` as a transposed product, (g^T x)^T. XLA's compiler for
CPUs computes what it is told: it copies g into another order, and computes g again to do so where
g is a fusion. x^T g needs neither copy nor transposition. Compilers for GPUs and TPUs choose the
order of the dimensions in memory themselves, so this pass runs for CPUs.

Before:  %a = jax.dot_general(%g, %x)   %b = jax.transpose(%a) {permutation=(1, 0)}
After:   %b = jax.dot_general(%x, %g)

Each element is the sum of the same products, which a kernel may add in another order. Left alone: a
product whose result is also used untransposed, since it would be computed twice, and permutations
that do more than exchange the dimensions of the two operands.
"""

from __future__ import annotations

from graphdist.ir.graph import Graph, Node, Operands
from graphdist.ir.jax_parameters import exchanged_product, parameter
from graphdist.ir.rewrite import Answer, Rewriter, rewrite

NAME = "fold_transposes"


def fold_transposes(graph: Graph) -> Graph:
    """Return the graph with transposed products replaced by products of exchanged operands."""
    return rewrite(graph, _exchanged, NAME, {"jax.transpose"})


def _exchanged(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    product = rewriter.definition(operands[0], "jax.dot_general")
    if product is None or rewriter.uses(operands[0]) != 1:
        return None
    left, right = product.operands
    contracted, batched = parameter(product, "dimension_numbers")
    batch, rank = len(batched[0]), len(operands[0].type.shape)
    middle = len(left.type.shape) - len(contracted[0])
    exchange = (*range(batch), *range(middle, rank), *range(batch, middle))
    if parameter(node, "permutation") != exchange:
        return None
    result = node.results[0]
    return rewriter.add(
        product.op,
        (right, left),
        exchanged_product(product),
        at=product.source,
        types=[result.type],
        hint=result.hint,
    )
