"""What every format shows of a graph: its nodes as records, in order.

1. Inputs come first, then the nodes, those of a nested graph after the node they are nested in,
   then `return`. A record refers to another by its position.
2. Ids are those of the text: a node is called as its first result, or after its operation and
   position if it has none. The same program gives the same ids.
3. A nested graph's inputs are records too; they take what its node takes: edges run through.
4. Groups are computed in `graphdist.viz.groups`, from the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from graphdist.ir.cost import of_node
from graphdist.ir.graph import Graph, Node, Operand, Value, Variable
from graphdist.ir.printer import names_and_lines, print_literal
from graphdist.ir.source import Frame
from graphdist.ir.types import Type

__all__ = ["Facts", "Model", "Record", "model_of", "models_of"]


class Facts(NamedTuple):
    """What is known of a node whatever graph it is in.

    `bytes` is what its results hold on one replica, `moved` what a collective takes in.
    """

    op: str
    types: tuple[str, ...] = ()
    bytes: int = 0
    distribution: str = ""
    flops: int = 0
    moved: int = 0
    group_size: int = 0
    reducer: str = ""
    is_collective: bool = False
    origin: str = ""
    scope: str = ""
    frames: tuple[Frame, ...] = ()
    variable: str = ""


@dataclass(slots=True)
class Record:
    """One node of the picture.

    `text` is its line in the text of the graph. `takes` are the names of its operands, `inputs` the
    positions of the records that compute them, `users` those of the records that use it, each once.
    `parent` is the position of the node it is nested in, -1 at the top. The rest is as in `Facts`.
    """

    id: str
    text: str
    node: Node | None
    parent: int
    op: str
    types: tuple[str, ...]
    bytes: int
    distribution: str
    flops: int
    moved: int
    group_size: int
    reducer: str
    is_collective: bool
    origin: str
    scope: str
    frames: tuple[Frame, ...]
    variable: str
    takes: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()
    users: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Model:
    """The records of a graph, and where each node stands among them."""

    graph: Graph
    records: list[Record]
    position_of: dict[Node, int]
    names: dict[Value, str]

    @property
    def collectives(self) -> list[int]:
        """Return the positions of the collectives, in the order every replica reaches them."""
        return [i for i, record in enumerate(self.records) if record.is_collective]


def model_of(graph: Graph) -> Model:
    """Return the records of a graph.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.neg(%x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> [(record.id, record.inputs) for record in model_of(graph).records]
    [('%x', ()), ('%y', (0,)), ('return', (1,))]
    """
    return models_of([graph])[graph]


def models_of(graphs: Iterable[Graph]) -> dict[Graph, Model]:
    """Return the model of each graph, once, in order; nodes that graphs share are read once."""
    known = _Known()
    return {graph: _Maker(graph, known).model() for graph in dict.fromkeys(graphs)}


class _Known:
    """The facts of the nodes met so far, and of their types, of which there are few."""

    def __init__(self) -> None:
        self._facts: dict[Node, Facts] = {}
        self._types: dict[Type, tuple[str, int, str]] = {}
        self.ends: dict[Node, str] = {}  # of the lines of the nodes

    def facts(self, node: Node) -> Facts:
        found = self._facts.get(node)
        if found is None:
            found = self._facts[node] = self._facts_of(node)
        return found

    def _facts_of(self, node: Node) -> Facts:
        variable = node.params.get("variable")
        collects = node.op.is_collective
        return Facts(
            node.op.name,
            *self.results(node.results),
            flops=of_node(node).total_flops,
            moved=sum(operand.type.bytes for operand in node.operands) if collects else 0,
            group_size=cast(int, node.params["group_size"]) if collects else 0,
            reducer=str(node.params.get("reducer", "")) if collects else "",
            is_collective=collects,
            origin=node.origin,
            scope=node.source.scope,
            frames=node.source.frames,
            variable=f"@{variable.name}" if isinstance(variable, Variable) else "",
        )

    def results(self, values: tuple[Value, ...]) -> tuple[tuple[str, ...], int, str]:
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
    def __init__(self, graph: Graph, known: _Known) -> None:
        self.graph, self.known = graph, known
        self.names, self.lines = names_and_lines(graph, known.ends)
        self.records: list[Record] = []
        self.position_of: dict[Node, int] = {}
        self.place_of: dict[Value, int] = {}

    def model(self) -> Model:
        graph = self.graph
        bound = [f"@{one.name}" for one in graph.variables] if graph.is_placed else []
        for position, value in enumerate(graph.inputs):
            self._input(value, bound[position] if position < len(bound) else "", (), -1)
        self._nodes(graph, -1)
        text = f"return {', '.join(map(self._name, graph.outputs))}".rstrip()
        self._append(Record("return", text, None, -1, *Facts("return")), graph.outputs)
        return Model(graph, self.records, self.position_of, self.names)

    def _nodes(self, graph: Graph, parent: int) -> None:
        for node in graph.nodes:
            position = self._node(node, parent)
            for nested in node.graphs:
                # From the end: a branch takes what follows the index, a scan all it takes.
                taken = node.operands[len(node.operands) - len(nested.inputs) :]
                for number, value in enumerate(nested.inputs):
                    operands = taken[number : number + 1]
                    self._input(value, "", operands, position)
                self._nodes(nested, position)

    def _input(self, value: Value, variable: str, taken: tuple[Operand, ...], parent: int) -> None:
        name = self.names[value]
        text = f"{name}: {value.type}" + (f" = {variable}" if variable else "")
        op = "variable" if variable else "input"
        facts = Facts(op, *self.known.results((value,)), variable=variable)
        self.place_of[value] = self._append(Record(name, text, None, parent, *facts), taken)

    def _node(self, node: Node, parent: int) -> int:
        where = len(self.records)
        name = self.names[node.results[0]] if node.results else f"{node.op.name}#{where}"
        record = Record(name, self.lines[node], node, parent, *self.known.facts(node))
        self._append(record, node.operands)
        self.position_of[node] = where
        for value in node.results:
            self.place_of[value] = where
        return where

    def _append(self, record: Record, operands: tuple[Operand, ...]) -> int:
        records, place_of = self.records, self.place_of
        where = len(records)
        record.takes = tuple([self._name(one) for one in operands])
        places = [place_of[one] for one in operands if isinstance(one, Value) and one in place_of]
        record.inputs = tuple(places if len(places) < 2 else dict.fromkeys(places))
        for place in record.inputs:
            records[place].users.append(where)
        records.append(record)
        return where

    def _name(self, operand: Operand) -> str:
        return (
            self.names.get(operand, "%?") if isinstance(operand, Value) else print_literal(operand)
        )
