"""Move operations on sharded variables alone out of loops, so that they run once, before the loop.

A loop that has a variable as a constant converts the variable in each iteration. If the variable's
shards are converted before the loop, the narrow shards can be gathered once before the loop, or in
each iteration. `gather_positions.py` decides which.

Before:  %y = scan(%w, %x) { %all = all_gather(%w_in)  %n = convert(%all) .. }
After:   %all = all_gather(%w)  %n = convert(%all)  %y = scan(%n, %x) { .. %n_in .. }

Only all_gathers and cheap operations move. A cheap operation costs about as much as reading its
operands, and its results have no more bytes than its largest operand.
"""

from __future__ import annotations

from graphdist.ir.analyses import operations
from graphdist.ir.graph import Graph, Node, Operand, Operands, Value
from graphdist.ir.loops import Scan, ScanEdit
from graphdist.ir.ops import ALL_GATHER, SCAN
from graphdist.ir.rewrite import Answer, Rewriter, rewrite
from graphdist.passes.layouts.placed_values import is_cheap
from graphdist.passes.layouts.sharding_propagation import of_sharded_variables

NAME = "invariants_out_of_loops"


def invariants_out_of_loops(graph: Graph) -> Graph:
    """Return the graph that computes values of sharded variables alone in front of loops."""
    if not {SCAN.name, ALL_GATHER.name} <= operations(graph):
        return graph
    sharded = of_sharded_variables(graph)

    def rule(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
        scan = Scan(node, operands)
        outside: dict[Operand, Operand] = {value: operand for operand, value in scan.constants}
        moved: list[Node] = []
        for inner in scan.body.nodes:
            if _is_invariant(inner, outside, sharded):
                taken = [outside.get(operand, operand) for operand in inner.operands]
                results = rewriter.again(inner, taken)
                outside.update(zip(inner.results, results, strict=True))
                sharded.update(results)
                moved.append(inner)
        if not moved:
            return None
        edit = ScanEdit(scan, NAME)
        for result in (result for inner in moved for result in inner.results):
            edit.environment[result] = edit.add_constant(outside[result], result.hint)
        edit.keep_nodes(without=moved)
        return edit.finish(rewriter)

    return rewrite(graph, rule, NAME, {SCAN.name})


def _is_invariant(node: Node, outside: dict[Operand, Operand], sharded: set[Operand]) -> bool:
    """Return whether a node computes the same in each iteration, from sharded variables alone."""
    values = [operand for operand in node.operands if type(operand) is Value]
    if not values or not all(value in outside for value in values):
        return False
    if node.op is ALL_GATHER:
        return True
    bytes_made = sum(result.type.bytes for result in node.results)
    is_small = bytes_made <= max(value.type.bytes for value in values)
    return is_cheap(node) and is_small and sharded.issuperset(node.results)
