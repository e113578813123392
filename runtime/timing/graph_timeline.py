"""The predicted timeline of a graph: how long a step takes, before anything is compiled.

The nodes of the graph that one device runs are laid out in their order on the lanes of `lanes.py`,
at the rates of `graphdist.runtime.targets.rates`, as the instructions of a compiled module are:

* a product takes the time of its operations or of its bytes, whichever is longer; a kernel the time
  of its operations; any other node the time of the bytes that it moves after fusion (`traffic.py`);
* an asynchronous collective or copy starts when its operands are there and its lane is free, and
  ends before the first node that reads its result. A result that only the next iteration reads
  hides behind the rest of the iteration;
* the compiler copies from the host one iteration ahead, so that such copies hide behind a whole
  iteration. It copies to the host one iteration behind: a value leaves from the start of the next
  iteration on, the largest first (libtpu 0.0.42), until that iteration writes its own value into
  the same buffer. What a loop carries is there at the start, and leaves until the end;
* a loop that copies values to the host begins with an iteration in front of it, which writes its
  other values into stacks, and fills these with zeros (libtpu 0.0.42);
* a loop is laid out for one iteration, and counted for all. Of a `while`, whose iterations depend
  on data, one iteration counts.

The compiler makes gathers and permutes asynchronous on TPUs, on tpu7x reductions too, and all
collectives on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TypeAlias

from graphdist.ir.collective_bytes import collective_of
from graphdist.ir.cost import node_cost, steps_per_run, trip_count
from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.host_copies import copies_from_host, copies_to_host
from graphdist.ir.kernels import KERNEL
from graphdist.ir.loops import Scan
from graphdist.ir.ops import ROTATE_OVER_CORES, SCAN
from graphdist.ir.traffic import PRODUCTS, traffic
from graphdist.runtime.targets.chips import Chip
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.timing.lanes import (
    FROM_HOST,
    LINKS,
    LINKS_BACK,
    TO_HOST,
    Event,
    Lanes,
    Turn,
)

GraphTurn: TypeAlias = Turn[Node]

_ASYNCHRONOUS = {"all_gather", "all_gather_over_cores", "collective_permute", "rotate_over_cores"}


def seconds_alone(node: Node, rates: ChipRates) -> float:
    """Return the seconds of all runs of a node, as if nothing were fused or overlapped with it.

    >>> from graphdist.ir.parser import parse
    >>> from graphdist.runtime.targets.topologies import find_topology
    >>> graph = parse('''graph f on 4 replicas, stage spmd
    ... (%x: f32[1000000] per_replica) {
    ...   %y = all_reduce(%x) {group_size=4, reducer="sum"} : f32[1000000] mirrored
    ...   return %y
    ... }''')
    >>> round(seconds_alone(graph.nodes[0], ChipRates.of(find_topology("v5e:2x2"))) * 1e6, 1)
    87.2
    """
    cost = node_cost(node)
    rate = rates.kernel if node.op.name == KERNEL else rates.products
    working = sum(rate(dtype, count) for dtype, count in cost.flops.items())
    return max(working, rates.bytes(cost.bytes)) + _communication(node, rates)


def _communication(node: Node, rates: ChipRates) -> float:
    own = collective_of(node).exchanges if node.op.is_collective else ()
    nested = (_communication(inner, rates) for graph in node.graphs for inner in graph.nodes)
    return sum(map(rates.collective, own)) + trip_count(node) * sum(nested)


def turn_of_graph(graph: Graph, rates: ChipRates) -> GraphTurn:
    """Return the timeline of a step of a graph on one device."""
    return _Layout(rates, graph.num_cores).turn(graph)


class _Layout:
    """Lays out each nested graph once."""

    def __init__(self, rates: ChipRates, num_cores: int) -> None:
        self.rates, self.num_cores = rates, num_cores
        self.turn = cache(self._turn)

    def _turn(self, graph: Graph, *, repeats: bool = False) -> GraphTurn:
        return _Nodes(self, graph, repeats=repeats).turn


@dataclass(eq=False)
class _Wait:
    """An asynchronous collective or copy, and its events; () before it has started."""

    node: Node
    ready: float
    """The seconds at which its operands are there."""
    events: tuple[Event[Node], ...] = ()
    has_ended: bool = False


class _Nodes:
    """The nodes of one run of a graph on its lanes."""

    def __init__(self, layout: _Layout, graph: Graph, *, repeats: bool) -> None:
        self._layout, self._rates, self._repeats = layout, layout.rates, repeats
        self._moved = traffic(graph, fuses_products=layout.rates.topology.chip.platform == "tpu")
        self._lanes: Lanes[Node] = Lanes()
        self._waits: dict[Operand, tuple[_Wait, ...]] = {}
        """What is under way, by the values that are computed from its results."""
        self._ahead: list[_Wait] = []
        """Copies to and from the host that have until the end of the iteration."""
        self._behind = self._leaving(graph) if repeats else {}
        """Copies to the host of the iteration before, by the values that take their places."""
        self._ready: dict[Operand, float] = {}
        """When each value was there, in seconds; inputs were there at the start."""
        for node in graph.nodes:
            self._run(node)
        self._hold(self._waits)
        self._end(self._ahead)
        self.turn = self._lanes.turn

    def _leaving(self, graph: Graph) -> dict[Operand, _Wait]:
        """Start to copy the values of the iteration before to the host."""
        leaving = dict[Operand, _Wait]()
        carried = set[Operand](graph.inputs)
        for node in graph.nodes:
            if copies_to_host(node):
                wait = _Wait(node, 0.0)
                leaving.update((value, wait) for value in node.operands if value not in carried)
            elif carried.issuperset(node.operands) and self._takes_no_time(node):
                carried.update(node.results)
        waits = dict.fromkeys(leaving.values())
        for wait in sorted(waits, key=lambda wait: -_operand_bytes(wait.node)):
            self._start(wait)
        return leaving

    def _takes_no_time(self, node: Node) -> bool:
        return not (node.graphs or node.op.is_collective or self._seconds(node))

    def _run(self, node: Node) -> None:
        behind = [self._behind[each] for each in node.results if each in self._behind]
        if node.op.is_collective:
            self._exchange(node)
        elif copies_to_host(node) or copies_from_host(node):
            self._copy(node)
        elif node.graphs:
            times = trip_count(node)
            turns = (self._layout.turn(nested, repeats=times > 1) for nested in node.graphs)
            longest = max(turns, key=lambda turn: turn.seconds)
            self._hold(node.operands)
            self._end(behind)
            self._lanes.call(node, longest, times, steps_per_run(node))
            if seconds := self._seconds(node):  # copies of scanned and stacked values
                self._lanes.compute(node, seconds)
            self._made(node.results)
        elif seconds := self._seconds(node):
            self._hold(node.operands)
            self._end(behind)
            self._lanes.compute(node, seconds)
            self._made(node.results)
        else:  # it is fused: its results wait for what its operands wait for
            ready, waits = self._there(node.operands), (*self._waits_of(node.operands), *behind)
            self._ready.update(dict.fromkeys(node.results, ready))
            self._waits.update(dict.fromkeys(node.results, waits))

    def _made(self, results: Iterable[Operand]) -> None:
        self._ready.update(dict.fromkeys(results, self._lanes.turn.seconds))

    def _there(self, values: Iterable[Operand]) -> float:
        """Return when all values are there, in seconds."""
        ready = [self._ready.get(each, 0.0) for each in values]
        ends = (wait.events[-1].end for wait in self._waits_of(values) if wait.events)
        return max(chain(ready, ends), default=0.0)

    def _waits_of(self, values: Iterable[Operand]) -> tuple[_Wait, ...]:
        return tuple(dict.fromkeys(chain(*(self._waits.get(each, ()) for each in values))))

    def _hold(self, values: Iterable[Operand]) -> None:
        """Wait for the collectives and the copies whose results are read."""
        self._end(self._waits_of(values))

    def _exchange(self, node: Node) -> None:
        if _is_asynchronous(node, self._rates.topology.chip):
            for before in self._waits_of(node.operands):
                if not before.events:
                    self._start(before)
            wait = _Wait(node, self._there(node.operands))
            self._start(wait)
            self._waits.update(dict.fromkeys(node.results, (wait,)))
        else:
            self._hold(node.operands)
            self._end([_Wait(node, self._lanes.turn.seconds)])
            self._made(node.results)

    def _copy(self, node: Node) -> None:
        """Copy a value to or from the host; outside loops, when the result is read."""
        is_behind = not self._behind.keys().isdisjoint(node.operands)
        if not is_behind:
            self._hold(node.operands)
        if seconds := self._seconds(node):
            self._lanes.compute(node, seconds)
        if is_behind:
            return
        wait = _Wait(node, self._there(node.operands))
        if self._repeats:
            self._start(wait)
            self._ahead.append(wait)
        else:
            self._waits.update(dict.fromkeys(node.results, (wait,)))

    def _start(self, wait: _Wait) -> None:
        node, rates, start = wait.node, self._rates, self._lanes.start
        if node.op.is_collective:
            is_back = node.op is ROTATE_OVER_CORES and ROTATE_OVER_CORES.of(node).ahead > 0
            links = LINKS_BACK if is_back else LINKS
            wait.events = tuple(
                start(node, links, rates.collective(each), each.kind, each.members, wait.ready)
                for each in collective_of(node, num_cores=self._layout.num_cores).exchanges
            )
        else:
            lane = TO_HOST if copies_to_host(node) else FROM_HOST
            seconds = rates.host(_operand_bytes(node))
            wait.events = (start(node, lane, seconds, ready=wait.ready),)

    def _end(self, waits: Iterable[_Wait]) -> None:
        for wait in waits:
            if not wait.events:
                self._start(wait)
            if not wait.has_ended:
                wait.has_ended = True
                for event in wait.events:
                    self._lanes.hold(event)

    def _seconds(self, node: Node) -> float:
        """Return the seconds that a node computes; 0 if it is fused into others."""
        rates, name = self._rates, node.op.name
        seconds = rates.bytes(self._moved.get(node, 0)) + rates.filling(_filled_bytes(node))
        if name == KERNEL or name in PRODUCTS:
            rate = rates.kernel if name == KERNEL else rates.products
            cost = node_cost(node)
            seconds = max(seconds, rate(cost.main_dtype, cost.total_flops))
        return (seconds + rates.timing.launch) * rates.timing.slowdown if seconds else 0.0


def _filled_bytes(node: Node) -> int:
    """Return the bytes of the stacks on the device that a loop fills with zeros first."""
    if node.op is not SCAN or not any(map(copies_to_host, node.graphs[0].nodes)):
        return 0
    copied = {
        each for body in node.graphs[0].nodes if copies_to_host(body) for each in body.results
    }
    stacks = [each for each in Scan(node).stacked if each.output not in copied]
    return sum(each.result.type.bytes for each in stacks)


def _operand_bytes(node: Node) -> int:
    return sum(operand.type.bytes for operand in node.operands)


def _is_asynchronous(node: Node, chip: Chip) -> bool:
    return chip.platform == "gpu" or chip.name == "tpu7x" or node.op.name in _ASYNCHRONOUS
