"""Gather what a loop takes apart, and scatter what it stacks up, in each step of the loop.

The weights of a stack of layers are stored in slices along a dimension of the layer. Gathered
before the loop over the layers, all layers are in memory at once; gathered in its body, one is. The
same holds for gradients: a loop stacks up the gradients of all layers, and the stack is
reduce_scattered behind it; scattered in the body, the stack holds slices alone. As many bytes are
sent.

Before:  %all = all_gather(%w) {axis=1, ..} : f32[L,n,m]
         %y, %gs = scan(%x0, %all) { .. %layer : f32[n,m] ..  return %x1, %g }
         %s = reduce_scatter(%gs) {axis=1, ..}
After:   %y, %s = scan(%x0, %w) { %layer = all_gather(%slice) {axis=0, ..} : f32[n,m] ..
                                  %t = reduce_scatter(%g) {axis=0, ..}  return %x1, %t }

How it works. An operand that a `scan` walks along moves in if an all_gather along another dimension
makes it, and nothing but loops uses it. A result that is stacked up is scattered in the body if its
one use is a reduce_scatter along another dimension, maybe after operations that compute each
element by itself, with numbers (a conversion, a scale): these move in too. Loops are handled from
the outermost to the innermost, so that a gather moves in as deep as it can.

Left alone: values that every step takes in full, which would be gathered in every step; stacks of
which a step takes fewer than `smallest` bytes, since a collective has a cost of its own; loops of
one step; `while` loops, whose steps take nothing apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from graphdist.ir.analyses import operations, producers, use_counts, users
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan, ScanEdit, type_of_slice
from graphdist.ir.operation_table import ELEMENTWISE
from graphdist.ir.ops import ALL_GATHER, REDUCE_SCATTER, SCAN
from graphdist.ir.rewrite import map_nested, substitute
from graphdist.passes.stacks import is_only_scanned

NAME = "collectives_into_loops"


@dataclass(frozen=True, slots=True)
class CollectivesIntoLoops:
    """The pass; a step of a loop takes or gives at least `smallest` bytes of what moves in."""

    smallest: int = 0

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with gathers and scatters of stacks inside their loops."""
        found = operations(graph)
        if SCAN.name not in found or found.isdisjoint((ALL_GATHER.name, REDUCE_SCATTER.name)):
            return graph
        return map_nested(self._moved(graph), self)

    def declined(self, graph: Graph) -> list[str]:
        """Return the gathered stacks that stay in front of their loops, and why."""
        reasons = []
        for node in graph.nodes:
            if node.op is SCAN:
                reasons += [
                    f"{operand.type.bytes:,} bytes for the loop at {node.source}: {reason}"
                    for operand, reason in self._staying(node, graph)
                ]
        return reasons

    def _moved(self, graph: Graph) -> Graph:
        """Return the graph with what moves into the loops that stand directly in it."""
        loops = {
            node: loop
            for node in graph.nodes
            if node.op is SCAN and (loop := _Loop(node, graph, self.smallest)).moves
        }
        if not loops:
            return graph
        gone = {node for loop in loops.values() for node in loop.moved_behind}
        builder = Builder(NAME)
        environment: dict[Operand, Operand] = {}
        for node in graph.nodes:
            if node in loops:
                environment.update(loops[node].rebuilt(environment, builder))
            elif node not in gone:
                results = builder.keep(node, substitute(environment, node.operands), node.graphs)
                environment.update(zip(node.results, results, strict=True))
        outputs = substitute(environment, graph.outputs)
        # A gather that nothing uses any more goes with the dead nodes.
        return graph.replace(nodes=tuple(builder.nodes), outputs=outputs)

    def _staying(self, node: Node, graph: Graph) -> Iterator[tuple[Value, str]]:
        for operand, _ in Scan(node).scanned:
            gather = producers(graph).get(operand) if type(operand) is Value else None
            if gather is None or gather.op is not ALL_GATHER:
                continue
            value = cast(Value, operand)
            if gather.params["axis"] == 0:
                yield value, "it is in slices along the dimension that the loop walks along"
            elif not is_only_scanned(value, graph):
                yield value, "something beside loops needs all of it"
            elif value.type.bytes < self.smallest * cast(int, node.params["length"]):
                yield value, f"a step takes fewer than {self.smallest:,} bytes of it"


