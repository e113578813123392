"""Run the iterations of a short loop over stacked layers without a loop.

In a loop, a processor copies each layer's slice out of its stack before it uses it, and each value
that the backward pass needs into another stack. The compiler for CPUs fuses these copies with
nothing. Without the loop, layers read their weights where they are, and values wait for the
backward pass where they were computed. So this pass runs for CPUs. The compiler for TPUs copies
what kernels read and write; there a plan says whether the pass runs, which takes minutes longer to
compile. It then runs first, before loops carry what is gathered one iteration ahead.

Before:  %a, %s = scan(%w, %x, %stack) {length=4, unroll=1, ..}
After:   %a, %s = scan(%w, %x, %stack) {length=4, unroll=4, ..}

The emitted program then has the body once for each iteration, which takes longer to compile. So the
iterations are limited, and the operations, and layers of few bytes stay in a loop.

How a loop over layers is recognized: an iteration has more bytes of slices than of constants and
carries, and most of what it computes depends on the carries. Loops over microbatches and over time
have the weights as constants, and their gradients as carries; measured, these are not faster
without a loop. Where iterations do not depend on each other, as in `jax.lax.map`, the compiler
might compute several of them at once, and have the values of all of them in memory.

Left alone: loops of training steps, whose bits are those of a step outside of a loop; loops that
the user unrolls; and, unless `repeats`, backward loops that compute again what the forward loop has
computed, as `jax.checkpoint` asks for. Without the loop, the compiler for CPUs would merge the two
computations and keep the results, which would then be in memory at the same time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

from graphdist.ir.analyses import operations, walk
from graphdist.ir.cost import node_cost
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan
from graphdist.ir.op_parameters import Scanning
from graphdist.ir.ops import SCAN
from graphdist.ir.residual_loops import ResidualLoops, residual_loops
from graphdist.ir.rewrite import Copier

NAME = "unroll_loops"

MOST_LAYERS = 128
"""The most iterations of a loop over layers that a plan unrolls."""


@dataclass(frozen=True, slots=True)
class UnrollLoops:
    """The pass, for loops with at least `fewest_bytes` of slices in an iteration.

    They have at most `most_iterations`, and at most `most_operations` in all iterations together.
    """

    most_iterations: int
    most_operations: int
    fewest_bytes: int
    repeats: bool = False

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with its short loops over stacked layers unrolled."""
        if SCAN.name not in operations(graph):
            return graph
        pairs = () if self.repeats else residual_loops(graph)
        return self._unrolled(
            graph, {loops.backward.node for loops in pairs if _computes_again(loops)}
        )

    @classmethod
    def of_plan(cls) -> UnrollLoops:
        """Return the pass for a plan, which runs all loops over layers without a loop."""
        return cls(MOST_LAYERS, sys.maxsize, fewest_bytes=0, repeats=True)

    def lengths(self, graph: Graph) -> list[int]:
        """Return the iterations of the loops that the pass unrolls."""
        scans = (Scan(node) for node in walk(graph) if node.op is SCAN)
        return [scan.length for scan in scans if self._is_wanted(scan, scan.body)]

    def _unrolled(self, graph: Graph, without: set[Node]) -> Graph:
        copier = Copier(NAME)
        for node in graph.nodes:
            graphs = tuple(self._unrolled(inner, without) for inner in node.graphs)
            if node.op is SCAN and node not in without and self._is_wanted(Scan(node), *graphs):
                params = Scanning.of(node)
                node = replace(node, params=replace(params, unroll=params.length), origin=NAME)
            copier.copy(node, graphs)
        return copier.changed(graph)

    def _is_wanted(self, scan: Scan, body: Graph) -> bool:
        """Return whether to unroll a loop whose body will be `body`."""
        params = scan.params
        if params.steps or (params.unroll or 1) > 1 or not 1 < scan.length <= self.most_iterations:
            return False
        stacks = [taken.operand for taken in scan.scanned] + [each.result for each in scan.stacked]
        others = [taken.operand for taken in scan.constants] + [each.last for each in scan.carries]
        slices = _bytes(stacks) // scan.length
        return (
            slices >= self.fewest_bytes
            and slices > _bytes(others)
            and scan.length * _emitted(body) <= self.most_operations
            and _is_serial(scan)
        )


def _is_serial(scan: Scan) -> bool:
    """Return whether nine tenths of the operations of a loop depend on the carries, or more."""
    dependent = {carry.value for carry in scan.carries}
    flops = serial = 0
    for node in scan.body.nodes:
        count = node_cost(node).total_flops
        flops += count
        if any(type(operand) is Value and operand in dependent for operand in node.operands):
            dependent.update(node.results)
            serial += count
    return 0 < 9 * flops <= 10 * serial


def _computes_again(loops: ResidualLoops) -> bool:
    """Return whether a backward loop computes again more than a tenth of what it scans.

    Copies and broadcasts do not count: nobody asks for them to be done again.
    """
    again = [node.results[0] for node in loops.repeated if node_cost(node).total_flops]
    return 10 * _bytes(again) * loops.iterations > _bytes(loops.stacks)


def _bytes(operands: Iterable[Operand]) -> int:
    return sum(operand.type.bytes for operand in operands)


def _emitted(graph: Graph) -> int:
    """Return how many operations the emitted program has for a graph."""
    count = 0
    for node in graph.nodes:
        times = Scanning.of(node).unroll or 1 if node.op is SCAN else 1
        count += 1 + times * sum(map(_emitted, node.graphs))
    return count
