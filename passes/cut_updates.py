"""Cut a step in two: the worker's half, and one update for each variable, which its server runs.

In training with parameter servers a worker reads the variables, computes gradients of its batch,
and sends these. The server that holds a variable updates it, with its slots, as it is by then. The
graph after the pass has both halves: a worker reads with `pull`, and a `push` is an update, with
its graph (`passes/halves.py`). Run one after the other they give what the step gave, bit for bit.

Before:  %g = jax.dot_general(%x, %w)  %m1 = jax.mul(%m, 0.9)  %m2 = jax.add(%m1, %g)
         %w2 = jax.sub(%w, %m2)   return %w2 -> @w, %m2 -> @m, %loss
After:   %w1 = pull(%w)  %g = jax.dot_general(%x, %w1)
         %w3, %m3 = push(%w, %m, %g) update_w(%w, %m, %g) {
           %m1 = jax.mul(%m, 0.9)  %m2 = jax.add(%m1, %g)  %w2 = jax.sub(%w, %m2)
           return %w2, %m2 }
         return %w3 -> @w, %m3 -> @m, %loss

How it works.

1. *Which variables belong together.* A variable is *read by the worker* if a result of the step
   depends on it, or new values of several such variables do, or if the worker combines it with
   arguments: parameters, and the count of steps that many updates take. Any other one is a slot: it
   goes with the one variable of the first kind whose new value depends on it (`ir/flow.py`).
2. *Which nodes the server computes.* From the new values backwards, a node belongs to an update if
   it depends on a slot; or on the variables of the update alone; or changes each element by itself
   (`passes/by_element.py`) of a variable or of another such node. So an update may reduce or
   multiply matrices of its slots, and gradients stay on the worker; so do numbers that several
   gradients give together, such as a global norm. A gradient that is made element by element and
   added to a variable is sent by the worker, if it is smaller than the values it is made of.
3. *Which values are sent.* An update takes values from outside. A server may run some of the
   operations that make them, too. Of all these values the ones with the fewest bytes are sent: a
   minimum cut. So a gradient that is used twice is sent once, a table of gradients that was
   scattered from the rows of an embedding as rows and indices, a broadcast number as the number, a
   constant not at all. On one replica a reduction is nothing, and rows are found behind it.
4. *Which values are read.* A variable in full, or the rows that the worker looks up
   (`passes/pulls.py`).

A count of steps that several updates need is read by the worker, and numbers computed of it, such
as a learning rate, are sent; the count has an update of its own. Where several workers run at once
the numbers may be behind by the steps in flight.

A branch over several variables is split first, one for each (`passes/split_branches.py`), and
values joined of several are taken apart (`passes/joined_variables.py`). Left alone: loops that
update several variables at once. The worker reads their slots, and sends new values in full.
`CutStep.notes` says so, with the user's line, and `passes/lost_writes.py` which of these undo what
other workers write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from graphdist.ir.analyses import has_effect, producers
from graphdist.ir.builder import Builder
from graphdist.ir.errors import VerifyError
from graphdist.ir.flow import reachable, uses
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.operation_table import ADDITIONS
from graphdist.ir.ops import ALL_REDUCE, REDUCE, TO_REPLICAS
from graphdist.ir.rewrite import substitute
from graphdist.ir.types import MIRRORED
from graphdist.passes.by_element import MOVABLE, is_by_element
from graphdist.passes.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.halves import CutStep, Update, is_cut, joined
from graphdist.passes.joined_variables import with_parts
from graphdist.passes.lost_writes import lost_writes
from graphdist.passes.pulls import with_pulls
from graphdist.passes.split_branches import split_branches
from graphdist.passes.update_groups import UpdateGroups

NAME = "cut_updates"

_NOTHING_ON_ONE_REPLICA = (ALL_REDUCE, REDUCE, TO_REPLICAS)
"""Operations that give their operand where a worker has one replica: the rows of a gradient are
found behind its reduction."""

_UPDATE, _WORKER = "update", "worker"
"""The two ends of a flow whose minimum cut are the sent values."""


@dataclass(frozen=True, slots=True)
class CutUpdates:
    """The pass: it returns one graph of both halves; see `graphdist.passes.halves`."""

    def __call__(self, graph: Graph) -> Graph:
        """Return the step in two halves; one without variables, or that is cut, as it is."""
        if not graph.variables or is_cut(graph):
            return graph
        return joined(cut_step(graph), graph.variables)

    def declined(self, graph: Graph) -> Sequence[str]:
        """Return which variables a worker reads for an update, or replaces, and why."""
        if not graph.variables or is_cut(graph):
            return ()
        cut = cut_step(graph)
        return (*cut.notes, *map(str, lost_writes(joined(cut, graph.variables))))


def cut_step(graph: Graph) -> CutStep:
    """Return the halves of a placed or SPMD graph, whose variables are all on servers.

    Raises `VerifyError` for a logical graph, and for one that sends a value of which each replica
    of a worker has its own.
    """
    if not graph.is_placed:
        raise VerifyError(f"{NAME} takes a placed or spmd graph, this one is {graph.stage.value}")
    graph = with_parts(graph)
    found = _Cut(graph).run()
    other = _Cut(graph, reads_all=True)
    if other.found.parameters == UpdateGroups(graph).parameters:
        return found
    # Of equal cuts the one in which servers do more.
    return min(found, other.run(), key=lambda cut: cut.bytes_read + cut.bytes_written)


@dataclass
class _Group:
    """Variables that are updated together; the first has given it its name."""

    names: list[str]
    region: set[Node] = field(default_factory=set)
    """The nodes of the update. The worker computes some of them too, where it needs them."""


class _Cut:
    """The cut of one graph."""

    def __init__(self, graph: Graph, *, reads_all: bool = False) -> None:
        self.graph = graph = split_branches(graph, reads_all=reads_all)
        self.count = len(graph.variables)
        self.is_alone = graph.num_replicas == 1
        self.producers = producers(graph)
        self.found = UpdateGroups(graph, reads_all=reads_all)
        self.held, self.inputs = self.found.held, self.found.inputs
        self.new, self.results = self.found.new, self.found.results
        self.groups = list(map(_Group, self.found.groups))
        self.sent: dict[Operand, int] = {}

    def run(self) -> CutStep:
        """Return the halves."""
        updates = tuple(map(self._update, self.groups))
        worker = with_pulls(self._worker())
        cut = CutStep(worker, len(self.sent), updates)
        return replace(cut, notes=tuple(self._notes(cut.reads)))

    @cached_property
    def of_arguments(self) -> set[Operand]:
        """Return the values that depend on arguments of the step."""
        return set(self._reachable(self.graph.inputs[self.count :]))

    def _reachable(self, starts: Iterable[Operand]) -> set[Operand]:
        values = [value for value in starts if isinstance(value, Value)]
        return {v for v in reachable(uses(self.graph), values) if isinstance(v, Value)}

    def _grow(self, group: _Group, candidates: set[Node], end: Collection[Operand]) -> set[Node]:
        """Return the nodes of the group's update, from its new values back to those at the end."""
        region = set[Node]()
        pending: list[Operand] = [self.new[name] for name in group.names]
        while pending:
            value = pending.pop()
            node = self.producers.get(value) if isinstance(value, Value) else None
            if node in candidates and node not in region and value not in end:
                region.add(node)
                pending += node.operands
        return region

    def _candidates(self, group: _Group) -> tuple[set[Node], set[Operand]]:
        """Return the nodes that the server computes where the group's new values take them.

        And of their operands the changes: these are added to values made of the state alone. If the
        worker reads the variable it may compute them too, but not where slots take part.
        """
        state = {self.inputs[name] for name in group.names}
        slots = {self.inputs[name] for name in group.names if name in self.found.slots}
        others = [value for value in self.held if value not in state]
        of_slots, foreign = self._reachable(slots), self._reachable(others)
        of_their_slots = self._reachable(
            value for value in others if self.held[value].name in self.found.slots
        )
        sizes = {value.type.size for value in state}
        fresh: set[Operand] = set(state)
        alone: set[Operand] = set(state)
        found, changes = set[Node](), set[Operand]()
        for node in self.graph.nodes:
            if has_effect(node) or node.op.is_collective or not self._is_equal(node):
                continue
            results = set(node.results)
            is_of_slots = not results.isdisjoint(of_slots) and results.isdisjoint(of_their_slots)
            is_of_state = results.isdisjoint(self.of_arguments) and results.isdisjoint(foreign)
            if not is_of_slots and (
                fresh.isdisjoint(node.operands)
                or not (is_of_state or is_by_element(node, fresh, sizes))
            ):
                continue
            found.add(node)
            fresh.update(results)
            if is_of_state:
                alone.update(results)
            elif node.op.name in ADDITIONS and not alone.isdisjoint(node.operands):
                changes.update(value for value in node.operands if value not in alone | of_slots)
        return found, changes

    def _update(self, group: _Group) -> Update:
        """Return the group's update; the values that it takes are sent.

        The server computes what it can, unless fewer bytes are sent without changes that it can.
        """
        candidates, changes = self._candidates(group)
        regions = [self._grow(group, candidates, ()), self._grow(group, candidates, changes)]
        found = [self._closed(group, region) for region in regions[: 1 + bool(changes)]]
        region, sent = min(found, key=lambda plan: sum(value.type.bytes for value in plan[1]))
        group.region |= region
        return self._graph_of(group, [value for value in self._in_order if value in sent])

    def _closed(self, group: _Group, region: set[Node]) -> tuple[set[Node], set[Value]]:
        """Return the nodes of an update, with makers of values not sent, and the sent values."""
        region = set(region)
        inside: set[Operand] = {result for node in region for result in node.results}
        inside |= {self.inputs[name] for name in group.names}
        wanted = [operand for node in region for operand in node.operands]
        wanted += [self.new[name] for name in group.names]
        outside = {value for value in wanted if isinstance(value, Value) and value not in inside}
        sent = self._fewest_bytes(outside, inside)
        pending = list(outside)
        while pending:
            value = pending.pop()
            if value in sent or value in inside:
                continue
            node = self.producers[value]
            inside.update(node.results)
            region.add(node)
            pending += [operand for operand in node.operands if isinstance(operand, Value)]
        return region, sent

    def _fewest_bytes(self, outside: set[Value], inside: set[Operand]) -> set[Value]:
        """Return the values to send so that the server has those `outside`: a minimum cut.

        Of several such cuts it is the one next to the update, so that the worker computes more.
        """
        if not any(self._is_made_by_servers(value) for value in outside):
            return outside
        from networkx import DiGraph, minimum_cut  # slow to import

        flow = DiGraph()
        flow.add_nodes_from((_UPDATE, _WORKER))
        pending, seen = list(outside), set[Value]()
        for value in outside:
            flow.add_edge(_UPDATE, (value, _UPDATE))
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            size = 0 if value in inside else value.type.bytes
            flow.add_edge((value, _UPDATE), (value, _WORKER), capacity=size)
            if not self._is_made_by_servers(value):
                flow.add_edge((value, _WORKER), _WORKER)
                continue
            for operand in self.producers[value].operands:
                if isinstance(operand, Value):
                    flow.add_edge((value, _WORKER), (operand, _UPDATE))
                    pending.append(operand)
        _, (near, _) = minimum_cut(flow, _UPDATE, _WORKER)
        return {
            value
            for value in seen
            if (value, _UPDATE) in near and (value, _WORKER) not in near and value not in inside
        }

    def _is_made_by_servers(self, value: Value) -> bool:
        """Return whether a server may compute a value in place of receiving it."""
        node = self.producers.get(value)
        if node is None or not self._is_equal(node):
            return False
        plain = node.op.name in MOVABLE and not node.op.has_effect and not node.op.varies
        return plain or (self.is_alone and node.op in _NOTHING_ON_ONE_REPLICA)

    def _is_equal(self, node: Node) -> bool:
        """Return whether all replicas of the worker have the same results of a node."""
        return self.is_alone or all(value.type.distribution is MIRRORED for value in node.results)

    @cached_property
    def _in_order(self) -> list[Value]:
        results = (result for node in self.graph.nodes for result in node.results)
        return [*self.graph.inputs, *results]

    @cached_property
    def _users(self) -> Mapping[Operand, Sequence[Node]]:
        found: dict[Operand, list[Node]] = {}
        for node in self.graph.nodes:
            for operand in dict.fromkeys(node.operands):
                if isinstance(operand, Value):
                    found.setdefault(operand, []).append(node)
        return found

    def _graph_of(self, group: _Group, taken: list[Value]) -> Update:
        nodes = [node for node in self.graph.nodes if node in group.region]
        outputs = tuple(self.new[name] for name in group.names)
        declared = {variable.name: variable for variable in self.graph.variables}
        inputs: list[Value] = [self.inputs[name] for name in group.names]
        for value in taken:
            if value.type.distribution is not MIRRORED and not self.is_alone:
                raise self._refused(value, group)
            inputs.append(value)
        builder = Builder(NAME)
        fresh = [Value(value.type.distributed(MIRRORED), value.hint) for value in inputs]
        environment: dict[Operand, Operand] = dict(zip(inputs, fresh, strict=True))
        for node in nodes:
            operands = substitute(environment, node.operands)
            if node.op in _NOTHING_ON_ONE_REPLICA:
                environment.update(zip(node.results, operands, strict=True))
                continue
            results = builder.keep(node, operands, node.graphs)
            environment.update(zip(node.results, results, strict=True))
        graph = Graph(
            f"update_{group.names[0]}",
            self.graph.stage,
            1,
            tuple(fresh),
            tuple(builder.nodes),
            substitute(environment, outputs),
            tuple(declared[name] for name in group.names),
        )
        sent = tuple(self.sent.setdefault(value, len(self.sent)) for value in taken)
        return Update(tuple(group.names), sent, eliminate_dead_code(graph))

    def _refused(self, value: Value, group: _Group) -> VerifyError:
        node = self.producers.get(value)
        return VerifyError(
            f"the update of variable {group.names[0]!r} takes a value of which each of the "
            f"{self.graph.num_replicas} replicas of a worker has its own",
            source=None if node is None else node.source,
            hint="reduce it over the replicas first: "
            "gd.get_replica_context().all_reduce('MEAN', value)",
        )

    def _worker(self) -> Graph:
        graph = self.graph
        outputs = (*self.results, *self.sent)
        half = Graph(
            graph.name,
            graph.stage,
            graph.num_replicas,
            graph.inputs,
            graph.nodes,
            outputs,
            (),
            (*graph.returns_per_replica, *(False for _ in self.sent)),
        )
        half = eliminate_dead_code(half)
        needed = {operand for node in half.nodes for operand in node.operands} | set(outputs)
        read = [value for value in graph.inputs[: self.count] if value in needed]
        variables = tuple(replace(self.held[value], assigned=False) for value in read)
        inputs = (*read, *graph.inputs[self.count :])
        return Graph(
            half.name,
            half.stage,
            half.num_replicas,
            inputs,
            half.nodes,
            half.outputs,
            variables,
            half.returns_per_replica,
        )

    def _notes(self, reads: Sequence[str]) -> Iterable[str]:
        """Yield the slots that the worker reads all the same, and what for."""
        inside = {node for group in self.groups for node in group.region}
        for name in self.new:
            value = self.inputs[name]
            if name not in reads or name in self.found.parameters or value.type.size == 1:
                continue
            users = [node for node in self._users.get(value, ()) if node not in inside]
            for node in users[:1]:
                yield (
                    f"variable {name!r} is read by the worker: {node.op.name} at {node.source} "
                    f"{self._why_outside(node)}"
                )

    def _why_outside(self, node: Node) -> str:
        if node.op.is_collective:
            return "takes all replicas of the worker"
        if has_effect(node):
            return "has an effect"
        after = self._reachable(node.results)
        named = [name for name, output in self.new.items() if output in after]
        if any(output in after for output in self.results):
            return "is needed by a result of the step"
        shown = ", ".join(map(repr, named[:3])) + (" and others" if len(named) > 3 else "")
        return f"makes new values of {shown} together"
