"""Make variables inputs and outputs of the graph, and replace their reads and assignments.

Every variable that the program reads or assigns becomes an input, and every variable that it
assigns an output. A read becomes the value assigned last. Loops carry the variables that they
assign, and branches return them. An assigned value is combined over the replicas as the variable's
aggregation says:

* for a mirrored variable in replica context, SUM and MEAN become an `all_reduce`.
  ONLY_FIRST_REPLICA becomes an `all_reduce` of the first replica's value and the zeros of other
  replicas. NONE keeps the value, which is known to be mirrored;
* for an ON_READ variable, or in cross-replica context, the value is kept.

A variable that is stored sharded is gathered where it is first read, and its new value is sharded
where it is returned. `place_conversions.py` moves both conversions to where they cost least, or
removes them. Loops carry the variable sharded, and each iteration that reads the variable gathers
it. If a variable is sharded along the dimension that a loop scans, it is stored along another
dimension from then on, so that each iteration can gather its own slice.

Before:  %w = read() {variable=@w}   %a = aggregate(%g) {variable=@w, ..}   assign(%a) ..
After:   %w is an input   %a = all_reduce(%g) {reducer="mean"}   %a is an output
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from graphdist.ir.analyses import kept_analysis, walk
from graphdist.ir.definitions import definitions
from graphdist.ir.graph import (
    Graph,
    GraphVariable,
    Node,
    Op,
    Operand,
    Operands,
    Params,
    Stage,
    Value,
)
from graphdist.ir.loops import scan_parts, while_parts
from graphdist.ir.mesh import MeshShape
from graphdist.ir.op_parameters import AlongAxis, Looping, Reducing, Selecting
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
    variable_named_by,
)
from graphdist.ir.rewrite import Copier
from graphdist.ir.sharded_parameters import stored_for_scan
from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.types import MIRRORED
from graphdist.passes.layouts.sharding_propagation import is_scanned

NAME = "place_variables"


_OF_VARIABLES = frozenset({AGGREGATE, ASSIGN, READ})


def place_variables(graph: Graph) -> Graph:
    """Return the PLACED graph of a LOGICAL one."""
    written = _variables((graph,), ASSIGN)
    variables = tuple(
        replace(_stored(variable, graph), assigned=variable.name in written)
        for variable in graph.variables
        if not variable.is_local
    )
    entering = tuple(Value(variable.held(graph.mesh), variable.name) for variable in variables)
    state = _State(graph.mesh, variables, entering)
    outputs = _Placer(state).run(graph)
    leaving = tuple(state.stored(variable.name) for variable in variables if variable.assigned)
    return graph.replace(
        stage=Stage.PLACED,
        inputs=(*entering, *graph.inputs),
        nodes=tuple(state.copier.nodes),
        outputs=(*leaving, *outputs),
        variables=variables,
    )


def _stored(variable: GraphVariable, graph: Graph) -> GraphVariable:
    """Return a variable in the form in which this graph stores it."""
    if variable.sharded_along is None:
        return variable
    program, reads = definitions(graph), _reads(graph).get(variable.name, ())
    if not any(is_scanned(program, value) for value in reads):
        return variable
    return stored_for_scan(variable, graph.mesh.group_size)


@kept_analysis
def _reads(graph: Graph) -> Mapping[str, Sequence[Value]]:
    """Return the results of each variable's reads, by the variable's name."""
    found: dict[str, list[Value]] = {}
    for node in walk(graph):
        if node.op is READ:
            found.setdefault(variable_named_by(node).name, []).extend(node.results)
    return found


class _State:
    """The current value of each variable in one graph: unsharded, sharded, or in both forms."""

    def __init__(
        self, mesh: MeshShape, variables: Iterable[GraphVariable], values: Iterable[Value]
    ) -> None:
        """Start with the graph's input for each variable: the full value, or a shard."""
        self.mesh, self.copier = mesh, Copier(NAME)
        self.variables: dict[str, GraphVariable] = {}
        self._fulls: dict[str, Operand] = {}
        self._slices: dict[str, Operand] = {}
        self._at: dict[str, Source] = {}
        for variable, value in zip(variables, values, strict=True):
            is_slice = value.type.shape != variable.type.shape
            (self._slices if is_slice else self._fulls)[variable.name] = value
            self.variables[variable.name] = variable

    def full(self, name: str, at: Source) -> Operand:
        """Return a variable's full value; it is gathered once in each graph."""
        if name not in self._fulls:
            self._fulls[name] = self._moved(ALL_GATHER, name, self._slices[name], at)
        return self._fulls[name]

    def assign(self, variable: GraphVariable, value: Operand, at: Source) -> None:
        """Set a variable's value, given unsharded or in the form in which it is stored."""
        name = variable.name
        self.variables.setdefault(name, variable)  # variables of the graph alone have no input
        is_slice = value.type.shape != variable.type.shape
        kept, stale = (self._slices, self._fulls) if is_slice else (self._fulls, self._slices)
        kept[name], self._at[name] = value, at
        stale.pop(name, None)

    def stored(self, name: str) -> Operand:
        """Return a variable's value in the form in which it is stored, sharded or unsharded."""
        if self.variables[name].sharded_along is None:
            return self._fulls[name]
        if name not in self._slices:
            at = self._at.get(name, UNKNOWN)
            self._slices[name] = self._moved(OWN_SLICE, name, self._fulls[name], at)
        return self._slices[name]

    def _moved(self, op: Op, name: str, value: Operand, at: Source) -> Operand:
        variable = self.variables[name]
        along = variable.sharded_along
        assert along is not None
        params = AlongAxis(along, group_size=self.mesh.group_size, num_groups=self.mesh.num_groups)
        return self.copier.add(op, (value,), params, at=at, hint=name)[0]


