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

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from graphdist.ir.analyses import operations, producers, use_counts, users
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan, ScanEdit
from graphdist.ir.operation_table import row_of
from graphdist.ir.ops import ALL_GATHER, SCAN
from graphdist.ir.rewrite import map_nested, substitute
from graphdist.passes.layouts.values_on_shards import of_sharded_variables

NAME = "recompute_residuals"


@dataclass(frozen=True, slots=True)
class _Residual:
    """A stacked value that can be recomputed, with the operands and nodes to recompute it."""

    constants: dict[Value, Operand]
    """The operands that every iteration takes, by the input of the loop's body."""
    stacks: dict[Value, Operand]
    """The operands that the loop scans, by the input of the loop's body."""
    nodes: tuple[Node, ...]
    output: Value


def recompute_residuals(graph: Graph) -> Graph:
    """Return the graph in which loops recompute the residuals that they scan."""
    if SCAN.name not in operations(graph):
        return graph
    return _recomputed(graph, of_sharded_variables(graph))


def _recomputed(graph: Graph, sharded: Collection[Operand]) -> Graph:
    graph = map_nested(graph, lambda nested: _recomputed(nested, sharded))
    residuals: dict[Operand, _Residual] = {}
    for node in graph.nodes:
        if node.op is SCAN:
            residuals.update(_residuals(node, graph, sharded))
    if not residuals:
        return graph
    builder = Builder(NAME)
    environment: dict[Operand, Operand] = {}
    for node in graph.nodes:
        operands = substitute(environment, node.operands)
        scanned = Scan(node).scanned if node.op is SCAN else ()
        again = {value: residuals[taken] for taken, value in scanned if taken in residuals}
        if again:
            results: Sequence[Operand] = _rebuilt(Scan(node, operands), again, environment, builder)
        else:
            results = builder.keep(node, operands, node.graphs)
        environment.update(zip(node.results, results, strict=True))
    outputs = substitute(environment, graph.outputs)
    return graph.replace(nodes=tuple(builder.nodes), outputs=outputs)


def _residuals(node: Node, graph: Graph, sharded: Collection[Operand]) -> dict[Operand, _Residual]:
    """Return the residuals that a loop need not stack, by the loop's result."""
    scan = Scan(node)
    found: dict[Operand, _Residual] = {}
    for output, result in scan.stacked:
        if type(output) is Value and _is_only_scanned(result, graph):
            residual = _residual(scan, output, sharded)
            if residual is not None:
                found[result] = residual
    return found


def _residual(scan: Scan, output: Value, sharded: Collection[Operand]) -> _Residual | None:
    """Return how an output of a loop's body can be recomputed; None if it cannot."""
    nodes = _made_cheaply(output, scan.body)
    if nodes is None:
        return None
    used = {output, *(operand for made in nodes for operand in made.operands)}
    if any(carry.value in used for carry in scan.carries):
        return None
    constants = {value: operand for operand, value in scan.constants if value in used}
    stacks = {value: operand for operand, value in scan.scanned if value in used}
    if stacks and output not in sharded:
        return None
    return _Residual(constants, stacks, tuple(nodes), output)


def _made_cheaply(output: Value, body: Graph) -> list[Node] | None:
    """Return the nodes that make an output, in order; None if one of them is not cheap."""
    needed: set[Node] = set()
    pending: list[Operand] = [output]
    while pending:
        operand = pending.pop()
        node = producers(body).get(operand) if type(operand) is Value else None
        if node is None or node in needed:
            continue
        row = row_of(node)
        if node.op is not ALL_GATHER and (row is None or not row.is_cheap):
            return None
        needed.add(node)
        pending.extend(node.operands)
    return [node for node in body.nodes if node in needed]


def _rebuilt(
    scan: Scan,
    residuals: dict[Value, _Residual],
    environment: dict[Operand, Operand],
    builder: Builder,
) -> Sequence[Operand]:
    """Add a loop that recomputes residuals in place of scanning them.

    `residuals` has the residuals by the input of the body for their slices.
    """
    edit = ScanEdit(scan, NAME)
    edit.drop(residuals)
    constants: dict[Operand, Value] = {}
    slices = {operand: value for operand, value in scan.scanned if value not in residuals}
    for input, residual in residuals.items():
        values: dict[Operand, Operand] = {}
        for value, operand in residual.constants.items():
            (operand,) = substitute(environment, (operand,))
            if operand not in constants:
                constants[operand] = edit.add_constant(operand, value.hint)
            values[value] = constants[operand]
        for value, operand in residual.stacks.items():
            (operand,) = substitute(environment, (operand,))
            if operand not in slices:
                slices[operand] = edit.add_scanned(operand, value.hint)
            values[value] = slices[operand]
        for made in residual.nodes:
            results = edit.inside.add(
                made.op,
                substitute(values, made.operands),
                made.params,
                at=made.source,
                types=None if made.op.rule else [result.type for result in made.results],
                hint=made.results[0].hint,
            )
            values.update(zip(made.results, results, strict=True))
        edit.environment[input] = values[residual.output]
    edit.keep_nodes()
    return edit.finish(builder)


def _is_only_scanned(value: Value, graph: Graph) -> bool:
    """Return whether all users of a value are loops that scan it."""
    loops = [Scan(node) for node in users(graph).get(value, ()) if node.op is SCAN]
    count = sum(taken.operand is value for loop in loops for taken in loop.scanned)
    return 0 < count == use_counts(graph)[value]
