"""How long each node takes on the chips of a topology, from published peaks, by itself.

It is the roofline of `graphdist.runtime.targets.roofline`, for one node: XLA fuses nodes and runs
collectives beside others, so the times of a program's nodes do not add up to its step. They say
which nodes to look at first.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphdist.ir.collective_records import Exchange, collective_of
from graphdist.ir.cost import of_node, trips
from graphdist.ir.graph import Node
from graphdist.runtime.targets.roofline import Roofline, estimate_step
from graphdist.runtime.targets.topologies import Topology

__all__ = ["node_estimate", "node_seconds"]


def node_estimate(node: Node, topology: Topology) -> Roofline:
    """Return how long a node takes, all trips of a loop included."""
    work = of_node(node)
    return estimate_step(topology, work.flops, work.bytes, _exchanges(node))


def node_seconds(node: Node, topology: Topology) -> float:
    """Return the seconds of one run of a node, 0 for a loop or branch, whose nodes have theirs.

    They are rounded to three digits: more would only make files larger.

    >>> from graphdist.ir.parser import parse
    >>> from graphdist.runtime.targets.topologies import find_topology
    >>> graph = parse('''graph f on 4 replicas, stage spmd
    ... (%x: f32[1000000] per_replica) {
    ...   %y = all_reduce(%x) {group_size=4, reducer="sum"} : f32[1000000] mirrored
    ...   return %y
    ... }''')
    >>> node_seconds(graph.nodes[0], find_topology("v5e:2x2"))
    6.98e-05
    """
    return 0.0 if node.graphs else float(f"{node_estimate(node, topology).step:.3g}")


def _exchanges(node: Node, times: int = 1) -> Iterator[Exchange]:
    if node.op.is_collective:
        for made in collective_of(node).exchanges:
            yield made._replace(bytes=made.bytes * times)
    for nested in node.graphs:
        for inner in nested.nodes:
            yield from _exchanges(inner, times * trips(node))
