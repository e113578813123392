"""What every format shows of a graph: its nodes as records, in order.

1. Inputs come first, then the nodes, those of a nested graph after the node they are nested in,
   then `return`. A record refers to another by its position.
2. Ids are those of the text: a node is called as its first result, or after its operation and
   position if it has none. The same program gives the same ids.
3. A nested graph's inputs are records too; they take what its node takes: edges run through.
4. Groups are computed in `graphdist.viz.groups`, from the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from graphdist.ir.cost import of_node
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.printer import names, node_lines, print_literal
from graphdist.ir.source import Frame

__all__ = ["Model", "Record", "model_of"]


@dataclass(slots=True)
class Record:
    """One node of the picture.

    `text` is its line in the text of the graph. `takes` are the names of its operands, `inputs` the
    positions of the records that compute them, `users` those of the records that use it, each once.
    `bytes` is what its results hold on one replica, `moved` what a collective takes in. `parent` is
    the position of the node it is nested in, -1 at the top.
    """

    id: str
    op: str
    text: str
    types: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()
    users: list[int] = field(default_factory=list)
    bytes: int = 0
    flops: int = 0
    moved: int = 0
    group_size: int = 0
    reducer: str = ""
    is_collective: bool = False
    distribution: str = ""
    origin: str = ""
    scope: str = ""
    frames: tuple[Frame, ...] = ()
    variable: str = ""
    parent: int = -1
    node: Node | None = None


@dataclass(frozen=True)
class Model:
    """The records of a graph, and where each node and value stands among them."""

    graph: Graph
    records: list[Record]
    position_of: dict[Node, int]
    place_of: dict[Value, int]
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
    return _Maker(graph).model()


class _Maker:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names = names(graph)
        self.lines = node_lines(graph)
        self.records: list[Record] = []
        self.position_of: dict[Node, int] = {}
        self.place_of: dict[Value, int] = {}

    def model(self) -> Model:
        graph = self.graph
        bound = [f"@{one.name}" for one in graph.variables] if graph.is_placed else []
        for position, value in enumerate(graph.inputs):
            self._input(value, bound[position] if position < len(bound) else "", (), -1)
        self._nodes(graph, -1)
        outputs = ", ".join(map(self._name, graph.outputs))
        self._append(Record("return", "return", f"return {outputs}".rstrip()), graph.outputs)
        return Model(graph, self.records, self.position_of, self.place_of, self.names)

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
        record = Record(
            name, "variable" if variable else "input", text, variable=variable, parent=parent
        )
        self.place_of[value] = self._append(record, taken, (value,))

    def _node(self, node: Node, parent: int) -> int:
        where = len(self.records)
        name = self.names[node.results[0]] if node.results else f"{node.op.name}#{where}"
        variable = node.params.get("variable")
        source = node.source
        record = Record(
            name,
            node.op.name,
            self.lines[node],
            flops=of_node(node).total_flops,
            is_collective=node.op.is_collective,
            origin=node.origin,
            scope=source.scope,
            frames=source.frames,
            variable=f"@{variable.name}" if hasattr(variable, "name") else "",
            parent=parent,
            node=node,
        )
        if node.op.is_collective:
            record.moved = sum(operand.type.bytes for operand in node.operands)
            record.group_size = cast(int, node.params["group_size"])
            record.reducer = str(node.params.get("reducer", ""))
        self._append(record, node.operands, node.results)
        self.position_of[node] = where
        self.place_of.update(dict.fromkeys(node.results, where))
        return where

    def _append(
        self, record: Record, operands: tuple[Operand, ...], results: tuple[Value, ...] = ()
    ) -> int:
        where = len(self.records)
        record.takes = tuple(map(self._name, operands))
        values = [one for one in operands if isinstance(one, Value)]
        places = [self.place_of[one] for one in values if one in self.place_of]
        record.inputs = tuple(dict.fromkeys(places))
        for place in record.inputs:
            self.records[place].users.append(where)
        record.types = tuple(str(value.type) for value in results)
        record.bytes = sum(value.type.bytes for value in results)
        kinds = dict.fromkeys(str(v.type.distribution) for v in results if v.type.distribution)
        record.distribution = ", ".join(kinds)
        self.records.append(record)
        return where

    def _name(self, operand: Operand) -> str:
        return (
            self.names.get(operand, "%?") if isinstance(operand, Value) else print_literal(operand)
        )
