"""A graph as records in order, with the facts that formats show of a node.

1. Inputs come first, then the nodes, then `return`. The nodes of a nested graph follow the node
   they are nested in. A record refers to another by its position.
2. Ids are the names in the text: a node has the name of its first result or, without results, its
   operation and position. The same program gives the same ids.
3. A nested graph's inputs are records too. The operands of such a record are the operands of the
   node that has the nested graph, so that edges continue into the body.
4. Groups are computed in `graphdist.viz.groups`, from the records.

The seconds of a node are estimated (`graphdist.runtime.timing.graph_timeline`) as if the node ran
alone. XLA fuses nodes and overlaps collectives with computation, so the seconds do
not add up to the time of a step, but they show the longest nodes. The bytes held are counted
by `graphdist.ir.live_memory`, which leaves out what XLA fuses. XLA may hold more or less, because
it changes the order of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from graphdist.ir.analyses import walk
from graphdist.ir.collective_bytes import collective_of
from graphdist.ir.cost import node_cost, steps_per_run, trip_count
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.layouts_over_cores import text_of_cores
from graphdist.ir.live_memory import live_memory
from graphdist.ir.op_parameters import OfVariable, OverCores
from graphdist.ir.printer import Printer, line_text, op_text
from graphdist.ir.source import Frame
from graphdist.ir.types import Type
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.targets.topologies import Topology
from graphdist.runtime.timing.graph_timeline import seconds_alone


class CollectiveFacts(NamedTuple):
    """A collective: its reducer, and the bytes of the operands of each member of a group.

    Members are replicas, or the cores of a replica.
    """

    reducer: str
    bytes: int
    group_size: int
    is_over_cores: bool = False

    @property
    def over(self) -> str:
        """Return between whom it is, such as "4 replicas"."""
        return f"{self.group_size} {'cores' if self.is_over_cores else 'replicas'}"


class Facts(NamedTuple):
    """The facts of a node that do not depend on its graph.

    `op` and `parameters` are as in the text of a graph. The text has numbers for parameters that
    cannot be printed, so `parameters` may differ between graphs. `frames` begin with the
    innermost. `bytes` is the size of the results. `bytes`, `collective.bytes` and `seconds` are
    for one run of the node on one replica. `seconds` is 0 without a topology. `trips` is the number
    of iterations of a loop, 0 if the number depends on data.
    """

    op: str
    parameters: str = ""
    types: tuple[str, ...] = ()
    bytes: int = 0
    distribution: str = ""
    flops: int = 0
    trips: int = 0
    origin: str = ""
    scope: str = ""
    variable: str = ""
    seconds: float = 0.0
    collective: CollectiveFacts | None = None
    frames: tuple[Frame, ...] = ()

    @property
    def kind(self) -> str:
        """Return the operation. A collective has its reducer too: `all_reduce sum`."""
        return f"{self.op} {self.collective.reducer}".strip() if self.collective else self.op

    @property
    def place(self) -> str:
        """Return the file and line of the node; "" for an unknown line."""
        return f"{self.frames[0].file}:{self.frames[0].line}" if self.frames else ""

    @property
    def line(self) -> str:
        """Return the place of the node without the folders of the file."""
        return self.place.rpartition("/")[2]


Reference = int | tuple[int, int] | str
"""An operand: a record's position, a pair of a position and an index of a result, or a text.

A position alone stands for a record with one result, a text for a literal.
"""


@dataclass(slots=True)
class Record:
    """One node of the picture.

    `results` are names. `parent` is the position of the node in whose body the record is, -1
    outside all bodies. `own_text` is the text of an input or of `return`, which have no node.
    `times` is how often the record runs in a step, on average. The body of a loop runs once for
    each iteration; of a `while`, whose number of iterations depends on data, it counts once.
    `cores` says how the cores of a replica hold the results, "" in a graph that is not split.
    """

    id: str
    node: Node | None
    parent: int
    facts: Facts
    results: list[str]
    operands: list[Reference]
    own_text: str = ""
    times: float = 1
    cores: str = ""

    @property
    def moved(self) -> int:
        """Return the bytes of a collective's operands on each replica per step, in all its runs."""
        collective = self.facts.collective
        return round(collective.bytes * self.times) if collective else 0

    @property
    def inputs(self) -> list[int]:
        """Return the positions of the records that the operands refer to, each once."""
        references = (each for each in self.operands if not isinstance(each, str))
        return list(dict.fromkeys(_position_and_result(each)[0] for each in references))


