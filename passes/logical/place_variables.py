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

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from graphdist.ir.analyses import walk
from graphdist.ir.definitions import definitions
from graphdist.ir.flow import diverges
from graphdist.ir.graph import Graph, GraphVariable, Node, Op, Operand, Operands, Stage, Value
from graphdist.ir.mesh import MeshShape
from graphdist.ir.op_parameters import AlongAxis, Looping, Reducing, Selecting
from graphdist.ir.ops import (
    AGGREGATE,
    ALL_GATHER,
    ALL_REDUCE,
    ASSIGN,
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
from graphdist.passes.logical.shard_weights import reads_of

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
    entering = _inputs_for(variables, graph.mesh)
    placer = _Placer(graph.mesh, variables, entering)
    outputs = placer.run(graph)
    leaving = tuple(placer.stored(variable.name) for variable in variables if variable.assigned)
    return graph.replace(
        stage=Stage.PLACED,
        inputs=(*entering, *graph.inputs),
        nodes=tuple(placer.copier.nodes),
        outputs=(*leaving, *outputs),
        variables=variables,
    )


def _stored(variable: GraphVariable, graph: Graph) -> GraphVariable:
    """Return a variable in the form in which this graph stores it."""
    if variable.sharded_along is None:
        return variable
    program, reads = definitions(graph), reads_of(graph).get(variable.name, ())
    if not any(is_scanned(program, value) for value in reads):
        return variable
    return stored_for_scan(variable, graph.mesh.group_size)


class _Positions(NamedTuple):
    """Where a loop or branch takes and returns the values of variables.

    Values are inserted in front of the operands, inputs or results with these indices.
    """

    read: tuple[int, ...]
    """Among the operands, for the variables that nested graphs only read."""
    written: int
    """Among the operands, for the variables that nested graphs assign."""
    inputs: tuple[tuple[int, int], ...]
    """Among the inputs of each nested graph, for the variables that are read, and assigned."""
    returned: int
    """Among the results, for the new values of assigned variables."""


def _positions(node: Node) -> _Positions:
    end, num_results = len(node.operands), len(node.results)
    if node.op is SCAN:
        constants, carries = SCAN.of(node).num_consts, SCAN.of(node).num_carry
        scanned = constants + carries
        return _Positions((constants,), scanned, ((constants, scanned),), carries)
    if node.op is WHILE:
        of_condition, of_body = WHILE.of(node).num_cond_consts, WHILE.of(node).num_body_consts
        ends = [len(graph.inputs) for graph in node.graphs]
        inside = ((of_condition, ends[0]), (of_body, ends[1]))
        return _Positions((of_condition, of_condition + of_body), end, inside, num_results)
    last = end - 1  # the branches have no input for the index
    return _Positions((end,), end, ((last, last),) * len(node.graphs), num_results)


class _Placer:
    """Copies the nodes of one graph, and has the current value of each variable in this graph.

    A variable may have a full value, a shard, or both.
    """

    def __init__(
        self, mesh: MeshShape, variables: Iterable[GraphVariable], values: Iterable[Value]
    ) -> None:
        """Start with the graph's input for each variable: the full value, or a shard."""
        self.mesh, self.copier = mesh, Copier(NAME)
        self._variables: dict[str, GraphVariable] = {}
        self._fulls: dict[str, Operand] = {}
        self._shards: dict[str, Operand] = {}
        self._at: dict[str, Source] = {}
        """The line of each variable's last assignment."""
        for variable, value in zip(variables, values, strict=True):
            self._assign(variable, value, UNKNOWN)

    def run(self, graph: Graph) -> Operands:
        """Add the graph's nodes and return its outputs."""
        for node in graph.nodes:
            if node.graphs or node.op in _OF_VARIABLES:
                self.copier.put(node.results, self._place(node, self.copier.now(node.operands)))
            else:
                self.copier.copy(node)
        return self.copier.now(graph.outputs)

    def stored(self, name: str) -> Operand:
        """Return a variable's value in the form in which it is stored, sharded or unsharded."""
        if self._variables[name].sharded_along is None:
            return self._fulls[name]
        if name not in self._shards:
            self._shards[name] = self._converted(OWN_SLICE, name, self._fulls[name], self._at[name])
        return self._shards[name]

    def _full(self, name: str, at: Source) -> Operand:
        """Return a variable's full value; it is gathered once in each graph."""
        if name not in self._fulls:
            self._fulls[name] = self._converted(ALL_GATHER, name, self._shards[name], at)
        return self._fulls[name]

    def _converted(self, op: Op, name: str, value: Operand, at: Source) -> Operand:
        along = self._variables[name].sharded_along
        assert along is not None
        params = AlongAxis(along, group_size=self.mesh.group_size, num_groups=self.mesh.num_groups)
        return self.copier.add(op, (value,), params, at=at, hint=name)[0]

    def _assign(self, variable: GraphVariable, value: Operand, at: Source) -> None:
        """Set a variable's value, given unsharded or in the form in which it is stored."""
        name = variable.name
        self._variables.setdefault(name, variable)  # variables of the graph alone have no input
        is_shard = value.type.shape != variable.type.shape
        kept, stale = (self._shards, self._fulls) if is_shard else (self._fulls, self._shards)
        kept[name], self._at[name] = value, at
        stale.pop(name, None)

    def _place(self, node: Node, operands: Operands) -> Operands:
        if node.op is READ:
            return (self._full(variable_named_by(node).name, node.source),)
        if node.op is ASSIGN:
            self._assign(variable_named_by(node), operands[0], node.source)
            return ()
        if node.op is AGGREGATE:
            return self._aggregate(node, operands)
        return self._control_flow(node, operands)

    def _aggregate(self, node: Node, values: Operands) -> Operands:
        """Return the value that all replicas assign."""
        variable, group_size = variable_named_by(node), self.mesh.num_replicas
        aggregation, at = variable.aggregation, node.source
        is_of_replicas = AGGREGATE.of(node).context == "replica"
        if not is_of_replicas or variable.type.layout is not MIRRORED or aggregation == "none":
            return values
        if aggregation == "only_first_replica":
            if values[0].type.layout is MIRRORED:
                return values
            aggregation = "max" if values[0].type.dtype == "bool" else "sum"
            first = Selecting(0, group_size=group_size)
            values = self.copier.add(SELECT_REPLICA, values, first, at=at)
        return self.copier.add(
            ALL_REDUCE, values, Reducing(aggregation, group_size=group_size), at=at
        )

    def _control_flow(self, node: Node, operands: Operands) -> Operands:
        """Add a loop or branch that takes its variables' values and returns the assigned ones."""
        known = self._variables
        used = [known[name] for name in _variables(node.graphs) if name in known]
        if not _is_run_by_all(node):  # a branch that only some replicas run cannot gather
            used = [variable.stored_along(None) for variable in used]
        assigned = _variables(node.graphs, ASSIGN)
        read = [variable for variable in used if variable.name not in assigned]
        written = [variable for variable in used if variable.name in assigned]
        at, graphs = _positions(node), list[Graph]()
        for nested, inputs in zip(node.graphs, at.inputs, strict=True):
            is_condition = node.op is WHILE and not graphs
            returned = None if is_condition else at.returned
            graphs.append(self._nested(nested, read, written, inputs, returned))
        params = node.params
        if node.op is SCAN:
            constants, carries = at.read[0] + len(read), at.returned + len(written)
            params = replace(SCAN.of(node), num_consts=constants, num_carry=carries)
        elif node.op is WHILE:
            params = Looping(*(constants + len(read) for constants, _ in at.inputs))
        reads = [(position, self._now(read)) for position in at.read]
        threaded = _insert(operands, *reads, (at.written, self._now(written)))
        results = self.copier.add(node.op, threaded, params, tuple(graphs), at=node.source)
        end = at.returned + len(written)
        for variable, value in zip(written, results[at.returned : end], strict=True):
            self._assign(variable, value, node.source)
        return (*results[: at.returned], *results[end:])

    def _nested(
        self,
        graph: Graph,
        read: Sequence[GraphVariable],
        written: Sequence[GraphVariable],
        inputs: tuple[int, int],
        returned: int | None,
    ) -> Graph:
        """Return a nested graph that takes its variables' values, and returns the assigned ones.

        `inputs` and `returned` are indices as in `_Positions`. `returned` is None for a graph that
        does not return variables.
        """
        reads, writes = _inputs_for(read, self.mesh), _inputs_for(written, self.mesh)
        placer = _Placer(self.mesh, (*read, *written), (*reads, *writes))
        outputs = placer.run(graph)
        if returned is not None:
            new = tuple(placer.stored(variable.name) for variable in written)
            outputs = _insert(outputs, (returned, new))
        return graph.replace(
            stage=Stage.PLACED,
            inputs=_insert(graph.inputs, (inputs[0], reads), (inputs[1], writes)),
            nodes=tuple(placer.copier.nodes),
            outputs=outputs,
        )

    def _now(self, variables: Sequence[GraphVariable]) -> Operands:
        """Return the variables' current values, sharded if the given variables are."""
        return tuple(
            self._full(variable.name, UNKNOWN)
            if variable.sharded_along is None
            else self.stored(variable.name)
            for variable in variables
        )


def _inputs_for(variables: Iterable[GraphVariable], mesh: MeshShape) -> tuple[Value, ...]:
    """Return new inputs for the values of variables, as the variables are stored."""
    return tuple(Value(variable.held(mesh), variable.name) for variable in variables)


def _is_run_by_all(node: Node) -> bool:
    """Return whether all replicas run the nested graphs, so that these may have collectives.

    All replicas run the iterations of a `while` loop if its condition is the same on all replicas.
    Branches get no collectives from this pass: `place_conversions.py` shards their operands and
    results.
    """
    return node.op in (SCAN, WHILE) and not diverges(node)


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
