"""Cut a step into a graph for the worker and one for each update, which a server runs.

In training with parameter servers a worker reads the variables, computes the gradients of its batch
and sends them. The server that holds a variable applies the update to the variable's current value
and to its slots. The pass makes one graph for the worker and one for each update
(`passes/servers/cut_step.py`). Run one after the other they return the same values as the step, bit
for bit. The passes after this one run on the worker's graph alone: the updates are ready to run.

Before:  (%w = @w, %m = @m, %x)
         %g = jax.dot_general(%x, %w)  %m1 = jax.mul(%m, 0.9)  %m2 = jax.add(%m1, %g)
         %w2 = jax.sub(%w, %m2)   return %w2 -> @w, %m2 -> @m, %loss
After:   (%x, %w)  %g = jax.dot_general(%x, %w)  return %loss, %g
         (%w = @w, %m = @m, %g)
         %m1 = jax.mul(%m, 0.9)  %m2 = jax.add(%m1, %g)
         %w2 = jax.sub(%w, %m2)  return %w2 -> @w, %m2 -> @m

How it works.

1. *Which variables belong together.* A variable is *read by the worker* if a result of the step
   depends on it, if the worker combines it with arguments, or if the new values of several
   variables that are read by the worker depend on it. These are the parameters, and the count of
   steps that many updates use. Every other variable is a slot. It is updated together with the one
   variable read by the worker whose new value depends on the slot (`ir/flow.py`).
2. *Which nodes the server computes.* From the new values backwards, a node belongs to an update if
   it depends on a slot; or on the variables of the update alone; or if it changes a variable, or
   the result of another such node, element by element (`passes/servers/by_element.py`). So an
   update may reduce its slots and multiply them as matrices, while the worker computes gradients,
   and scalars that depend on several gradients, such as a global norm. A gradient that is computed
   element by element and added to a variable is computed by the worker if the gradient has fewer
   bytes than the values from which it is computed.
3. *Which values are sent.* An update needs values that are computed outside of it. A server may
   also run some of the operations that compute them. A minimum cut finds the values with the
   fewest bytes from which the server can compute the rest. So a gradient that is used twice is
   sent once; a table of gradients that was scattered from the rows of an embedding is sent as rows
   and indices, and a broadcast scalar as the scalar; a constant is not sent. On one replica a
   reduction returns its operand, so that the rows before it are found.
4. *Which values are read.* An entire variable, or only the rows that the worker looks up
   (`passes/servers/server_reads.py`).

A count of steps that several updates need is read by the worker, which sends the scalars computed
from it, such as a learning rate. The count has its own update. If several workers run at once,
these scalars may be behind by the number of steps in progress.

A branch over several variables is split first, one for each (`passes/servers/split_branches.py`),
and values that join several variables are split (`passes/servers/joined_variables.py`). Left alone:
loops that update several variables at once. The worker reads their slots, and sends new values of
the variables. `CutStep.notes` reports this, with the user's line, and
`passes/servers/lost_writes.py` finds which of these updates undo what other workers write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from graphdist.ir.analyses import has_effect, producers, users
from graphdist.ir.errors import VerifyError
from graphdist.ir.flow import reachable, uses
from graphdist.ir.graph import Graph, Node, Operand, Stage, Value
from graphdist.ir.minimum_cut import minimum_cut
from graphdist.ir.operation_table import ADDITIONS
from graphdist.ir.ops import ALL_REDUCE, REDUCE, TO_REPLICAS
from graphdist.ir.rewrite import Copier, restage
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.cleanup.simplify import simplify
from graphdist.passes.servers.by_element import MOVABLE, is_by_element
from graphdist.passes.servers.cut_step import CutStep, Update
from graphdist.passes.servers.joined_variables import with_parts
from graphdist.passes.servers.lost_writes import lost_writes
from graphdist.passes.servers.server_reads import with_reads
from graphdist.passes.servers.split_branches import split_branches
from graphdist.passes.servers.update_groups import UpdateGroups

NAME = "cut_updates"

_NOTHING_ON_ONE_REPLICA = (ALL_REDUCE, REDUCE, TO_REPLICAS)
"""Operations that return their operand if a worker has one replica: the analysis looks through
them, for example to find the rows of a gradient behind its reduction."""


@dataclass(frozen=True, slots=True)
class CutUpdates:
    """The pass, which returns the graphs of the step."""

    def __call__(self, graph: Graph) -> Graph | CutStep:
        """Return the step as the graphs that run; a graph without variables stays as it is."""
        return cut_graph(graph) if graph.variables else graph

    def declined(self, graph: Graph) -> Sequence[str]:
        """Return the variables that a worker reads for an update, or replaces, with reasons."""
        if not graph.variables:
            return ()
        cut = cut_graph(graph)
        return (*cut.notes, *map(str, lost_writes(cut)))


def cut_graph(graph: Graph) -> CutStep:
    """Return the step of a placed or SPMD graph, whose variables are all on servers.

    Raises `VerifyError` for a logical graph, and for a graph that sends a per-replica value.
    """
    if not graph.is_placed:
        raise VerifyError(f"{NAME} takes a placed or spmd graph, this one is {graph.stage.value}")
    graph = with_parts(graph)
    found = _Cut(graph).run()
    other = _Cut(graph, reads_all=True)
    if other.found.parameters == UpdateGroups(graph).parameters:
        return found
    # If both send equally many bytes, take the cut in which servers compute more.
    return min(found, other.run(), key=lambda cut: cut.bytes_read + cut.bytes_written)


@dataclass
class _Group:
    """Variables that are updated together; the first one names the group."""

    names: list[str]
    region: set[Node] = field(default_factory=set)
    """The nodes of the update. The worker computes those of them that it needs, too."""


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
        """Return the graphs of the step."""
        updates = tuple(map(self._update, self.groups))
        worker, rows, reads = with_reads(self._worker())
        cut = CutStep(worker, rows, reads, updates)
        return replace(cut, notes=tuple(self._notes(cut.variables_read)))

    @cached_property
    def of_arguments(self) -> set[Operand]:
        """Return the values that depend on arguments of the step."""
        return set(self._reachable(self.graph.inputs[self.count :]))

    def _reachable(self, starts: Iterable[Operand]) -> set[Operand]:
        values = [value for value in starts if isinstance(value, Value)]
        return {v for v in reachable(uses(self.graph), values) if isinstance(v, Value)}

    def _grow(self, group: _Group, candidates: set[Node], end: Collection[Operand]) -> set[Node]:
        """Return the candidates that compute the group's new values, but not values in `end`."""
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
        """Return the nodes that the server may compute for the group's new values, and the changes.

        A change is an operand that is added to a value made of the state alone. The worker may
        compute it instead if it reads the variable, but not if the change depends on slots.
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
        """Return the group's update, which takes the values that the worker sends.

        The server computes all candidates, unless fewer bytes are sent if the worker computes the
        changes.
        """
        candidates, changes = self._candidates(group)
        regions = [self._grow(group, candidates, ()), self._grow(group, candidates, changes)]
        found = [self._closed(group, region) for region in regions[: 1 + bool(changes)]]
        region, sent = min(found, key=lambda plan: sum(value.type.bytes for value in plan[1]))
        group.region |= region
        return self._graph_of(group, [value for value in self._in_order if value in sent])

    def _closed(self, group: _Group, region: set[Node]) -> tuple[set[Node], set[Value]]:
        """Return the nodes of an update, and the values that are sent for it.

        The nodes include the makers of values that are not sent.
        """
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
        """Return the values to send so that the server can compute the values `outside`.

        These values are a minimum cut. Of several minimum cuts, the one farthest from the update is
        chosen, since several updates of a server may share its values.
        """
        if not any(map(self._is_made_by_servers, outside)):
            return outside
        used_by: dict[Value | None, list[Value | None]] = {None: []}  # None is the update
        pending: list[tuple[Value, Value | None]] = [(value, None) for value in outside]
        while pending:
            value, user = pending.pop()
            is_new = value not in used_by
            used_by.setdefault(value, []).append(user)
            if is_new and self._is_made_by_servers(value):
                operands = self.producers[value].operands
                pending += [(operand, value) for operand in operands if isinstance(operand, Value)]
        values = [value for value in used_by if value is not None]
        sizes: dict[Value | None, float] = {
            value: 0 if value in inside else value.type.bytes for value in values
        }
        sent_by = [value for value in values if not self._is_made_by_servers(value)]
        cut = minimum_cut(sent_by, used_by, {**sizes, None: inf})
        return {value for value in cut if value is not None and value not in inside}

    def _is_made_by_servers(self, value: Value) -> bool:
        """Return whether a server may compute a value instead of receiving it."""
        node = self.producers.get(value)
        if node is None or not self._is_equal(node):
            return False
        plain = node.op.name in MOVABLE and not node.op.has_effect and not node.op.varies
        return plain or (self.is_alone and node.op in _NOTHING_ON_ONE_REPLICA)

    def _is_equal(self, node: Node) -> bool:
        """Return whether the results of a node are equal on all replicas of the worker."""
        return self.is_alone or all(value.type.layout is MIRRORED for value in node.results)

    @cached_property
    def _in_order(self) -> list[Value]:
        results = (result for node in self.graph.nodes for result in node.results)
        return [*self.graph.inputs, *results]

    def _graph_of(self, group: _Group, taken: list[Value]) -> Update:
        nodes = [node for node in self.graph.nodes if node in group.region]
        outputs = tuple(self.new[name] for name in group.names)
        declared = {variable.name: variable for variable in self.graph.variables}
        inputs: list[Value] = [self.inputs[name] for name in group.names]
        for value in taken:
            if value.type.layout is not MIRRORED and not self.is_alone:
                raise self._refused(value, group)
            inputs.append(value)
        copier = Copier(NAME)
        fresh = [Value(value.type.with_layout(MIRRORED), value.hint) for value in inputs]
        copier.put(inputs, fresh)
        for node in nodes:
            if node.op in _NOTHING_ON_ONE_REPLICA:
                copier.put(node.results, copier.now(node.operands))
            else:
                copier.copy(node)
        graph = Graph(
            f"update_{group.names[0]}",
            self.graph.stage,
            1,
            tuple(fresh),
            tuple(copier.nodes),
            copier.now(outputs),
            tuple(declared[name] for name in group.names),
        )
        sent = tuple(self.sent.setdefault(value, len(self.sent)) for value in taken)
        makers = [self.producers[value] for value in taken if value in self.producers]
        sources = [node.source for node in [*reversed(copier.nodes), *makers]]
        source = next((source for source in sources if source.frame), UNKNOWN)
        return Update(simplify(restage(graph, Stage.SPMD)), sent, source)

    def _refused(self, value: Value, group: _Group) -> VerifyError:
        node = self.producers.get(value)
        return VerifyError(
            f"the update of variable {group.names[0]!r} takes a value that differs between "
            f"the {self.graph.num_replicas} replicas of a worker",
            source=None if node is None else node.source,
            hint="reduce it over the replicas first: "
            "gd.get_replica_context().all_reduce('MEAN', value)",
        )

    def _worker(self) -> Graph:
        """Return the worker's graph, which has all variables as inputs."""
        graph = self.graph
        return eliminate_dead_code(
            Graph(
                graph.name,
                graph.stage,
                graph.num_replicas,
                graph.inputs,
                graph.nodes,
                (*self.results, *self.sent),
                graph.variables,
                (*graph.returns_per_replica, *(False for _ in self.sent)),
            )
        )

    def _notes(self, reads: Collection[str]) -> Iterable[str]:
        """Yield the slots that the worker has to read, and why."""
        inside = {node for group in self.groups for node in group.region}
        for name in self.new:
            value = self.inputs[name]
            if name not in reads or name in self.found.parameters or value.type.size == 1:
                continue
            using = [node for node in users(self.graph)[value] if node not in inside]
            for node in using[:1]:
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