class _Loop:
    """One scan, with the collectives that move into it."""

    def __init__(self, node: Node, graph: Graph, smallest: int) -> None:
        self.node, self.graph, self.scan = node, graph, Scan(node)
        length = self.scan.length
        self._least = smallest * length
        self.gathers = self._gathers() if length > 1 else {}
        """The all_gather that makes a scanned operand, by the input of the body for its slices."""
        self.chains = self._chains() if length > 1 else {}
        """The nodes that follow a stacked result, up to its reduce_scatter."""

    @property
    def moves(self) -> bool:
        """Return whether anything moves in."""
        return bool(self.gathers or self.chains)

    @property
    def moved_behind(self) -> list[Node]:
        """Return the nodes behind the loop that move in."""
        return [node for chain in self.chains.values() for node in chain]

    def _gathers(self) -> dict[Value, Node]:
        found = {}
        for operand, value in self.scan.scanned:
            if type(operand) is not Value or operand.type.bytes < self._least:
                continue
            gather = producers(self.graph).get(operand)
            if gather is None or gather.op is not ALL_GATHER or gather.params["axis"] == 0:
                continue
            if is_only_scanned(operand, self.graph):
                found[value] = gather
        return found

    def _chains(self) -> dict[Value, list[Node]]:
        chains = {
            result: self._chain(result)
            for _, result in self.scan.stacked
            if result.type.bytes >= self._least
        }
        return {result: chain for result, chain in chains.items() if chain is not None}

    def _chain(self, value: Value) -> list[Node] | None:
        """Return the nodes between a stack and its reduce_scatter, with this; None if none is."""
        chain: list[Node] = []
        while use_counts(self.graph)[value] == 1 and (using := users(self.graph).get(value)):
            (node,) = using
            if node.op is REDUCE_SCATTER and node.params["axis"] != 0:
                return [*chain, node]
            if not _maps_elements(node):
                return None
            chain.append(node)
            (value,) = node.results
        return None

    def rebuilt(
        self, environment: dict[Operand, Operand], builder: Builder
    ) -> Iterator[tuple[Operand, Operand]]:
        """Add the loop with its collectives inside; yield what stands for which old value."""
        scan = Scan(self.node, substitute(environment, self.node.operands))
        edit = ScanEdit(scan, NAME)
        for value, gather in self.gathers.items():
            slice = edit.replace(value, substitute(environment, gather.operands)[0])
            edit.environment[value] = _in_step(gather, slice, edit.inside)
        edit.keep_nodes()
        for output, result in scan.stacked:
            (slice_out,) = substitute(edit.environment, (output,))
            for node in self.chains.get(result, ()):
                slice_out = _in_step(node, slice_out, edit.inside)
            edit.stack(result, slice_out)
        for old, new in zip(self.node.results, edit.finish(builder), strict=True):
            yield (self.chains[old][-1].results[0] if old in self.chains else old), new


def _maps_elements(node: Node) -> bool:
    """Return whether a node computes each element of a value by itself, with numbers alone."""
    values = [operand for operand in node.operands if type(operand) is Value]
    numbers = [operand for operand in node.operands if type(operand) is not Value]
    return (
        node.op.name in ELEMENTWISE
        and len(values) == len(node.results) == 1
        and values[0].type.shape == node.results[0].type.shape
        and not any(number.type.shape for number in numbers)
        and node.params.get("sharding") is None
    )


def _in_step(node: Node, value: Operand, builder: Builder) -> Operand:
    """Add to a step what a node does with the stack, to the step's value."""
    result = node.results[0]
    params = node.params
    if node.op in (ALL_GATHER, REDUCE_SCATTER):
        params = {**params, "axis": cast(int, params["axis"]) - 1}
    operands = [value if type(operand) is Value else operand for operand in node.operands]
    types = None if node.op.rule else [type_of_slice(result.type)]
    return builder.add(node.op, operands, params, at=node.source, types=types, hint=result.hint)[0]
