"""A graph as records in order, with the facts that formats show of a node.

1. Inputs come first, then the nodes, then `return`. The nodes of a nested graph follow the node
   they are nested in. A record refers to another by its position.
2. Ids are the names in the text: a node has the name of its first result or, without results, its
   operation and position. The same program gives the same ids.
3. A nested graph's inputs are records too. They take the operands of its node, so that edges
   continue into the body.
4. Groups are computed in `graphdist.viz.groups`, from the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from graphdist.ir.collective_records import collective_of
from graphdist.ir.cost import of_node, trips
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.op_parameters import OfVariable
from graphdist.ir.ops import reducer_of
from graphdist.ir.printer import Printer, line_text, op_text
from graphdist.ir.source import Frame
from graphdist.ir.types import Type
from graphdist.runtime.targets.topologies import Topology
from graphdist.viz.estimates import node_seconds

__all__ = ["Facts", "Model", "Record", "model_of", "models_of"]


class Facts(NamedTuple):
    """The facts of a node that do not depend on its graph.

    `op` and `parameters` are as in the text of a graph. That text numbers parameters without a text
    of their own, so `parameters` may differ between graphs. `frames` begin with the innermost.
    `bytes` is the size of the results on one replica, `moved` the size of a collective's operands,
    both for one run, as are `seconds`, which are 0 without a topology. `trips` is how often a loop
    runs its body, 0 if it depends on data.
    """

    op: str
    parameters: str = ""
    types: tuple[str, ...] = ()
    bytes: int = 0
    distribution: str = ""
    flops: int = 0
    trips: int = 0
    moved: int = 0
    group_size: int = 0
    reducer: str = ""
    is_collective: bool = False
    origin: str = ""
    scope: str = ""
    variable: str = ""
    seconds: float = 0.0
    frames: tuple[Frame, ...] = ()

    @property
    def place(self) -> str:
        """Return the file and line of the node, "" if they are unknown."""
        return f"{self.frames[0].file}:{self.frames[0].line}" if self.frames else ""


Reference = int | tuple[int, int] | str
"""An operand: the position of a record of one result, position and result of another, or text."""


@dataclass(slots=True)
class Record:
    """One node of the picture.

    `results` are names. `parent` is the position of the node it is nested in, -1 at the top.
    `own_text` is the text of a record without a node: of an input, and of `return`. `times` counts
    its runs in a step: a loop runs its body once for each trip, and a `while` counts as one trip.
    """

    id: str
    node: Node | None
    parent: int
    facts: Facts
    results: list[str]
    operands: list[Reference]
    own_text: str = ""
    times: int = 1

    @property
    def moved(self) -> int:
        """Return the bytes that each replica puts into a collective in a step, all runs of it."""
        return self.facts.moved * self.times

    @property
    def inputs(self) -> list[int]:
        """Return the positions of the records of its operands, each once."""
        found = [reference for reference in self.operands if not isinstance(reference, str)]
        return list(
            dict.fromkeys(
                [reference if isinstance(reference, int) else reference[0] for reference in found]
            )
        )


@dataclass(frozen=True)
class Model:
    """The records of a graph, and where each node and each value is among them."""

    graph: Graph
    records: list[Record]
    position_of: dict[Node, int]
    reference_to: dict[Value, Reference]
    names: dict[Value, str]

    def position_of_value(self, value: Value) -> int:
        """Return the position of the record that a value is a result of."""
        reference = self.reference_to[value]
        assert not isinstance(reference, str)
        return reference if isinstance(reference, int) else reference[0]

    @property
    def collectives(self) -> list[int]:
        """Return the positions of the collectives, in the order every replica reaches them."""
        return [i for i, record in enumerate(self.records) if record.facts.is_collective]

    @cached_property
    def users(self) -> list[list[int]]:
        """Return for each record the positions of its users, each once."""
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

    def _name(self, operand: Reference) -> str:
        if isinstance(operand, str):
            return operand
        position, result = (operand, 0) if isinstance(operand, int) else operand
        return self.records[position].results[result]


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


def models_of(graphs: Iterable[Graph], topology: Topology | None = None) -> dict[Graph, Model]:
    """Return the model of each graph, once, in order; nodes that graphs share are read once."""
    known = _Known(topology)
    return {graph: _Maker(graph, known).model() for graph in dict.fromkeys(graphs)}


class _Known:
    """The facts of the nodes seen so far, and of their types, of which there are few."""

    def __init__(self, topology: Topology | None) -> None:
        self._topology = topology
        self._facts: dict[Node, Facts] = {}
        self._inputs: dict[tuple[Type, str], Facts] = {}
        self._types: dict[Type, tuple[str, int, str]] = {}
        self.parameters: dict[Node, str] = {}

    def facts(self, node: Node, parameters: str) -> Facts:
        found = self._facts.get(node)
        if found is None or found.parameters != parameters:
            found = self._facts[node] = self._facts_of(node, parameters)
        return found

    def _facts_of(self, node: Node, parameters: str) -> Facts:
        params = node.params
        collective = collective_of(node) if node.op.is_collective else None
        return Facts(
            op_text(node),
            parameters,
            *self._results(node.results),
            flops=of_node(node).total_flops,
            trips=trips(node) if node.op.name == "scan" else 0,
            moved=collective.bytes if collective else 0,
            group_size=collective.group_size if collective else 0,
            reducer=reducer_of(node),
            is_collective=collective is not None,
            origin=node.origin,
            scope=node.source.scope,
            seconds=node_seconds(node, self._topology) if self._topology else 0.0,
            frames=node.source.frames,
            variable=f"@{params.variable.name}" if isinstance(params, OfVariable) else "",
        )

    def facts_of_input(self, value: Value, variable: str) -> Facts:
        found = self._inputs.get((value.type, variable))
        if found is None:
            op = "variable" if variable else "input"
            found = Facts(op, "", *self._results((value,)), variable=variable)
            self._inputs[value.type, variable] = found
        return found

    def _results(self, values: tuple[Value, ...]) -> tuple[tuple[str, ...], int, str]:
        """Return the types of values, the bytes they hold, and how they are distributed."""
        found = [self._type(value.type) for value in values]
        kinds = dict.fromkeys(distribution for _, _, distribution in found if distribution)
        return tuple(text for text, _, _ in found), sum(n for _, n, _ in found), ", ".join(kinds)

    def _type(self, type: Type) -> tuple[str, int, str]:
        found = self._types.get(type)
        if found is None:
            found = self._types[type] = (str(type), type.bytes, str(type.distribution or ""))
        return found


class _Maker:
    """Makes the records of a graph in the order of its text, with the printer's names."""

    def __init__(self, graph: Graph, known: _Known) -> None:
        self.graph, self.known = graph, known
        self.printer = Printer(graph, kept=known.parameters)
        self.records: list[Record] = []
        self.position_of: dict[Node, int] = {}
        self.reference_to: dict[Value, Reference] = {}

    def model(self) -> Model:
        graph = self.graph
        bound = [f"@{variable.name}" for variable in graph.variables] if graph.is_placed else []
        again = self.printer.begin(graph)
        for position, value in enumerate(graph.inputs):
            variable = bound[position] if position < len(bound) else ""
            self._input(value, again, (), -1, variable)
        self._nodes(graph, again, -1)
        text = f"return {', '.join(map(self.printer.operand, graph.outputs))}".rstrip()
        operands = self._references(graph.outputs)
        self.records.append(Record("return", None, -1, Facts("return"), [], operands, text))
        return Model(graph, self.records, self.position_of, self.reference_to, self.printer.names)

    def _nodes(self, graph: Graph, again: bool, parent: int, times: int = 1) -> None:
        for node in graph.nodes:
            position = self.position_of[node] = len(self.records)
            self._node(node, again, parent, times)
            for nested in node.graphs:
                self._nested(nested, node.operands, position, times * trips(node))

    def _nested(self, graph: Graph, operands: tuple[Operand, ...], parent: int, times: int) -> None:
        again = self.printer.begin(graph)
        # From the end: a branch takes what follows the index, a scan all it takes.
        taken = operands[len(operands) - len(graph.inputs) :]
        for number, value in enumerate(graph.inputs):
            self._input(value, again, taken[number : number + 1], parent)
        self._nodes(graph, again, parent, times)

    def _input(
        self,
        value: Value,
        again: bool,
        taken: tuple[Operand, ...],
        parent: int,
        variable: str = "",
    ) -> None:
        operands = self._references(taken)
        name, facts = self.printer.define(value, again), self.known.facts_of_input(value, variable)
        text = f"{name}: {facts.types[0]}" + (f" = {variable}" if variable else "")
        self.reference_to[value] = len(self.records)
        self.records.append(Record(name, None, parent, facts, [name], operands, text))

    def _node(self, node: Node, again: bool, parent: int, times: int) -> None:
        position, results = len(self.records), node.results
        operands = self._references(node.operands)
        names = [self.printer.define(value, again) for value in results]
        facts = self.known.facts(node, self.printer.parameters(node) if node.params else "")
        name = names[0] if names else f"{node.op.name}#{position}"
        self.records.append(Record(name, node, parent, facts, names, operands, times=times))
        if len(results) == 1:
            self.reference_to[results[0]] = position
        else:
            self.reference_to.update((v, (position, n)) for n, v in enumerate(results))

    def _references(self, operands: tuple[Operand, ...]) -> list[Reference]:
        known = self.reference_to
        return [
            known[operand]
            if isinstance(operand, Value) and operand in known
            else self.printer.operand(operand)
            for operand in operands
        ]