@dataclass(frozen=True)
class Model:
    """The records of a graph, and the positions of its nodes and values among them."""

    graph: Graph
    records: list[Record]
    position_of: dict[Node, int]
    reference_to: dict[Value, Reference]
    names: dict[Value, str]

    def position_of_value(self, value: Value) -> int:
        """Return the position of the record that a value is a result of."""
        reference = self.reference_to[value]
        assert not isinstance(reference, str)
        return _position_and_result(reference)[0]

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes, those of nested graphs included. Inputs are no nodes."""
        return sum(record.node is not None for record in self.records)

    @property
    def moved(self) -> int:
        """Return the bytes of all collectives' operands on each replica per step."""
        return sum(record.moved for record in self.records)

    @property
    def collectives(self) -> list[int]:
        """Return the positions of the collectives, in the order every replica reaches them."""
        return [i for i, record in enumerate(self.records) if record.facts.collective]

    @cached_property
    def users(self) -> list[list[int]]:
        """Return, for each record, the positions of its users, each once."""
        users: list[list[int]] = [[] for _ in self.records]
        for position, record in enumerate(self.records):
            for producer in record.inputs:
                users[producer].append(position)
        return users

    def text(self, record: Record) -> str:
        """Return the line of a record in the text of the graph."""
        if record.own_text:
            return record.own_text
        facts, operands = record.facts, [self._name(operand) for operand in record.operands]
        return line_text(record.results, facts.op, operands, facts.parameters, facts.types)

    def described(self, record: Record) -> dict[str, str | int]:
        """Return the facts of a record that other tools show, by name."""
        facts = record.facts
        return {
            "text": self.text(record),
            "bytes": facts.bytes,
            "flops": facts.flops,
            "source": facts.place,
            "pass": facts.origin,
            **({"cores": record.cores} if record.cores else {}),
        }

    def _name(self, operand: Reference) -> str:
        if isinstance(operand, str):
            return operand
        position, result = _position_and_result(operand)
        return self.records[position].results[result]


def _position_and_result(reference: int | tuple[int, int]) -> tuple[int, int]:
    return (reference, 0) if isinstance(reference, int) else reference


def model_of(graph: Graph) -> Model:
    """Return the records of a graph.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.neg(%x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> [(record.id, record.inputs) for record in model_of(graph).records]
    [('%x', []), ('%y', [0]), ('return', [1])]
    """
    return models_of([graph])[graph]


def models_of(
    graphs: Iterable[Graph],
    topology: Topology | None = None,
    seconds: Mapping[Node, float] | None = None,
) -> dict[Graph, Model]:
    """Return, for each graph, the model from which it is drawn.

    The facts of a node that several graphs share are computed once. The field `seconds` of a node's
    facts is what `seconds` says, else its estimated time on a chip of `topology`, and 0 without a
    topology.
    """
    drawn = dict.fromkeys(graphs)
    num_cores = max((graph.num_cores for graph in drawn), default=1)
    cache = _FactsCache(topology, seconds or {}, num_cores)
    return {graph: _Records(graph, cache).model() for graph in drawn}


class _FactsCache:
    """Computes the facts of a node once, and the text of a type once."""

    def __init__(
        self, topology: Topology | None, seconds: Mapping[Node, float], num_cores: int
    ) -> None:
        self._seconds, self._num_cores = seconds, num_cores
        self._rates = ChipRates.of(topology) if topology else None
        self.of_node, self.of_input = cache(self._of_node), cache(self._of_input)
        self._type = cache(lambda type: (str(type), type.bytes, str(type.layout or "")))
        self.parameters: dict[Node, str] = {}

    def _of_node(self, node: Node, parameters: str) -> Facts:
        params = node.params
        return Facts(
            op_text(node),
            parameters,
            *self._results(*[value.type for value in node.results]),
            flops=node_cost(node).total_flops,
            trips=trip_count(node) if node.op.name == "scan" else 0,
            origin=node.origin,
            scope=node.source.scope,
            variable=f"@{params.variable.name}" if isinstance(params, OfVariable) else "",
            seconds=self._seconds_of(node),
            collective=_collective_facts(node) if node.op.is_collective else None,
            frames=node.source.frames,
        )

    def _seconds_of(self, node: Node) -> float:
        known = self._seconds.get(node)
        if known is None:
            return node_seconds(node, self._rates, self._num_cores) if self._rates else 0.0
        return rounded_seconds(known)

    def _of_input(self, type: Type, variable: str) -> Facts:
        op = "variable" if variable else "input"
        return Facts(op, "", *self._results(type), variable=variable)

    def _results(self, *types: Type) -> tuple[tuple[str, ...], int, str]:
        """Return the texts of types, the bytes of their values, and how they are distributed."""
        facts = [self._type(type) for type in types]
        kinds = dict.fromkeys(distribution for _, _, distribution in facts if distribution)
        return tuple(text for text, _, _ in facts), sum(n for _, n, _ in facts), ", ".join(kinds)


def _collective_facts(node: Node) -> CollectiveFacts:
    collective = collective_of(node)
    is_over_cores = isinstance(node.params, OverCores)
    return CollectiveFacts(
        collective.reducer, collective.bytes, collective.group_size, is_over_cores
    )


