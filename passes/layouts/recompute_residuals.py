"""Recompute in the backward loop the gathered weights that the forward loop would stack.

JAX saves values of the forward pass for the backward pass. A weight that each layer converts or
transposes is saved, too: the forward loop stacks the gathered weights of all layers, and they stay
in memory, unsharded, until the backward loop has used them. Their shards are stored in any case. So
the backward loop scans the shards, and re-gathers and converts them.

Before:  %y, %r = scan(%x0, %w) { %all = all_gather(%slice)  %n = convert(%all) ..  return %x1, %n }
         %z = scan(%y, %r, reverse=true) { .. %n_in .. }
After:   %y = scan(%x0, %w) { %all = all_gather(%slice)  %n = convert(%all) ..  return %x1 }
         %z = scan(%y, %w, reverse=true) { %all = all_gather(%slice)  %n = convert(%all) .. }

How it works. A stacked result is recomputed if its only uses are loops that scan it, and if an
iteration computes it from scanned slices and constants by cheap operations: elementwise ones, ones
that only move elements, and all_gathers. A result that depends on scanned slices must also depend
on an all_gather; a result that depends on constants alone is equal in all iterations. Left alone:
results that depend on a carry or on a product.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from graphdist.ir.analyses import operations, producer_of, use_counts, users
from graphdist.ir.graph import Graph, Node, Operand, Operands, Value
from graphdist.ir.loops import Scan, ScanEdit, Taken
from graphdist.ir.ops import ALL_GATHER, SCAN
from graphdist.ir.rewrite import Answer, Rewriter, rewrite
from graphdist.passes.layouts.placed_values import is_cheap
from graphdist.passes.layouts.sharding_propagation import of_sharded_variables

NAME = "recompute_residuals"


@dataclass(frozen=True, slots=True)
class _Residual:
    """A stacked value that can be recomputed: `output` of the body of the loop that stacks it.

    `nodes` compute the output from `constants` of this loop, and from slices of operands that this
    loop scans, `stacks`.
    """

    constants: Sequence[Taken]
    stacks: Sequence[Taken]
    nodes: Sequence[Node]
    output: Value


def recompute_residuals(graph: Graph) -> Graph:
    """Return the graph in which loops recompute the residuals that they scan."""
    if SCAN.name not in operations(graph):
        return graph
    sharded = of_sharded_variables(graph)

    def rule(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
        found = {
            value: _residual(stack, rewriter.graph, sharded) for stack, value in Scan(node).scanned
        }
        residuals = {value: residual for value, residual in found.items() if residual is not None}
        return _rebuilt(Scan(node, operands), residuals, rewriter) if residuals else None

    return rewrite(graph, rule, NAME, {SCAN.name})


def _residual(stack: Operand, graph: Graph, sharded: Collection[Operand]) -> _Residual | None:
    """Return how the slices of a stack can be recomputed; None if they cannot."""
    made = producer_of(stack, graph)
    if made is None or made.op is not SCAN or not _is_only_scanned(stack, graph):
        return None
    scan = Scan(made)
    outputs = [output for output, result in scan.stacked if result is stack]
    if not outputs or type(outputs[0]) is not Value:
        return None
    output = outputs[0]
    nodes = _made_cheaply(output, scan.body)
    if nodes is None:
        return None
    used = {output, *(operand for made in nodes for operand in made.operands)}
    if any(carry.value in used for carry in scan.carries):
        return None
    constants, stacks = (
        [taken for taken in each if taken.value in used] for each in (scan.constants, scan.scanned)
    )
    return None if stacks and output not in sharded else _Residual(constants, stacks, nodes, output)


def _made_cheaply(output: Value, body: Graph) -> list[Node] | None:
    """Return the nodes that make an output, in order; None if one of them is not cheap."""
    needed: set[Node] = set()
    pending: list[Operand] = [output]
    while pending:
        operand = pending.pop()
        node = producer_of(operand, body)
        if node is None or node in needed:
            continue
        if node.op is not ALL_GATHER and not is_cheap(node):
            return None
        needed.add(node)
        pending.extend(node.operands)
    return [node for node in body.nodes if node in needed]


def _rebuilt(scan: Scan, residuals: Mapping[Value, _Residual], rewriter: Rewriter) -> Answer:
    """Add a loop that recomputes residuals in place of scanning them.

    `residuals` has the residuals by the input of the body for their slices.
    """
    edit = ScanEdit(scan, NAME)
    edit.drop(residuals)
    constants: dict[Operand, Value] = {}
    slices = {operand: value for operand, value in scan.scanned if value not in residuals}
    for input, residual in residuals.items():
        for taken, inputs, add in (
            (residual.constants, constants, edit.add_constant),
            (residual.stacks, slices, edit.add_scanned),
        ):
            for old, value in taken:
                (operand,) = rewriter.now((old,))
                if operand not in inputs:
                    inputs[operand] = add(operand, value.hint)
                edit.environment[value] = inputs[operand]
        for node in residual.nodes:
            results = edit.inside.again(node, edit.inside.now(node.operands))
            edit.inside.put(node.results, results)
        edit.environment[input] = edit.environment[residual.output]
    edit.keep_nodes()
    return edit.finish(rewriter)


def _is_only_scanned(value: Operand, graph: Graph) -> bool:
    """Return whether all users of a value are loops that scan it."""
    loops = [Scan(node) for node in users(graph).get(value, ()) if node.op is SCAN]
    count = sum(taken.operand is value for loop in loops for taken in loop.scanned)
    return 0 < count == use_counts(graph)[value]
