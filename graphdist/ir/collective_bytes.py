"""Records of collectives: how often each runs in a step, its operand's bytes, the bytes sent.

Collectives go around a ring. With an operand of b bytes on each of n replicas, each replica sends

    all_reduce                   2 b (n-1)/n
    all_gather                   b (n-1)
    reduce_scatter, all_to_all   b (n-1)/n
    any other                    b, to one other replica

Between several TPU slices or hosts, the network carries as few bytes as possible. A reduce_scatter
first reduces within each slice, and then reduces the resulting shards over the network. An
all_gather first exchanges shards over the network, and then joins them within each slice. So an
all_reduce takes as long as a reduce_scatter and an all_gather of its result.

Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from graphdist.ir.analyses import collectives
from graphdist.ir.cost import executions
from graphdist.ir.graph import Graph, Node
from graphdist.ir.op_parameters import Gathering, OverCores, OverReplicas, ReduceScattering
from graphdist.ir.ops import (
    ADD_BORDERS,
    ALL_REDUCE,
    EXCHANGE_BORDERS,
    REDUCE_SCATTER,
    ROTATE_OVER_CORES,
    reducer_of,
)
from graphdist.ir.source import Source

_BECOMES = {"reduce": "all_reduce", "gather": "all_gather"} | {
    f"{kind}_over_cores": kind
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
}
_BORDERS = (EXCHANGE_BORDERS, ADD_BORDERS)
_BECOMES |= {each.name: "collective_permute" for each in (*_BORDERS, ROTATE_OVER_CORES)}
"""The collective that each logical operation, and each operation over cores, becomes."""


class Exchange(NamedTuple):
    """One exchange between replicas, each of which has an operand of `bytes`.

    The replicas are divided into groups of equal size, and all groups exchange at the same time.
    `members` are the indices of the replicas of one group.
    """

    kind: str
    bytes: int
    members: Sequence[int]

    @property
    def bytes_sent(self) -> float:
        """Return the bytes that each replica sends.

        >>> Exchange("all_reduce", 100, range(4)).bytes_sent
        150.0
        """
        return sum(self.bytes_sent_over())

    def bytes_sent_over(self, num_slices: int = 1) -> tuple[float, float]:
        """Return the bytes that each replica sends within its slice or host, and over the network.

        The replicas of a group are evenly distributed over `num_slices` slices or hosts.
        """
        size, across = self.bytes, num_slices
        inside = len(self.members) // across
        match self.kind:
            case "all_reduce":
                return 2 * size * (inside - 1) / inside, 2 * size / inside * (across - 1) / across
            case "all_gather":
                return size * across * (inside - 1), size * (across - 1)
            case "reduce_scatter":
                return size * (inside - 1) / inside, size / inside * (across - 1) / across
            case "all_to_all":
                return size * (inside - 1) / inside, size * (across - 1) / across
            case "network_send":
                return 0, size
            case _:
                return size * (inside > 1), size * (across > 1)


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a program.

    `bytes` is the size of the operand on each replica, `size` elements of `dtype`. Each of
    `num_groups` groups of `group_size` replicas runs the collective. `pass_name` is the pass that
    made it ("" if the user's program did), `source` the user's line. Only one step in `every` runs
    the collective, and such a step runs it `times` times. `stages` are the numbers of replicas in
    the stages of a reduce_scatter or an all_gather; () is one stage. The cores of a replica are a
    group, too. The devices of a group are `spacing` apart: the cores of a replica are consecutive.
    """

    kind: str
    reducer: str
    dtype: str
    size: int
    bytes: int
    group_size: int
    num_groups: int
    pass_name: str
    source: Source
    times: int = 1
    every: int = 1
    stages: tuple[int, ...] = ()
    spacing: int = 1

    @property
    def in_module(self) -> str:
        """Return the kind of the collective of a module that does its work."""
        return _BECOMES.get(self.kind, self.kind)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Return the exchanges of one run, in their order.

        A collective with `stages` has an exchange for each. With several groups, a reduce_scatter
        is followed by an all_reduce of the shards between the groups. `reduce` and `gather` count
        as all_reduce and all_gather, which they become.
        """
        kind = self.in_module
        inside = tuple(self._inside(kind))
        if self.num_groups == 1 or kind != REDUCE_SCATTER.name:
            return inside
        # Replicas with the same index in their group are one group's size apart.
        distance = self.group_size * self.spacing
        across = range(0, self.num_groups * distance, distance)
        return *inside, Exchange(ALL_REDUCE.name, self.bytes // self.group_size, across)

    def _inside(self, kind: str) -> Iterator[Exchange]:
        """Yield the exchanges in a group. The first number of the stages is the most significant.

        A reduce_scatter divides its operand by the numbers in this order; an all_gather joins its
        operands in the reverse order.
        """
        stages, size, scatters = self.stages or (self.group_size,), self.bytes, kind != "all_gather"
        digits = [
            (count, prod(stages[index + 1 :], start=self.spacing))
            for index, count in enumerate(stages)
        ]
        for count, stride in digits if scatters else reversed(digits):
            yield Exchange(kind, size, range(0, count * stride, stride))
            size = size // count if scatters else size * count

    @property
    def bytes_sent(self) -> float:
        """Return the bytes that each replica sends in one run."""
        return sum(exchange.bytes_sent for exchange in self.exchanges)

    def __str__(self) -> str:
        made_by = self.pass_name or "the program"
        kind = f"{self.kind} {self.reducer}".strip()
        groups = f"{self.num_groups}x" if self.num_groups > 1 else ""
        who = "replicas" if self.kind == self.in_module else "cores   "
        return (
            f"{kind:<16} {self.bytes:>12,} bytes  {f'{groups}{self.group_size}':>4} {who}  "
            f"{made_by:<28} {self.source}"
        )

    __repr__ = __str__  # in a REPL and in a notebook


class Collectives(tuple[Collective, ...]):
    """The collectives of a program, in order. A REPL shows a line for each."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "no collectives"


def collective_of(node: Node, times: int = 1, every: int = 1, num_cores: int = 1) -> Collective:
    """Return the record of a collective node, in a graph whose replicas have so many cores."""
    params, num_groups, spacing = node.params, 1, 1
    if isinstance(params, OverReplicas):
        group_size, num_groups, spacing = params.group_size, params.num_groups, num_cores
    else:
        group_size = OverCores.of(node).num_cores
    size = sum(operand.type.size for operand in node.operands)
    in_bytes = sum(operand.type.bytes for operand in node.operands)
    if node.op in _BORDERS:  # it sends the borders alone
        (result,) = node.results
        size, in_bytes = abs(result.type.size - size), abs(result.type.bytes - in_bytes)
    return Collective(
        kind=node.op.name,
        reducer=reducer_of(node),
        dtype=node.operands[0].type.dtype,
        size=size,
        bytes=in_bytes,
        group_size=group_size,
        num_groups=num_groups,
        pass_name=node.origin,
        source=node.source,
        times=times,
        every=every,
        stages=params.stages if isinstance(params, Gathering | ReduceScattering) else (),
        spacing=spacing,
    )


def collectives_of(graph: Graph) -> Collectives:
    """Return the collectives of a graph, those in loops and branches included.

    The collectives are in the order in which every replica reaches them.
    """
    runs = {id(node): (times, every) for node, times, every in executions(graph)}
    return Collectives(
        collective_of(node, *runs[id(node)], graph.num_cores) for node in collectives(graph)
    )