class _Records:
    """The records of a graph, made in the order of its text, with the printer's names."""

    def __init__(self, graph: Graph, cache: _FactsCache) -> None:
        self.graph, self.cache = graph, cache
        self.printer = Printer(graph, kept=cache.parameters)
        self.records: list[Record] = []
        self.position_of: dict[Node, int] = {}
        self.reference_to: dict[Value, Reference] = {}

    def model(self) -> Model:
        outputs = self.graph.outputs
        self._add(self.graph)
        text = f"return {', '.join(map(self.printer.operand, outputs))}".rstrip()
        operands = self._references(outputs)
        self.records.append(Record("return", None, -1, Facts("return"), [], operands, text))
        names = self.printer.names
        return Model(self.graph, self.records, self.position_of, self.reference_to, names)

    def _add(
        self, graph: Graph, operands: tuple[Operand, ...] = (), parent: int = -1, times: float = 1
    ) -> None:
        """Add the inputs and the nodes of a graph.

        For a nested graph, `operands` are the operands of the node that has the graph, and `parent`
        is the node's position. `times` is how often the graph runs in a step.
        """
        again = self.printer.begin(graph)
        self._inputs(graph, operands, again, parent)
        for node in graph.nodes:
            position = self.position_of[node] = len(self.records)
            self._node(node, again, parent, times)
            inside, every = times * trip_count(node), steps_per_run(node)
            for nested in node.graphs:
                self._add(nested, node.operands, position, inside / every if every > 1 else inside)

    def _inputs(
        self, graph: Graph, operands: tuple[Operand, ...], again: bool, parent: int
    ) -> None:
        bound = [f"@{variable.name}" for variable in graph.variables] if graph.is_placed else []
        # The inputs are the last operands: of a branch those after the index, of a scan all.
        sources = operands[len(operands) - len(graph.inputs) :]
        for index, value in enumerate(graph.inputs):
            variable = bound[index] if index < len(bound) else ""
            source = self._references(sources[index : index + 1])
            name = self.printer.define(value, again)
            facts = self.cache.of_input(value.type, variable)
            text = f"{name}: {facts.types[0]}" + (f" = {variable}" if variable else "")
            self.reference_to[value] = len(self.records)
            cores = text_of_cores(self.graph, [value])
            self.records.append(Record(name, None, parent, facts, [name], source, text, 1, cores))

    def _node(self, node: Node, again: bool, parent: int, times: float) -> None:
        position, results = len(self.records), node.results
        operands = self._references(node.operands)
        names = [self.printer.define(value, again) for value in results]
        facts = self.cache.of_node(node, self.printer.parameters(node) if node.params else "")
        name = names[0] if names else f"{node.op.name}#{position}"
        cores = text_of_cores(self.graph, results)
        self.records.append(Record(name, node, parent, facts, names, operands, "", times, cores))
        is_alone = len(results) == 1
        for number, value in enumerate(results):
            self.reference_to[value] = position if is_alone else (position, number)

    def _references(self, operands: tuple[Operand, ...]) -> list[Reference]:
        known = self.reference_to
        return [
            known[operand]
            if isinstance(operand, Value) and operand in known
            else self.printer.operand(operand)
            for operand in operands
        ]


def node_seconds(node: Node, rates: ChipRates, num_cores: int) -> float:
    """Return the estimated seconds of one run of a node.

    The result is 0 for a loop or branch, because the nodes of its bodies have seconds of their own.
    """
    if node.op.is_collective:
        collective = collective_of(node, num_cores=num_cores)
        return rounded_seconds(sum(map(rates.collective, collective.exchanges)))
    return 0.0 if node.graphs else rounded_seconds(seconds_alone(node, rates))


def rounded_seconds(seconds: float) -> float:
    """Return seconds with nine digits, so that a text of them is that of the report."""
    return float(f"{seconds:.9g}")


@dataclass(frozen=True)
class Timeline:
    """The bytes held while each node of the outermost graph runs, and the values at the peak.

    `steps` has pairs of a record's position and the bytes held while the record runs. `peak` is the
    largest number of bytes. `live` has, for each value that is held at the peak, its name, its
    bytes, the position of the record that it is a result of, and the type in which it is held if
    that is another type than the record's ("" otherwise). The largest value is first. Values of the
    loops that run at the peak are among them, so that the bytes add up to the peak.
    """

    steps: list[tuple[int, int]]
    peak: int
    peak_step: int
    live: list[tuple[str, int, int, str]]


def memory_timeline(model: Model) -> Timeline:
    """Return the bytes held while each node runs.

    >>> from graphdist.ir.parser import parse
    >>> from graphdist.viz.model import model_of
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.neg(%x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> memory_timeline(model_of(graph)).steps
    [(1, 24)]
    """
    held = live_memory(model.graph)
    positions = (model.position_of[node] for node in model.graph.nodes)
    steps = list(zip(positions, held.during, strict=True))
    _, alive = held.at_peak()
    dtypes = sorted({value.type.dtype for node in walk(model.graph) for value in node.results})

    def held_as(type: Type, size: int) -> str:  # a smaller type, if the value is converted to it
        others = [type._replace(dtype=each) for each in dtypes if size < type.bytes]
        return next((str(each) for each in others if each.bytes == size), "")

    live = [
        (model.names[value], size, model.position_of_value(value), held_as(value.type, size))
        for value, size in alive
        if size
    ]
    return Timeline(steps, held.peak, held.position, sorted(live, key=lambda entry: -entry[1]))
