"""The collectives of a graph, and what the compiled module has in their place.

XLA makes all_reduces of some all_gathers and reduce_scatters, and pads some. The report names the
collective of the module, and the estimate of the time counts what it sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from graphdist.ir.analyses import collectives
from graphdist.ir.cost import Exchange, every, exchanges, executions
from graphdist.ir.graph import Graph, Node
from graphdist.ir.op_parameters import OverReplicas
from graphdist.ir.ops import ALL_REDUCE, reducer_of
from graphdist.runtime.module.collective_instructions import ModuleCollective
from graphdist.runtime.module.collective_matching import Asked, Match, match_collectives
from graphdist.runtime.targets.roofline import collective_seconds
from graphdist.runtime.targets.topologies import Topology


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """A collective of the graph, and the collective of the module that does its work.

    `bytes` are the bytes that each replica puts in, each time; `times` counts its runs in a step,
    of which one in `every` has them.
    Each of `num_groups` groups of `group_size` replicas runs it.
    `became` describes the collective of the module in words. `code` is the user's line as text,
    `seconds` the estimate of all runs in a step, 0 where there is none.
    """

    kind: str
    reducer: str
    dtype: str
    bytes: int
    group_size: int
    times: int
    pass_name: str
    source: str
    became: str
    num_groups: int = 1
    code: str = ""
    seconds: float = 0.0
    every: int = 1

    @property
    def bytes_a_step(self) -> int:
        """Return the bytes that a replica puts in in a step, on average."""
        return round(self.bytes * self.times / self.every)


class Matched(NamedTuple):
    """A collective of the graph, how often it runs in one of `every` steps, and its match."""

    node: Node
    times: int
    match: Match | None
    every: int = 1

    def exchanges(self) -> tuple[Exchange, ...]:
        """Return what replicas exchange in a step: as compiled if that is known, or as asked."""
        made = exchanges(self.node) if self.match is None else _as_compiled(self.node, self.match)
        share = self.times / self.every
        return tuple(exchange._replace(bytes=round(exchange.bytes * share)) for exchange in made)


def matched_collectives(graph: Graph, module: Sequence[ModuleCollective]) -> tuple[Matched, ...]:
    """Return the collectives of a graph, matched with the module's, in the graph's order."""
    times = {id(node): count for node, count in executions(graph)}
    shared = _shared_by(graph)
    nodes = collectives(graph)
    matches = match_collectives(module, [_asked(node) for node in nodes])
    return tuple(
        Matched(node, ceil(times[id(node)] * shared[id(node)]), match, shared[id(node)])
        for node, match in zip(nodes, matches, strict=True)
    )


def _shared_by(graph: Graph) -> dict[int, int]:
    """Return for each node how many steps share its runs: more than one in local steps' branch."""
    found: dict[int, int] = {}
    pending = [(graph, 1)]
    for nested, shared in pending:  # which grows
        for node in nested.nodes:
            found[id(node)] = shared
            pending += [(inner, shared * every(node)) for inner in node.graphs]
    return found


def _asked(node: Node) -> Asked:
    (operand,) = node.operands
    group_size = OverReplicas.of(node).group_size
    return Asked(node.op.name, operand.type.dtype, operand.type.size, group_size)


def _as_compiled(node: Node, match: Match) -> tuple[Exchange, ...]:
    """Return the exchanges of a node with the kind and the bytes of its match in the module."""
    asked, kind = exchanges(node), match.collective.kind
    # The parts of what XLA has split into several, or packed into one, send as much as asked.
    if len(asked) > 1 or match.num_packed > 1 or kind not in (asked[0].kind, ALL_REDUCE.name):
        return asked
    return (asked[0]._replace(kind=kind, bytes=match.bytes),)


def collective_uses(
    matched: Sequence[Matched], topology: Topology | None, *, is_known: bool
) -> tuple[CollectiveUse, ...]:
    """Return the collectives for the report; `is_known` tells that there is a module."""
    return tuple(_use(made, topology, is_known) for made in matched)


def _use(made: Matched, topology: Topology | None, is_known: bool) -> CollectiveUse:
    node, frame = made.node, made.node.source.frame
    return CollectiveUse(
        kind=node.op.name,
        reducer=reducer_of(node),
        dtype=node.operands[0].type.dtype,
        bytes=sum(operand.type.bytes for operand in node.operands),
        group_size=OverReplicas.of(node).group_size,
        times=made.times,
        pass_name=node.origin,
        source=str(node.source),
        became=_became(node.op.name, made.match) if is_known else NOT_COMPILED,
        num_groups=OverReplicas.of(node).num_copies,
        every=made.every,
        code=frame.text if frame else "",
        seconds=0.0 if topology is None else _seconds(topology, made),
    )


def _seconds(topology: Topology, matched: Matched) -> float:
    return sum(collective_seconds(topology, made) for made in matched.exchanges())


NOT_COMPILED = "not compiled"


def _became(kind: str, match: Match | None) -> str:
    """Describe the collective of the module that does the work of a collective of the graph."""
    if match is None:
        return "removed, or reshaped into others"
    found = match.collective
    words = [found.name]
    if found.kind != kind:
        words.append(f"as {found.kind}")
    if len(found.shapes) > 1:
        words.append(f"combined with {len(found.shapes) - 1}")
    if match.num_packed > 1:
        words.append(f"packed with {match.num_packed - 1}")
    if match.is_padded:
        words.append("padded")
    if found.is_fused:
        words.append("fused")
    if found.is_async:
        words.append("asynchronous")
    return ", ".join(words)
