"""Compute again what a loop would stack up for a later loop, where slices are enough for it.

JAX saves for the way back what the way forward computed. A weight that each layer converts, or
transposes, is saved as well: the loop forward stacks up the gathered weights of all layers, which
are in memory in full until the loop back has taken them. The slices are there anyway, so the loop
back takes these, and gathers and converts again.

Before:  %y, %r = scan(%x0, %w) { %all = all_gather(%slice)  %n = convert(%all) ..  return %x1, %n }
         %z = scan(%y, %r, reverse=true) { .. %n_in .. }
After:   %y = scan(%x0, %w) { %all = all_gather(%slice)  %n = convert(%all) ..  return %x1 }
         %z = scan(%y, %w, reverse=true) { %all = all_gather(%slice)  %n = convert(%all) .. }

How it works. A result that a `scan` stacks up is computed again if nothing but loops takes it, step
by step, and if its step's value is made of values that the loop takes apart, by an all_gather and
operations that move elements or compute each by itself. Left alone: all that needs a value of the
loop's state, or a product, or values that every step takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphdist.ir.analyses import operations, producers
from graphdist.ir.builder import Builder
from graphdist.ir.elementwise import ELEMENTWISE
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import ALL_GATHER, RESHAPE, SCAN
from graphdist.ir.rewrite import map_nested, substitute
from graphdist.passes.stacks import first_stack, is_taken_apart_only, num_carry_of

NAME = "recompute_residuals"

_MOVES = {ALL_GATHER.name, RESHAPE.name} | {
    f"jax.{name}" for name in ("broadcast_in_dim", "reshape", "rev", "squeeze", "transpose")
}
_CHEAP = ELEMENTWISE | _MOVES


@dataclass(frozen=True, slots=True)
class _Residual:
    """A stacked value that can be computed again: of which stacks, and by which nodes of a step."""

    stacks: tuple[Operand, ...]
    inputs: tuple[Value, ...]
    """What a step of the loop that made it takes of the stacks."""
    nodes: tuple[Node, ...]
    output: Value


def recompute_residuals(graph: Graph) -> Graph:
    """Return the graph with residuals made of slices computed again in the loops that take them."""
    if not {SCAN.name, ALL_GATHER.name} <= operations(graph):
        return graph
    graph = map_nested(graph, recompute_residuals)
    residuals: dict[Operand, _Residual] = {}
    for node in graph.nodes:
        if node.op is SCAN:
            residuals.update(_residuals(node, graph))
    if not residuals:
        return graph
    builder = Builder(NAME)
    environment: dict[Operand, Operand] = {}
    for node in graph.nodes:
        operands = substitute(environment, node.operands)
        if node.op is SCAN and not residuals.keys().isdisjoint(node.operands):
            results: Sequence[Operand] = _rebuilt(node, operands, residuals, environment, builder)
        else:
            results = builder.keep(node, operands, node.graphs)
        environment.update(zip(node.results, results, strict=True))
    outputs = substitute(environment, graph.outputs)
    return graph.replace(nodes=tuple(builder.nodes), outputs=outputs)


def _residuals(node: Node, graph: Graph) -> dict[Operand, _Residual]:
    """Return what a loop stacks up and need not, by the result."""
    (body,) = node.graphs
    found: dict[Operand, _Residual] = {}
    for place in range(num_carry_of(node), len(node.results)):
        result, output = node.results[place], body.outputs[place]
        if type(output) is not Value or not is_taken_apart_only(result, graph):
            continue
        nodes = _made_cheaply(output, body)
        if not any(made.op is ALL_GATHER for made in nodes):
            continue
        made = {value for made in nodes for value in made.results}
        used = {operand for made in nodes for operand in made.operands if type(operand) is Value}
        inputs = [value for value in body.inputs if value in used - made]
        places = [body.inputs.index(value) for value in inputs]
        if all(place >= first_stack(node) for place in places):
            stacks = tuple(node.operands[place] for place in places)
            found[result] = _Residual(stacks, tuple(inputs), tuple(nodes), output)
    return found


def _made_cheaply(output: Value, body: Graph) -> list[Node]:
    """Return the nodes that make an output, in order; none if one of them is not cheap."""
    needed: set[Node] = set()
    pending: list[Operand] = [output]
    while pending:
        operand = pending.pop()
        node = producers(body).get(operand) if type(operand) is Value else None
        if node is None or node in needed:
            continue
        if node.op.name not in _CHEAP:
            return []
        needed.add(node)
        pending.extend(node.operands)
    return [node for node in body.nodes if node in needed]


def _rebuilt(
    node: Node,
    operands: tuple[Operand, ...],
    residuals: dict[Operand, _Residual],
    environment: dict[Operand, Operand],
    builder: Builder,
) -> tuple[Value, ...]:
    """Add a loop that takes slices in place of residuals, and computes these from them."""
    (body,) = node.graphs
    taken, inputs = list(operands), list(body.inputs)
    inside = Builder(NAME)
    again: dict[Operand, Operand] = {}
    for place, operand in enumerate(node.operands):
        residual = residuals.get(operand)
        if residual is None or place < first_stack(node):
            continue
        values: dict[Operand, Operand] = {}
        for stack, value in zip(residual.stacks, residual.inputs, strict=True):
            (stack,) = substitute(environment, (stack,))
            if stack not in taken[first_stack(node) :]:
                taken.append(stack)
                inputs.append(Value(value.type, value.hint))
            values[value] = inputs[taken.index(stack, first_stack(node))]
        for made in residual.nodes:
            results = inside.add(
                made.op,
                substitute(values, made.operands),
                made.params,
                at=made.source,
                types=None if made.op.rule else [result.type for result in made.results],
                hint=made.results[0].hint,
            )
            values.update(zip(made.results, results, strict=True))
        again[body.inputs[place]] = values[residual.output]
    kept = [place for place, value in enumerate(inputs) if value not in again]
    for inner in body.nodes:
        results = inside.keep(inner, substitute(again, inner.operands), inner.graphs)
        again.update(zip(inner.results, results, strict=True))
    rebuilt = body.replace(
        inputs=tuple(inputs[place] for place in kept),
        nodes=tuple(inside.nodes),
        outputs=substitute(again, body.outputs),
    )
    return builder.keep(node, tuple(taken[place] for place in kept), (rebuilt,))
