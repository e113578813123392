"""Replace a sum over gathered values by a reduction of each replica's sum.

The pass `local_steps.py` must find the reductions of gradients. A mean of gathered gradients,
all_gather(g).mean(0), is a reduction, too: a sum along the dimension in which values are joined is
the sum over the replicas of each replica's own sum.

Before:  %all = all_gather(%g) {axis=0}   %s = jax.reduce_sum(%all) {axes=(0,)}
After:   %own = jax.reduce_sum(%g) {axes=(0,)}   %s = all_reduce(%own) {reducer="sum"}

A conversion in between, as in a mean of bfloat16, is applied before the reduction. Left alone:
gathers whose values have other uses, and sums that are not along the joined dimension.
"""

from __future__ import annotations

from graphdist.ir.graph import Graph, Node, Op, Operands
from graphdist.ir.jax_parameters import axes
from graphdist.ir.op_parameters import AlongAxis, Reducing
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, GATHER, REDUCE
from graphdist.ir.rewrite import Answer, Rewriter, rewrite
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code

NAME = "local_steps"

_REDUCTIONS: dict[Op, Op] = {GATHER: REDUCE, ALL_GATHER: ALL_REDUCE}
_CONVERT, _SUM = "jax.convert_element_type", "jax.reduce_sum"


def reduced_sums_of_gathers(graph: Graph) -> Graph:
    """Return the graph with reductions in place of gathers whose values are only added up."""
    made = rewrite(graph, _rule, NAME, {_SUM})
    return graph if made is graph else eliminate_dead_code(made)


def _rule(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    conversion = rewriter.definition(operands[0], _CONVERT)
    gathered = operands[0] if conversion is None else conversion.operands[0]
    gather = rewriter.definition(gathered, GATHER.name, ALL_GATHER.name)
    if gather is None or rewriter.uses(gathered) > 1 or rewriter.uses(operands[0]) > 1:
        return None
    params = AlongAxis.of(gather)
    if params.axis not in axes(node):
        return None
    own: Operands = gather.operands
    if conversion is not None:
        own = rewriter.again(conversion, own, [operands[0].type.shaped(own[0].type.shape)])
    own = rewriter.again(node, own)
    total = Reducing("sum", group_size=params.group_size)
    return rewriter.add(_REDUCTIONS[gather.op], own, total, at=gather.source)
