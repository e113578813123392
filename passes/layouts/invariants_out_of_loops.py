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

from collections.abc import Sequence

from graphdist.ir.analyses import operations
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan, ScanEdit
from graphdist.ir.operation_table import row_of
from graphdist.ir.ops import ALL_GATHER, SCAN
from graphdist.ir.rewrite import Rewriter, rewrite
from graphdist.passes.layouts.values_on_shards import of_sharded_variables

NAME = "invariants_out_of_loops"


def invariants_out_of_loops(graph: Graph) -> Graph:
    """Return the graph that computes values of sharded variables alone in front of loops."""
    if not {SCAN.name, ALL_GATHER.name} <= operations(graph):
        return graph
    sharded = of_sharded_variables(graph)

    def rule(
        node: Node, operands: tuple[Operand, ...], rewriter: Rewriter
    ) -> Sequence[Operand] | None:
        scan = Scan(node, operands)
        outside: dict[Operand, Operand] = {value: operand for operand, value in scan.constants}
        moved: list[Node] = []
        for inner in scan.body.nodes:
            if _is_invariant(inner, outside, sharded):
                types = None if inner.op.rule else [result.type for result in inner.results]
                results = rewriter.add(
                    inner.op,
                    [outside.get(operand, operand) for operand in inner.operands],
                    inner.params,
                    at=inner.source,
                    types=types,
                    hint=inner.results[0].hint,
                )
                outside.update(zip(inner.results, results, strict=True))
                sharded.update(results)
                moved.append(inner)
        if not moved:
            return None
        edit = ScanEdit(scan, NAME)
        for inner in moved:
            for result in inner.results:
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
    row = row_of(node)
    is_cheap = row is not None and row.is_cheap
    bytes_made = sum(result.type.bytes for result in node.results)
    is_of_variables = all(result in sharded for result in node.results)
    return is_cheap and is_of_variables and bytes_made <= max(v.type.bytes for v in values)
