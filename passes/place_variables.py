"""Make variables inputs and outputs of the graph, and thread their values through the program.

Every variable that the program touches becomes an input, and every variable it assigns an output. A
read becomes the value assigned last; loops carry the state of what they assign, branches return it.
On the way in, a value is combined over the replicas as the variable's aggregation says:

* mirrored variable, replica context: SUM and MEAN an `all_reduce`; ONLY_FIRST_REPLICA the first
  replica's value, as an `all_reduce` of it and zeros; NONE nothing, since the value is known to be
  mirrored;
* ON_READ variable, or cross-replica context: the value itself.

A variable that is stored in slices is gathered on the way in, and cut on the way out; where slices
are enough, `shard_update.py` takes both away. If it is cut along the dimension that a loop walks
along, it is stored along another one from now on, so that each step of the loop can gather its own.

Before:  %w = read() {variable=@w}   %a = aggregate(%g) {variable=@w, ..}   assign(%a) ..
After:   %w is an input   %a = all_reduce(%g) {reducer="mean"}   %a is an output
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from graphdist.ir.analyses import walk
from graphdist.ir.builder import Builder
from graphdist.ir.cuts import dimension_to_cut
from graphdist.ir.graph import Graph, GraphVariable, Node, Op, Operand, Stage, Value
from graphdist.ir.ops import (
    AGGREGATE,
    ALL_GATHER,
    ALL_REDUCE,
    ASSIGN,
    COND,
    OWN_SLICE,
    READ,
    SCAN,
    SELECT_REPLICA,
    WHILE,
)
from graphdist.ir.rewrite import substitute
from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.types import MIRRORED
from graphdist.passes.cuts import walked_shapes

NAME = "place_variables"

_OF_VARIABLES = frozenset({AGGREGATE, ASSIGN, READ})

State = dict[str, Operand]


def place_variables(graph: Graph) -> Graph:
    """Return the PLACED graph of a LOGICAL one."""
    written = _variables((graph,), ASSIGN)
    used_at = _first_uses(graph)
    variables = tuple(
        replace(_inside_loops(variable, graph), assigned=variable.name in written)
        for variable in graph.variables
        if not variable.is_local
    )
    replicas = graph.num_replicas
    entering = tuple(Value(variable.held(replicas), variable.name) for variable in variables)
    state: State = {v.name: value for v, value in zip(variables, entering, strict=True)}
    builder = Builder(NAME)
    for variable in variables:
        if variable.sharded_along is not None:
            at = used_at.get(variable.name, UNKNOWN)
            state[variable.name] = _moved(variable, ALL_GATHER, state, builder, replicas, at)
    outputs = _Placer(replicas, builder, state).run(graph)
    leaving = tuple(
        state[variable.name]
        if variable.sharded_along is None
        else _moved(variable, OWN_SLICE, state, builder, replicas, used_at[variable.name])
        for variable in variables
        if variable.assigned
    )
    placed = graph.replace(
        stage=Stage.PLACED,
        inputs=(*entering, *graph.inputs),
        nodes=tuple(builder.nodes),
        outputs=(*leaving, *outputs),
        variables=variables,
    )
    return placed


def _inside_loops(variable: GraphVariable, graph: Graph) -> GraphVariable:
    """Return a variable in slices as this graph wants them: not along what a loop walks along."""
    if variable.sharded_along != 0 or variable.type.shape not in walked_shapes(graph):
        return variable
    shape = variable.type.shape
    return variable.stored_along(dimension_to_cut(shape, graph.num_replicas, is_walked=True))


def _moved(
    variable: GraphVariable,
    op: Op,
    state: State,
    builder: Builder,
    num_replicas: int,
    at: Source,
) -> Operand:
    """Return the full value of a variable that is stored in slices, or the slice to store."""
    params = {"axis": variable.sharded_along, "group_size": num_replicas}
    value = state[variable.name]
    return builder.add(op, (value,), params, at=at, hint=variable.name)[0]


class _Placer:
    """Adds the nodes of one graph to a builder; `state` is what each variable holds so far."""

    def __init__(self, num_replicas: int, builder: Builder, state: State) -> None:
        self.num_replicas = num_replicas
        self.builder = builder
        self.state = state

    def run(self, graph: Graph) -> tuple[Operand, ...]:
        """Add the graph's nodes and return its outputs."""
        environment: dict[Operand, Operand] = {}
        for node in graph.nodes:
            operands = substitute(environment, node.operands)
            if operands is node.operands and node.op not in _OF_VARIABLES and not node.graphs:
                self.builder.nodes.append(node)
                continue
            results = self._place(node, operands)
            if results is not node.results:
                environment.update(zip(node.results, results, strict=True))
        return substitute(environment, graph.outputs)

    def _place(self, node: Node, operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        if node.op is READ:
            return (self.state[_variable(node).name],)
        if node.op is ASSIGN:
            self.state[_variable(node).name] = operands[0]
            return ()
        if node.op is AGGREGATE:
            return (self._aggregate(node, operands[0]),)
        if node.graphs:
            return self._control_flow(node, operands)
        return self.builder.keep(node, operands, ())

    def _aggregate(self, node: Node, value: Operand) -> Operand:
        variable = _variable(node)
        aggregation = variable.aggregation
        if (
            node.params["context"] != "replica"
            or variable.type.distribution is not MIRRORED
            or aggregation == "none"
        ):
            return value
        if aggregation == "only_first_replica":
            if value.type.distribution is MIRRORED:
                return value
            params = {"replica": 0, "group_size": self.num_replicas}
            (value,) = self.builder.add(SELECT_REPLICA, (value,), params, at=node.source)
            aggregation = "max" if value.type.dtype == "bool" else "sum"
        reduction = {"reducer": aggregation, "group_size": self.num_replicas}
        (result,) = self.builder.add(ALL_REDUCE, (value,), reduction, at=node.source)
        return result

    def _control_flow(self, node: Node, operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        used = [v for v in _variables(node.graphs).values() if v.name in self.state]
        assigned = _variables(node.graphs, ASSIGN)
        written = [variable for variable in used if variable.name in assigned]
        read = [variable for variable in used if variable.name not in assigned]
        thread = {SCAN: self._scan, WHILE: self._while, COND: self._cond}[node.op]
        return thread(node, operands, read, written)

    def _scan(
        self,
        node: Node,
        operands: tuple[Operand, ...],
        read: Sequence[GraphVariable],
        written: Sequence[GraphVariable],
    ) -> tuple[Operand, ...]:
        consts, carry = cast(int, node.params["num_consts"]), cast(int, node.params["num_carry"])
        positions = consts, consts + carry
        (body,) = node.graphs
        params = {
            **node.params,
            "num_consts": consts + len(read),
            "num_carry": carry + len(written),
        }
        threaded = _insert(
            operands, (positions[0], self._now(read)), (positions[1], self._now(written))
        )
        inner = self._nested(body, read, written, positions, carry)
        return self._finish(node, threaded, params, (inner,), written, carry)

    def _while(
        self,
        node: Node,
        operands: tuple[Operand, ...],
        read: Sequence[GraphVariable],
        written: Sequence[GraphVariable],
    ) -> tuple[Operand, ...]:
        of_condition = cast(int, node.params["num_cond_consts"])
        of_body = cast(int, node.params["num_body_consts"])
        condition, body = node.graphs
        tests = self._nested(
            condition, read, written, (of_condition, len(condition.inputs)), returns_at=None
        )
        carry = len(body.outputs)
        inner = self._nested(body, read, written, (of_body, len(body.inputs)), carry)
        params = {
            "num_cond_consts": of_condition + len(read),
            "num_body_consts": of_body + len(read),
        }
        threaded = _insert(
            operands,
            (of_condition, self._now(read)),
            (of_condition + of_body, self._now(read)),
            (len(operands), self._now(written)),
        )
        return self._finish(node, threaded, params, (tests, inner), written, carry)

    def _cond(
        self,
        node: Node,
        operands: tuple[Operand, ...],
        read: Sequence[GraphVariable],
        written: Sequence[GraphVariable],
    ) -> tuple[Operand, ...]:
        count = len(node.results)
        end = len(operands) - 1  # of the branches' inputs: the index is not among them
        branches = tuple(
            self._nested(branch, read, written, (end, end), count) for branch in node.graphs
        )
        threaded = (*operands, *self._now(read), *self._now(written))
        return self._finish(node, threaded, node.params, branches, written, count)

    def _nested(
        self,
        graph: Graph,
        read: Sequence[GraphVariable],
        written: Sequence[GraphVariable],
        positions: tuple[int, int],
        returns_at: int | None,
    ) -> Graph:
        """Return a nested graph that takes the state it touches, and returns what it assigns.

        Inputs for what it only reads stand before the first position, those for what it writes
        before the second. The new state stands before output `returns_at`; None if there is none.
        """
        reads = tuple(Value(variable.type, variable.name) for variable in read)
        writes = tuple(Value(variable.type, variable.name) for variable in written)
        state: State = {
            variable.name: value
            for variable, value in zip((*read, *written), (*reads, *writes), strict=True)
        }
        builder = Builder(NAME)
        outputs = _Placer(self.num_replicas, builder, state).run(graph)
        if returns_at is not None:
            outputs = _insert(outputs, (returns_at, tuple(state[v.name] for v in written)))
        return graph.replace(
            stage=Stage.PLACED,
            inputs=_insert(graph.inputs, (positions[0], reads), (positions[1], writes)),
            nodes=tuple(builder.nodes),
            outputs=outputs,
        )

    def _finish(
        self,
        node: Node,
        operands: tuple[Operand, ...],
        params: Mapping[str, object],
        graphs: tuple[Graph, ...],
        written: Sequence[GraphVariable],
        state_at: int,
    ) -> tuple[Operand, ...]:
        """Add the node, take the new state out of its results, and return the others."""
        results = self.builder.add(node.op, operands, params, graphs, at=node.source)
        end = state_at + len(written)
        for variable, value in zip(written, results[state_at:end], strict=True):
            self.state[variable.name] = value
        return (*results[:state_at], *results[end:])

    def _now(self, variables: Sequence[GraphVariable]) -> tuple[Operand, ...]:
        return tuple(self.state[variable.name] for variable in variables)


Item = TypeVar("Item")


def _insert(items: tuple[Item, ...], *pieces: tuple[int, tuple[Item, ...]]) -> tuple[Item, ...]:
    """Return `items` with each piece inserted before its position, positions counted beforehand.

    >>> _insert((0, 1), (1, ("a",)), (2, ("b",)))
    (0, 'a', 1, 'b')
    """
    result: list[Item] = []
    start = 0
    for position, piece in pieces:
        result += items[start:position]
        result += piece
        start = position
    return (*result, *items[start:])


def _variables(graphs: Iterable[Graph], op: Op | None = None) -> dict[str, GraphVariable]:
    """Return the variables that the graphs read or assign (or only `op`), in order of first use."""
    ops = (READ, ASSIGN) if op is None else (op,)
    found: dict[str, GraphVariable] = {}
    for graph in graphs:
        for node in walk(graph):
            if node.op in ops:
                found.setdefault(_variable(node).name, _variable(node))
    return found


def _first_uses(graph: Graph) -> dict[str, Source]:
    """Return where the program first reads or assigns each variable."""
    found: dict[str, Source] = {}
    for node in walk(graph):
        if node.op in (READ, ASSIGN):
            found.setdefault(_variable(node).name, node.source)
    return found


def _variable(node: Node) -> GraphVariable:
    return cast(GraphVariable, node.params["variable"])
