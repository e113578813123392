"""Chooses what cores shard of the variables for which the user says `cores="auto"`.

The choices are sets of axes (`variable_axes.py`). Each is tried: the program is split, and what a
core then sends, computes and reads in a step is added up in the units of `core_choices.py`. The
cheapest choice counts, of two that cost the same the one that holds less.

Memory is not counted: `gd.plan` and `graphdist-compile --find-plan` choose what fits. Variables of
a program that assigns none of them are left in full, so that an evaluation in front of the first
training step decides nothing. Nor does a program that only initializes or scales them: it reads
none of them, or has no product and no lookup. Once they are stored in shards, they are sharded for
all programs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from graphdist.ir import ops
from graphdist.ir.analyses import walk
from graphdist.ir.collective_bytes import collective_of
from graphdist.ir.cost import executions, node_cost
from graphdist.ir.graph import Graph
from graphdist.ir.kernels import KERNEL
from graphdist.ir.traffic import PRODUCTS
from graphdist.passes.cores.core_choices import FLOPS_PER_BYTE, READS_PER_BYTE
from graphdist.passes.cores.variable_axes import axis_sets, variable_axes

_USES = {*PRODUCTS, "jax.gather"}
"""What a program computes with weights: products and lookups, in functions of its own, too."""


def open_variables(graph: Graph) -> Collection[str]:
    """Return the names of the variables for which a program chooses what cores shard."""
    names = {each.name for each in graph.variables if each.chooses_core and each.core is None}
    if not names:
        return ()
    nodes = [*walk(graph)]
    assigned, read = (
        names.intersection(op.of(node).variable.name for node in nodes if node.op is op)
        for op in (ops.ASSIGN, ops.READ)
    )
    is_step = any(node.op.name in _USES or node.op.name == KERNEL for node in nodes)
    return names if assigned and read and is_step else ()


def cheapest_dimensions(
    graph: Graph, names: Collection[str], split: Callable[[Mapping[str, int]], Graph]
) -> Mapping[str, int]:
    """Return the dimensions of these variables whose shards make the program the cheapest.

    `split` returns the program in which the cores hold shards along given dimensions.
    """
    axes = variable_axes(graph, graph.num_cores, names)
    choices = [
        {name: along for axis in chosen for name, along in axis.dimensions.items()}
        for chosen in axis_sets(axes)
    ]
    return min(choices, key=lambda dimensions: _price(split(dimensions)))


def _price(graph: Graph) -> tuple[float, int]:
    """Return what a core sends, computes and reads, as bytes that it sends; and what it holds."""
    total = 0.0
    for node, times, every in executions(graph):
        if node.op.is_collective:
            price = collective_of(node, num_cores=graph.num_cores).bytes_sent
        elif node.graphs:
            continue
        else:
            read = sum(value.type.bytes for value in (*node.operands, *node.results))
            price = node_cost(node).total_flops / FLOPS_PER_BYTE + read / READS_PER_BYTE
        total += price * times / every
    return total, sum(variable.type.bytes for variable in graph.variables)
