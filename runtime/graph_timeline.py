"""The predicted timeline of a graph: how long a step takes, before anything is compiled.

The nodes of the graph that one device runs are laid out in their order on the lanes of `lanes.py`,
at the rates of `targets/rates.py`, as the instructions of a compiled module are:

* a product takes the time of its operations or of its bytes, whichever is longer; a kernel the time
  of its operations; any other node the time of the bytes that it moves after fusion (`traffic.py`);
* an asynchronous collective or copy starts when its operands are there and its lane is free, and
  ends before the first node that reads its result. A result that only the next iteration reads
  hides behind the rest of the iteration. The compiler copies to and from the host one iteration
  ahead or behind, so that such copies hide behind a whole iteration;
* a loop is laid out for one iteration, and counted for all.

The compiler makes gathers and permutes asynchronous on TPUs, on tpu7x reductions too, and all
collectives on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from graphdist.ir.collective_bytes import collective_of
from graphdist.ir.cost import node_cost, steps_per_run, trip_count
from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.host_copies import DEVICE_PUT, copies_to_host
from graphdist.ir.kernels import KERNEL
from graphdist.ir.traffic import PRODUCTS, traffic
from graphdist.runtime.lanes import FROM_HOST, LINKS, TO_HOST, Event, Lanes, Turn
from graphdist.runtime.targets.chips import Chip
from graphdist.runtime.targets.rates import ChipRates

GraphTurn: TypeAlias = Turn[Node]

_ASYNCHRONOUS = {"all_gather", "collective_permute"}


def turn_of_graph(graph: Graph, rates: ChipRates) -> GraphTurn:
    """Return the timeline of a step of a graph on one device."""
    return _Layout(rates).turn(graph)


class _Layout:
    """Lays out each nested graph once."""

    def __init__(self, rates: ChipRates) -> None:
        self.rates = rates
        self.turn = cache(self._turn)

    def _turn(self, graph: Graph, *, repeats: bool = False) -> GraphTurn:
        return _Nodes(self, graph, repeats=repeats).turn


@dataclass(eq=False)
class _Wait:
    """An asynchronous collective or copy, whose operands are there at `ready` seconds."""

    node: Node
    ready: float
    event: Event[Node] | None = None
    has_ended: bool = False


class _Nodes:
    """The nodes of one run of a graph on its lanes."""

    def __init__(self, layout: _Layout, graph: Graph, *, repeats: bool) -> None:
        self._layout, self._rates = layout, layout.rates
        self._repeats = repeats
        is_tpu = self._rates.topology.chip.platform == "tpu"
        self._moved = traffic(graph, fuses_products=is_tpu)
        self._lanes: Lanes[Node] = Lanes()
        self._waits: dict[Operand, set[_Wait]] = {}
        """What is under way, by the values that are computed from its results."""
        self._ahead: list[_Wait] = []
        """Copies to and from the host for which the iteration does not wait."""
        self._ready: dict[Operand, float] = {}
        """When each value was there, in seconds; inputs were there at the start."""
        for node in graph.nodes:
            self._run(node)
        self._hold(self._waits)
        for wait in self._ahead:
            self._end(wait)
        self.turn = self._lanes.turn

    def _run(self, node: Node) -> None:
        if node.op.is_collective or node.op.name == DEVICE_PUT:
            self._send(node)
            return
        if not (node.graphs or self._seconds(node)):
            self._pass_on(node)
            return
        self._hold(node.operands)
        if node.graphs:
            times = trip_count(node)
            turns = (self._layout.turn(nested, repeats=times > 1) for nested in node.graphs)
            longest = max(turns, key=lambda turn: turn.seconds)
            self._lanes.call(node, longest, times, steps_per_run(node))
        else:
            self._lanes.compute(node, self._seconds(node))
        self._ready.update(dict.fromkeys(node.results, self._lanes.turn.seconds))

    def _pass_on(self, node: Node) -> None:
        """Let the results of a fused node wait for what its operands wait for."""
        ready = self._there(node.operands)
        waits = {wait for each in node.operands for wait in self._waits.get(each, ())}
        for result in node.results:
            self._ready[result] = ready
            if waits:
                self._waits[result] = waits

    def _there(self, values: Iterable[Operand]) -> float:
        """Return when all values are there, in seconds."""
        return max((self._ready.get(each, 0.0) for each in values), default=0.0)

    def _send(self, node: Node) -> None:
        """Start a collective or a copy. Copies outside loops start when their results are read."""
        self._hold(node.operands)
        wait = _Wait(node, self._there(node.operands))
        is_collective = node.op.is_collective
        if is_collective and not _is_asynchronous(node, self._rates.topology.chip):
            wait.ready = self._lanes.turn.seconds
            self._end(wait)
            self._ready.update(dict.fromkeys(node.results, self._lanes.turn.seconds))
            return
        is_ahead = self._repeats and node.op.name == DEVICE_PUT
        if is_collective or is_ahead:
            self._start(wait)
        if is_ahead:
            self._ahead.append(wait)
        else:
            self._waits.update({result: {wait} for result in node.results})

    def _hold(self, values: Iterable[Operand]) -> None:
        """Wait for the collectives and the copies whose results are read."""
        for wait in dict.fromkeys(wait for each in values for wait in self._waits.get(each, ())):
            self._end(wait)

    def _end(self, wait: _Wait) -> None:
        if not wait.has_ended:
            wait.has_ended = True
            self._lanes.hold(wait.event or self._start(wait))

    def _start(self, wait: _Wait) -> Event[Node]:
        node, rates, start = wait.node, self._rates, self._lanes.start
        if node.op.is_collective:
            for exchange in collective_of(node).exchanges:
                seconds, kind = rates.collective(exchange), exchange.kind
                wait.event = start(node, LINKS, seconds, kind, exchange.members, wait.ready)
        else:
            lane = TO_HOST if copies_to_host(node) else FROM_HOST
            seconds = rates.host(sum(each.type.bytes for each in node.operands))
            wait.event = start(node, lane, seconds, ready=wait.ready)
        assert wait.event is not None, "a collective has exchanges"
        return wait.event

    def _seconds(self, node: Node) -> float:
        """Return the seconds that a node computes; 0 if it is fused into others."""
        rates, name = self._rates, node.op.name
        seconds = rates.bytes(self._moved.get(node, 0))
        if name == KERNEL or name in PRODUCTS:
            rate = rates.kernel if name == KERNEL else rates.products
            cost = node_cost(node)
            seconds = max(seconds, rate(cost.main_dtype, cost.total_flops))
        return (seconds + rates.timing.launch) * rates.timing.slowdown if seconds else 0.0


def _is_asynchronous(node: Node, chip: Chip) -> bool:
    return chip.platform == "gpu" or chip.name == "tpu7x" or node.op.name in _ASYNCHRONOUS
