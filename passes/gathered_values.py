"""Which values are made in slices, and gathered for an operation that needs them in full.

Some operations need their operand in full, such as the matrix products of Muon. Without this
analysis, the gradient and the slots from which the operand is made would be needed in full too. If
nothing else needs values of that gradient in full, the operand is made in slices, and gathered. No
more bytes are sent: an all_reduce sends the gradient twice, a reduce_scatter of the gradient and an
all_gather of the operand send each once. And the slots are kept in slices.

Before:  %g = all_reduce(%x)      %m2 = add(%m, %g)  %p = product(%m2)     return %m2 -> @m, ..
After:   %g = reduce_scatter(%x)  %m2 = add(%m, %g)  %all = all_gather(%m2)  %p = product(%all)  ..
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from graphdist.ir.graph import Node, Operand
from graphdist.ir.types import MIRRORED
from graphdist.passes.slice_rules import ALL_REDUCED, OWN_SLICED, UNSLICED, SliceRule
from graphdist.passes.slices import Needs

Gathered: TypeAlias = Mapping[Operand, tuple[str, ...]]
"""The gathered operands, each with the variables that its gradient updates."""


def gatherable(needs: Needs) -> Gathered:
    """Return the operands that may be gathered."""
    graph = needs.graph
    gradients: dict[Operand, Operand] = {}  # of values made of a gradient, element by element
    needed_in_full: dict[Operand, set[Operand]] = {}
    lost: set[Operand] = set()  # gradients with uses that are not followed here
    for node in graph.nodes:
        if not needs.of_node(node):
            continue
        rule = needs.rule_of(node)
        operands = needs.operands_of(node)
        found = {operand: gradients[operand] for operand in operands if operand in gradients}
        if rule is ALL_REDUCED and needs.cuts.is_cuttable(node.results[0]):
            gradients[node.results[0]] = node.results[0]
        elif _is_made_of_gradient(node, rule) and len(set(found.values())) == 1:
            gradients[node.results[0]] = next(iter(found.values()))
        elif rule.hands_on:
            lost.update(found.values())
        elif rule is UNSLICED:
            for operand, gradient in found.items():
                needed_in_full.setdefault(gradient, set()).add(operand)
    updates: dict[Operand, tuple[str, ...]] = {}
    for variable, output in zip(graph.assigned, graph.outputs, strict=False):
        if output in gradients:
            of_gradient = updates.get(gradients[output], ())
            updates[gradients[output]] = (*of_gradient, variable.name)
    returned = graph.outputs[len(graph.assigned) :]
    lost.update(gradients[output] for output in returned if output in gradients)
    return {
        operand: updates[gradient]
        for gradient, operands in needed_in_full.items()
        if len(operands) == 1 and gradient in updates and gradient not in lost
        for operand in operands
        if operand is not gradient and operand.type.bytes <= gradient.type.bytes
    }


def _is_made_of_gradient(node: Node, rule: SliceRule) -> bool:
    """Return whether a node computes a mirrored value from a gradient, slice by slice."""
    if rule.hands_on and not node.graphs:
        return node.results[0].type.distribution is MIRRORED
    return rule is OWN_SLICED


def worth_gathering(gathered: Gathered, needs: Needs, scattered: set[Operand]) -> Gathered:
    """Return the operands that are made of slices, unless an updated variable is gathered too."""
    graph = needs.graph
    full = {
        variable.name
        for variable, value in zip(graph.variables, graph.inputs, strict=False)
        if variable.sharded_along is None and needs.is_full(value)
    }
    return {
        operand: updated
        for operand, updated in gathered.items()
        if operand in scattered and full.isdisjoint(updated)
    }
