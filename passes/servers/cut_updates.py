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
   depends on the variable, if the worker combines the variable with arguments, or if the new
   values of several variables that are read by the worker depend on it. Parameters, and a count of
   steps that many updates use, are read by the worker. Every other variable is a slot. A slot is
   updated together with the one variable read by the worker whose new value depends on the slot
   (`ir/flow.py`).
2. *Which nodes the server computes.* From the new values backwards, a node belongs to an update if
   it depends on a slot; or on the variables of the update alone; or if it changes a variable, or
   the result of another such node, element by element (`passes/servers/by_element.py`). So an
   update may reduce its slots and multiply them as matrices, while the worker computes gradients,
   and scalars that depend on several gradients, such as a global norm. A gradient that is computed
   element by element and added to a variable is computed by the worker if the gradient has fewer
   bytes than the values from which it is computed.
3. *Which values are sent.* An update needs values that are computed outside of the update. A
   server may also run some of the operations that compute these values. A minimum cut gives the
   values with the fewest bytes from which the server can compute the rest. So a gradient that is
   used twice is sent once; a table of gradients that was scattered from the rows of an embedding
   is sent as rows and indices, and a broadcast scalar as the scalar; a constant is not sent. On one
   replica a reduction returns its operand, so that the rows before the reduction can be sent.
4. *Which values are read.* An entire variable, or only the rows that the worker looks up
   (`passes/servers/server_reads.py`).

A count of steps that several updates need is read by the worker, which sends the scalars computed
from it, such as a learning rate. The count has its own update. If several workers run at once,
these scalars may be behind by the number of steps in progress.

