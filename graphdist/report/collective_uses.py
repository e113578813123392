"""The collectives of a graph, and the collectives of the compiled module that replace them.

XLA turns some all_gathers and reduce_scatters into all_reduces, and pads some. The report names the
collective of the module, and the estimate of the time counts the bytes that this collective sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from graphdist.ir.collective_bytes import Collective, Exchange, collectives_of
from graphdist.ir.graph import Graph
from graphdist.ir.ops import ALL_REDUCE
from graphdist.runtime.module.collective_instructions import ModuleCollective
from graphdist.runtime.module.collective_matching import Match, match_collectives
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.targets.routes import route_of
from graphdist.runtime.targets.topologies import Topology


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """A collective of the graph, and the collective of the module that does its work.

    `bytes` is the size of the operand on each replica. Only every `every`-th step runs the
    collective, and such a step runs the collective `times` times, in `num_groups` groups of
    `group_size` replicas. `became` describes the collective of the module in words. `code` is the
    text of the user's line. `seconds` is the estimated time of all runs in a step, 0 if unknown,
    `links` the links and networks that it uses.
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
    links: str = ""

    @property
    def title(self) -> str:
        """Return the kind with the reducer, such as `all_reduce sum`."""
        return f"{self.kind} {self.reducer}".strip()

    @property
    def place(self) -> str:
        """Return the user's line without the folders of its file."""
        return self.source.rpartition("/")[2]

    @property
    def bytes_a_step(self) -> int:
        """Return the bytes of the operands on each replica per step, on average."""
        return round(self.bytes * self.times / self.every)


_OF_THE_GRAPH = (
    "kind", "reducer", "dtype", "bytes", "group_size", "num_groups", "times", "every", "pass_name",
)  # fmt: skip
"""The fields that a `CollectiveUse` has in common with the collective of the graph."""


NOT_COMPILED = "not compiled"
"""What became of a collective of a graph that has no module."""


class Matched(NamedTuple):
    """A collective of the graph, and its match in the module; None without a known match."""

    collective: Collective
    match: Match | None

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Return the exchanges of one run, with kind and bytes from the module if known."""
        asked, match = self.collective, self.match
        # Collectives that XLA has split or packed send as many bytes as in the graph.
        if match is None or match.num_packed > 1 or asked.num_groups > 1:
            return asked.exchanges
        kind = match.collective.kind
        if kind == ALL_REDUCE.name or (kind == asked.in_module and not asked.stages):
            members = range(0, asked.group_size * asked.spacing, asked.spacing)
            return (Exchange(kind, match.bytes, members),)
        return asked.exchanges

    def use(self, topology: Topology | None, *, is_compiled: bool) -> CollectiveUse:
        """Return the collective for the report. `is_compiled` says whether there is a module."""
        asked, frame = self.collective, self.collective.source.frame
        return CollectiveUse(
            **{name: getattr(asked, name) for name in _OF_THE_GRAPH},
            source=str(asked.source),
            became=_became(asked.in_module, self.match) if is_compiled else NOT_COMPILED,
            code=frame.text if frame else "",
            seconds=self._seconds(topology) if topology else 0.0,
            links=_links(topology, self.exchanges) if topology else "",
        )

    def _seconds(self, topology: Topology) -> float:
        """Return the seconds of all runs in a step, on average."""
        runs = self.collective.times / self.collective.every
        return runs * sum(map(ChipRates.of(topology).collective, self.exchanges))


def matched_collectives(graph: Graph, module: Sequence[ModuleCollective]) -> tuple[Matched, ...]:
    """Return the collectives of a graph, matched with the module's, in the graph's order."""
    asked = collectives_of(graph)
    return tuple(map(Matched, asked, match_collectives(module, asked)))


def as_in_timeline(
    uses: Iterable[CollectiveUse], matched: Sequence[Matched], seconds: Mapping[str, float]
) -> tuple[CollectiveUse, ...]:
    """Return the uses with their parts of the seconds that the module's collectives take in a step.

    `seconds` has the seconds of each collective of the module by name. What XLA has combined shares
    them by bytes.
    """
    matches = [each.match for each in matched]
    whole: Counter[str] = Counter()
    for match in filter(None, matches):
        whole[match.collective.name] += match.bytes
    return tuple(
        use
        if match is None or match.collective.name not in seconds
        else replace(
            use,
            seconds=seconds[match.collective.name] * match.bytes / whole[match.collective.name],
        )
        for use, match in zip(uses, matches, strict=True)
    )


def _links(topology: Topology, exchanges: Sequence[Exchange]) -> str:
    routes = (str(route_of(topology, exchange.members)) for exchange in exchanges)
    return ", ".join(dict.fromkeys(filter(None, routes)))


def _became(kind: str, match: Match | None) -> str:
    """Describe the collective of the module that does the work of a collective of the graph."""
    if match is None:
        return "removed, or reshaped into others"
    found = match.collective
    notes = {
        f"as {found.kind}": found.kind != kind,
        f"combined with {len(found.shapes) - 1}": len(found.shapes) > 1,
        f"packed with {match.num_packed - 1}": match.num_packed > 1,
        "padded": match.is_padded,
        "fused": found.is_fused,
        "asynchronous": found.is_async,
    }
    return ", ".join([found.name, *(note for note, applies in notes.items() if applies)])