class _Threaded(NamedTuple):
    """The variables that a loop or branch only reads, and the ones that it assigns."""

    read: Sequence[GraphVariable]
    written: Sequence[GraphVariable]


class _Placer:
    """Copies the nodes of one graph; `state` has the variables' current values."""

    def __init__(self, state: _State) -> None:
        self.state, self.copier, self.mesh = state, state.copier, state.mesh

    def run(self, graph: Graph) -> Operands:
        """Add the graph's nodes and return its outputs."""
        for node in graph.nodes:
            if node.graphs or node.op in _OF_VARIABLES:
                self.copier.put(node.results, self._place(node, self.copier.now(node.operands)))
            else:
                self.copier.copy(node)
        return self.copier.now(graph.outputs)

    def _place(self, node: Node, operands: Operands) -> Operands:
        if node.op is READ:
            return (self.state.full(variable_named_by(node).name, node.source),)
        if node.op is ASSIGN:
            self.state.assign(variable_named_by(node), operands[0], node.source)
            return ()
        if node.op is AGGREGATE:
            return (self._aggregate(node, operands[0]),)
        return self._control_flow(node, operands)

    def _aggregate(self, node: Node, value: Operand) -> Operand:
        variable = variable_named_by(node)
        aggregation = variable.aggregation
        if (
            AGGREGATE.of(node).context != "replica"
            or variable.type.layout is not MIRRORED
            or aggregation == "none"
        ):
            return value
        if aggregation == "only_first_replica":
            if value.type.layout is MIRRORED:
                return value
            params = Selecting(0, group_size=self.mesh.num_replicas)
            (value,) = self.copier.add(SELECT_REPLICA, (value,), params, at=node.source)
            aggregation = "max" if value.type.dtype == "bool" else "sum"
        reduction = Reducing(aggregation, group_size=self.mesh.num_replicas)
        (result,) = self.copier.add(ALL_REDUCE, (value,), reduction, at=node.source)
        return result

    def _control_flow(self, node: Node, operands: Operands) -> Operands:
        known = self.state.variables
        used = [known[name] for name in _variables(node.graphs) if name in known]
        if not _is_run_by_all(node):  # a branch that only some replicas run cannot gather
            used = [variable.stored_along(None) for variable in used]
        assigned = _variables(node.graphs, ASSIGN)
        threaded = _Threaded(
            read=[variable for variable in used if variable.name not in assigned],
            written=[variable for variable in used if variable.name in assigned],
        )
        thread = {SCAN: self._scan, WHILE: self._while, COND: self._cond}[node.op]
        return thread(node, operands, threaded)

    def _scan(self, node: Node, operands: Operands, used: _Threaded) -> Operands:
        params = SCAN.of(node)
        constants, first, scanned = scan_parts(params, operands)
        num_constants, num_carries = len(constants), len(first)
        (body,) = node.graphs
        positions = num_constants, num_constants + num_carries
        inner = self._nested(body, used, positions, num_carries)
        threaded = (*constants, *self._now(used.read), *first, *self._now(used.written), *scanned)
        num_constants, num_carries = num_constants + len(used.read), num_carries + len(used.written)
        params = replace(params, num_consts=num_constants, num_carry=num_carries)
        return self._finish(node, threaded, params, (inner,), used, len(first))

    def _while(self, node: Node, operands: Operands, used: _Threaded) -> Operands:
        of_condition, of_body, first = while_parts(WHILE.of(node), operands)
        condition, body = node.graphs
        positions = len(of_condition), len(condition.inputs)
        tests = self._nested(condition, used, positions, returns_at=None)
        positions = len(of_body), len(body.inputs)
        inner = self._nested(body, used, positions, returns_at=len(first))
        state, changing = self._now(used.read), self._now(used.written)
        params = Looping(len(of_condition) + len(state), len(of_body) + len(state))
        threaded = (*of_condition, *state, *of_body, *state, *first, *changing)
        return self._finish(node, threaded, params, (tests, inner), used, len(first))

    def _cond(self, node: Node, operands: Operands, used: _Threaded) -> Operands:
        count = len(node.results)
        end = len(operands) - 1  # the branches have no input for the index
        branches = tuple(self._nested(branch, used, (end, end), count) for branch in node.graphs)
        threaded = (*operands, *self._now(used.read), *self._now(used.written))
        return self._finish(node, threaded, node.params, branches, used, count)

    def _nested(
        self, graph: Graph, used: _Threaded, positions: tuple[int, int], returns_at: int | None
    ) -> Graph:
        """Return a nested graph that takes its variables' values, and returns the assigned ones.

        Inputs for variables that the graph only reads are inserted before the first of `positions`,
        inputs for variables that it assigns before the second. The new values are inserted before
        output `returns_at`, which is None for a graph that does not return them.
        """
        reads, writes = (
            tuple(Value(variable.held(self.mesh), variable.name) for variable in variables)
            for variables in used
        )
        state = _State(self.mesh, (*used.read, *used.written), (*reads, *writes))
        outputs = _Placer(state).run(graph)
        if returns_at is not None:
            new = tuple(state.stored(variable.name) for variable in used.written)
            outputs = _insert(outputs, (returns_at, new))
        return graph.replace(
            stage=Stage.PLACED,
            inputs=_insert(graph.inputs, (positions[0], reads), (positions[1], writes)),
            nodes=tuple(state.copier.nodes),
            outputs=outputs,
        )

    def _finish(
        self,
        node: Node,
        operands: Operands,
        params: Params,
        graphs: tuple[Graph, ...],
        used: _Threaded,
        state_at: int,
    ) -> Operands:
        """Add the node, record the variables' new values, and return the other results."""
        results = self.copier.add(node.op, operands, params, graphs, at=node.source)
        end = state_at + len(used.written)
        for variable, value in zip(used.written, results[state_at:end], strict=True):
            self.state.assign(variable, value, node.source)
        return (*results[:state_at], *results[end:])

    def _now(self, variables: Sequence[GraphVariable]) -> Operands:
        """Return the variables' current values, sharded if the given variables are."""
        return tuple(
            self.state.full(variable.name, UNKNOWN)
            if variable.sharded_along is None
            else self.state.stored(variable.name)
            for variable in variables
        )


def _is_run_by_all(node: Node) -> bool:
    """Return whether all replicas run the nested graphs, so that these may have collectives.

    All replicas run the iterations of a `while` loop if its condition is the same on all replicas.
    Branches get no collectives from this pass: `place_conversions.py` shards their operands and
    results.
    """
    if node.op is WHILE:
        return node.graphs[0].outputs[0].type.layout is MIRRORED
    return node.op is SCAN


Item = TypeVar("Item")


def _insert(items: tuple[Item, ...], *pieces: tuple[int, tuple[Item, ...]]) -> tuple[Item, ...]:
    """Return `items` with each piece inserted before its position in the original `items`.

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
    """Return the variables of the graphs' reads and assigns (or only of `op`) by first use."""
    ops = (READ, ASSIGN) if op is None else (op,)
    found: dict[str, GraphVariable] = {}
    for graph in graphs:
        for node in walk(graph):
            if node.op in ops:
                found.setdefault(variable_named_by(node).name, variable_named_by(node))
    return found