A branch over several variables is first split into one branch for each variable
(`passes/servers/split_branches.py`), and values that join several variables are split
(`passes/servers/joined_variables.py`). Left alone: loops that update several variables at once. The
worker reads the slots of these variables, and sends new values of the variables. `CutStep.notes`
reports this, with the user's line, and `passes/servers/lost_writes.py` finds the updates that undo
what other workers write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

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
    """Return the cut step of a placed or SPMD graph whose variables are all on servers.

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


class _Cut:
    """The cut of one graph."""

    def __init__(self, graph: Graph, *, reads_all: bool = False) -> None:
        self.graph = graph = split_branches(graph, reads_all=reads_all)
        self.is_alone = graph.num_replicas == 1
        self.producers = producers(graph)
        self.found = UpdateGroups(graph, reads_all=reads_all)
        self.held, self.inputs = self.found.held, self.found.inputs
        self.new, self.results = self.found.new, self.found.results
        self.of_arguments = self._reachable(graph.inputs[len(graph.variables) :])
        """The values that depend on arguments of the step."""
        self.of_servers: set[Node] = set()
        """The nodes of all updates. The worker also computes those that it needs itself."""
        self.sent: dict[Operand, int] = {}

    def run(self) -> CutStep:
        """Return the graphs of the step."""
        updates = tuple(map(self._update, self.found.groups))
        worker, rows, reads = with_reads(self._worker())
        cut = CutStep(worker, rows, reads, updates)
        return replace(cut, notes=tuple(self._notes(cut.variables_read)))

    def _reachable(self, starts: Iterable[Operand]) -> set[Operand]:
        """Return the values that depend on these values."""
        values = [value for value in starts if isinstance(value, Value)]
        return {v for v in reachable(uses(self.graph), values) if isinstance(v, Value)}

    def _candidates(self, names: Sequence[str]) -> tuple[set[Node], set[Operand]]:
        """Return the nodes that a server may compute for an update of variables, and the changes.

        A change is an operand that is added to a value made of the state alone. The worker may
        compute the change instead, if it reads the variable and the change depends on no slot.
        """
        state = {self.inputs[name] for name in names}
        slots = {self.inputs[name] for name in names if name in self.found.slots}
        others = [value for value in self.held if value not in state]
        of_slots, foreign = self._reachable(slots), self._reachable(others)
        of_other_slots = self._reachable(
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
            is_of_slots = not results.isdisjoint(of_slots) and results.isdisjoint(of_other_slots)
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

    def _update(self, names: Sequence[str]) -> Update:
        """Return the update of a group of variables, which takes the values that the worker sends.

        The server computes all candidates, unless fewer bytes are sent if the worker computes the
        changes.
        """
        candidates, changes = self._candidates(names)
        plans = [self._plan(names, candidates, set())]
        if changes:
            plans.append(self._plan(names, candidates, changes))
        nodes, sent = min(plans, key=lambda plan: sum(value.type.bytes for value in plan[1]))
        self.of_servers |= nodes
        return self._graph_of(names, nodes, sorted(sent, key=self._positions.__getitem__))

    def _plan(
        self, names: Sequence[str], candidates: set[Node], ends: set[Operand]
    ) -> tuple[set[Node], set[Value]]:
        """Return the nodes of an update, and the values that are sent for the update.

        The nodes are the candidates that compute the new values of the variables `names`, but not
        the values `ends`, and the nodes that make their other operands of the values that are sent.
        """
        new = [value for name in names if isinstance(value := self.new[name], Value)]
        made_of = {v: operands for v, operands in _made_of(candidates).items() if v not in ends}
        nodes = {self.producers[value] for value in reachable(made_of, new) if value in made_of}
        inside = {result for node in nodes for result in node.results}
        inside.update(self.inputs[name] for name in names)
        outside = {*new, *chain.from_iterable(_made_of(nodes).values())} - inside
        sent = self._fewest_bytes(outside, inside)
        made = reachable(self._made_by_servers, outside - sent, without=inside | sent)
        return nodes | {self.producers[value] for value in made}, sent

    def _fewest_bytes(self, outside: set[Value], inside: set[Value]) -> set[Value]:
        """Return the values to send so that the server can compute the values `outside`.

        The server has the values `inside`. The result is a minimum cut. Of several minimum cuts,
        the one farthest from the update is chosen, since several updates of a server may share its
        values.
        """
        made_of = {
            value: self._made_by_servers.get(value, [])
            for value in reachable(self._made_by_servers, outside, without=inside)
            if self._made_by_servers.get(value) != []  # a server makes a constant of nothing
        }
        sizes = {value: value.type.bytes for value in made_of}
        return minimum_cut(outside & made_of.keys(), made_of, sizes, nearest_to_ends=True)

    @cached_property
    def _made_by_servers(self) -> Mapping[Value, list[Value]]:
        """Return the operands of each value that a server may compute instead of receiving it."""
        return _made_of(filter(self._is_made_by_servers, self.graph.nodes))

    def _is_made_by_servers(self, node: Node) -> bool:
        if self.is_alone and node.op in _NOTHING_ON_ONE_REPLICA:
            return True
        is_plain = node.op.name in MOVABLE and not node.op.has_effect and not node.op.varies
        return is_plain and self._is_equal(node)

    def _is_equal(self, node: Node) -> bool:
        """Return whether the results of a node are equal on all replicas of the worker."""
        return self.is_alone or all(value.type.layout is MIRRORED for value in node.results)

    @cached_property
    def _positions(self) -> Mapping[Value, int]:
        """Return the position of each value among the inputs and results of the graph."""
        results = (result for node in self.graph.nodes for result in node.results)
        return {value: position for position, value in enumerate([*self.graph.inputs, *results])}

    def _graph_of(self, names: Sequence[str], nodes: set[Node], taken: list[Value]) -> Update:
        """Return the update of variables that runs these nodes on the values `taken`."""
        for value in taken:
            if value.type.layout is not MIRRORED and not self.is_alone:
                raise self._refused(value, names[0])
        inputs = [*(self.inputs[name] for name in names), *taken]
        fresh = tuple(Value(value.type.with_layout(MIRRORED), value.hint) for value in inputs)
        copier = Copier(NAME)
        copier.put(inputs, fresh)
        for node in self.graph.nodes:
            if node in nodes and node.op in _NOTHING_ON_ONE_REPLICA:
                copier.put(node.results, copier.now(node.operands))
            elif node in nodes:
                copier.copy(node)
        outputs = copier.now([self.new[name] for name in names])
        variables = tuple(self.held[self.inputs[name]] for name in names)
        name, stage, copied = f"update_{names[0]}", self.graph.stage, tuple(copier.nodes)
        graph = Graph(name, stage, 1, fresh, copied, outputs, variables)
        sent = tuple(self.sent.setdefault(value, len(self.sent)) for value in taken)
        makers = [self.producers[value] for value in taken if value in self.producers]
        sources = [node.source for node in [*reversed(copied), *makers]]
        source = next((source for source in sources if source.frame), UNKNOWN)
        return Update(simplify(restage(graph, Stage.SPMD)), sent, source)

    def _refused(self, value: Value, variable: str) -> VerifyError:
        node = self.producers.get(value)
        return VerifyError(
            f"the update of variable {variable!r} takes a value that differs between "
            f"the {self.graph.num_replicas} replicas of a worker",
            source=None if node is None else node.source,
            hint="reduce it over the replicas first: "
            "gd.get_replica_context().all_reduce('MEAN', value)",
        )

    def _worker(self) -> Graph:
        """Return the worker's graph, which has all variables as inputs."""
        returned = (*self.graph.returns_per_replica, *(False for _ in self.sent))
        outputs = (*self.results, *self.sent)
        return eliminate_dead_code(
            replace(self.graph, outputs=outputs, returns_per_replica=returned)
        )

    def _notes(self, reads: Collection[str]) -> Iterable[str]:
        """Yield the slots that the worker has to read, and why."""
        for name in self.new:
            value = self.inputs[name]
            if name not in reads or name in self.found.parameters or value.type.size == 1:
                continue
            using = [node for node in users(self.graph)[value] if node not in self.of_servers]
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


def _made_of(nodes: Iterable[Node]) -> dict[Value, list[Value]]:
    """Return the values from which each result of some nodes is computed."""
    return {
        result: [operand for operand in node.operands if isinstance(operand, Value)]
        for node in nodes
        for result in node.results
    }
