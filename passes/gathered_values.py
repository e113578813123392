"""Which values are made in slices, and gathered for an operation that needs them whole.

An operation that does not compute each element by itself, as the matrix products of Muon, needs all
of its operand, and with it of the gradient and of the slots that the operand is made of. Where such
an operand is all that is wanted whole of a gradient, it is gathered instead: a gradient reduced to
all replicas is sent twice; a gradient scattered and an operand gathered are sent once each, and the
slots are kept in slices.

Before:  %g = all_reduce(%x)      %m2 = add(%m, %g)  %p = product(%m2)     return %m2 -> @m, ..
After:   %g = reduce_scatter(%x)  %m2 = add(%m, %g)  %all = all_gather(%m2)  %p = product(%all)  ..
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from graphdist.ir.graph import Node, Operand
from graphdist.ir.types import MIRRORED
from graphdist.passes.slice_kinds import is_cuttable
from graphdist.passes.slices import Needs

Gathered: TypeAlias = Mapping[Operand, tuple[str, ...]]
"""The operands that are gathered, each with the variables that its gradient updates."""


def gatherable(needs: Needs) -> Gathered:
    """Return the operands that may be gathered."""
    graph = needs.graph
    gradients: dict[Operand, Operand] = {}  # of what is made of one element by element, that one
    wanted_whole: dict[Operand, set[Operand]] = {}
    lost: set[Operand] = set()  # gradients of which more is made than is followed here
    for node in graph.nodes:
        if not needs.of_node(node):
            continue
        kind = needs.kinds.get(node.results[0], "") if node.results else ""
        operands = needs.operands_of(node)
        found = {operand: gradients[operand] for operand in operands if operand in gradients}
        if kind == "all_reduce" and is_cuttable(node.results[0], graph.num_replicas):
            gradients[node.results[0]] = node.results[0]
        elif _is_made_of_one(node, kind) and len(set(found.values())) == 1:
            gradients[node.results[0]] = next(iter(found.values()))
        elif kind in ("elementwise", "branches"):
            lost.update(found.values())
        elif not kind:
            for operand, gradient in found.items():
                wanted_whole.setdefault(gradient, set()).add(operand)
    updates: dict[Operand, tuple[str, ...]] = {}
    for variable, output in zip(graph.assigned, graph.outputs, strict=False):
        if output in gradients:
            of_gradient = updates.get(gradients[output], ())
            updates[gradients[output]] = (*of_gradient, variable.name)
    returned = graph.outputs[len(graph.assigned) :]
    lost.update(gradients[output] for output in returned if output in gradients)
    return {
        operand: updates[gradient]
        for gradient, operands in wanted_whole.items()
        if len(operands) == 1 and gradient in updates and gradient not in lost
        for operand in operands
        if operand is not gradient and operand.type.bytes <= gradient.type.bytes
    }


def _is_made_of_one(node: Node, kind: str) -> bool:
    """Return whether a result is made of what is made of a gradient; not of slices of others."""
    if kind == "elementwise":
        return node.results[0].type.distribution is MIRRORED
    return kind == "sliced"


def worth_gathering(gathered: Gathered, needs: Needs, scattered: set[Operand]) -> Gathered:
    """Return the operands that are made of slices, where no updated variable is gathered too."""
    graph = needs.graph
    whole = {
        variable.name
        for variable, value in zip(graph.variables, graph.inputs, strict=False)
        if variable.sharded_along is None and needs.is_whole(value)
    }
    return {
        operand: updated
        for operand, updated in gathered.items()
        if operand in scattered and whole.isdisjoint(updated)
    }
