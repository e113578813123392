"""The halves of a step with parameter servers: what a worker runs, and what servers do.

`CutStep` has them apart, as they are run. `joined` makes one graph of them, which shows the step as
it is: the worker reads variables with `pull` nodes and computes; a `push` node at the end is an
update that a server makes, a nested graph. `parted` takes such a graph apart again. In between the
passes of the pipeline run on the worker's half alone (`OnWorker`).

    graph step on 1 replica, stage spmd
      variable @w: f32[2] mirrored {.., assigned=true, server=1}
    (%w: f32[2] mirrored = @w, %x: f32[2] mirrored) {
      %w_1 = pull(%w) {bytes=8, server=1} : f32[2] mirrored
      %g = jax.mul(%x, %w_1) : f32[2] mirrored
      %w_2 = push(%w, %g) {num_variables=1, bytes=8, server=1} : f32[2] mirrored (..)
      return %w_2 -> @w
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from graphdist.ir.analyses import producers
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, GraphVariable, Node, Operand, Value
from graphdist.ir.op_parameters import Pushing
from graphdist.ir.ops import PULL, PUSH
from graphdist.ir.printer import print_graph
from graphdist.ir.rewrite import restage, substitute
from graphdist.ir.source import UNKNOWN
from graphdist.passes.manager import Pass

NAME = "cut_updates"


@dataclass(frozen=True, slots=True)
class Update:
    """What a server does with some variables: a graph of their values and of sent values.

    `graph` takes the values of `variables` and then, of all that the worker sends, those at the
    places `sent`. It returns the new values of the variables, in this order.
    """

    variables: tuple[str, ...]
    sent: tuple[int, ...]
    graph: Graph

    @property
    def bytes_written(self) -> int:
        """Return the bytes that the worker sends for it."""
        taken = self.graph.inputs[len(self.variables) :]
        return sum(value.type.bytes for value in taken)


@dataclass(frozen=True, slots=True)
class CutStep:
    """A step in two halves.

    `worker` takes the values of its variables and the arguments of the step; it reads the variables
    with `pull` nodes. It returns the results of the step, and then `num_sent` values, which
    `updates` take. `notes` say which variables could not be cut off, and why.
    """

    worker: Graph
    num_sent: int
    updates: tuple[Update, ...]
    notes: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the names of the variables that the worker reads, in full or by rows."""
        return tuple(variable.name for variable in self.worker.variables)

    @property
    def bytes_read(self) -> int:
        """Return the bytes that the worker reads of variables, at most."""
        pulls = (node for node in self.worker.nodes if node.op is PULL)
        return sum(result.type.bytes for node in pulls for result in node.results)

    @property
    def bytes_written(self) -> int:
        """Return the bytes that the worker sends, what several servers take counted for each."""
        return sum(update.bytes_written for update in self.updates)

    @property
    def together(self) -> tuple[tuple[str, ...], ...]:
        """Return the variables that one server must hold, group by group."""
        return tuple(update.variables for update in self.updates if len(update.variables) > 1)

    def __str__(self) -> str:
        lines = [
            f"{self.worker.name}: the worker reads {self.bytes_read:,} bytes of "
            f"{len(self.reads)} variables and sends {self.bytes_written:,} bytes to "
            f"{len(self.updates)} updates"
        ]
        lines += [f"  not cut: {note}" for note in self.notes]
        graphs = (self.worker, *(update.graph for update in self.updates))
        return "\n".join([*lines, *map(print_graph, graphs)])


def is_cut(graph: Graph) -> bool:
    """Return whether a graph is a step in two halves."""
    return any(node.op in (PULL, PUSH) for node in graph.nodes)


def joined(cut: CutStep, variables: tuple[GraphVariable, ...]) -> Graph:
    """Return one graph of both halves, with all variables of the step."""
    worker, declared = cut.worker, {variable.name: variable for variable in variables}
    inputs = dict(zip(cut.reads, worker.inputs, strict=False))
    for variable in variables:
        inputs.setdefault(variable.name, Value(variable.type, variable.name))
    first_sent = len(worker.outputs) - cut.num_sent
    results, sent = worker.outputs[:first_sent], worker.outputs[first_sent:]
    made, new = producers(worker), dict[str, Operand]()
    builder = Builder(NAME)
    for update in cut.updates:
        taken = [sent[place] for place in update.sent]
        operands = [*(inputs[name] for name in update.variables), *taken]
        nodes = [*reversed(update.graph.nodes), *(made[v] for v in taken if v in made)]
        found = builder.add(
            PUSH,
            operands,
            Pushing(
                len(update.variables), update.bytes_written, declared[update.variables[0]].server
            ),
            (_nested(update.graph, worker),),
            at=next((node.source for node in nodes if node.source.frame), UNKNOWN),
        )
        new.update(zip(update.variables, found, strict=True))
    return Graph(
        worker.name,
        worker.stage,
        worker.num_replicas,
        (*(inputs[variable.name] for variable in variables), *worker.inputs[len(cut.reads) :]),
        (*worker.nodes, *builder.nodes),
        (*(new[variable.name] for variable in variables if variable.assigned), *results),
        variables,
        worker.returns_per_replica[: len(results)],
    )


def _nested(graph: Graph, worker: Graph) -> Graph:
    """Return an update for a node, with values of its own: the worker may compute some too."""
    graph = restage(graph, worker.stage)
    inputs = tuple(Value(value.type, value.hint) for value in graph.inputs)
    environment: dict[Operand, Operand] = dict(zip(graph.inputs, inputs, strict=True))
    nodes = []
    for node in graph.nodes:
        operands = substitute(environment, node.operands)
        results = tuple(Value(value.type, value.hint) for value in node.results)
        environment.update(zip(node.results, results, strict=True))
        nodes.append(
            Node(node.op, operands, node.params, node.graphs, results, node.source, node.origin)
        )
    outputs = substitute(environment, graph.outputs)
    return Graph(graph.name, worker.stage, worker.num_replicas, inputs, tuple(nodes), outputs)


def parted(graph: Graph) -> CutStep:
    """Return the halves of a graph that `joined` has made."""
    pushes = [node for node in graph.nodes if node.op is PUSH]
    names = {
        value: variable.name for value, variable in zip(graph.inputs, graph.variables, strict=False)
    }
    declared = {variable.name: variable for variable in graph.variables}
    sent: list[Operand] = []
    places: dict[int, int] = {}  # by identity: 0.0 and -0.0 are equal
    updates = []
    for node in pushes:
        count = PUSH.of(node).num_variables
        variables = tuple(names[cast(Value, operand)] for operand in node.operands[:count])
        for operand in node.operands[count:]:
            if id(operand) not in places:
                places[id(operand)] = len(sent)
                sent.append(operand)
        taken = tuple(places[id(operand)] for operand in node.operands[count:])
        (nested,) = node.graphs
        update = Graph(
            nested.name,
            nested.stage,
            1,
            nested.inputs,
            nested.nodes,
            nested.outputs,
            tuple(declared[name] for name in variables),
        )
        updates.append(Update(variables, taken, update))
    return CutStep(_worker(graph, sent), len(sent), tuple(updates))


def _worker(graph: Graph, sent: Sequence[Operand]) -> Graph:
    """Return the worker's half, with the variables that it reads."""
    nodes = tuple(node for node in graph.nodes if node.op is not PUSH)
    outputs = (*graph.outputs[len(graph.assigned) :], *sent)
    needed = {operand for node in nodes for operand in node.operands} | set(outputs)
    held = zip(graph.inputs, graph.variables, strict=False)
    read = {value: variable for value, variable in held if value in needed}
    return Graph(
        graph.name,
        graph.stage,
        graph.num_replicas,
        (*read, *graph.inputs[len(graph.variables) :]),
        nodes,
        outputs,
        tuple(replace(variable, assigned=False) for variable in read.values()),
        (*graph.returns_per_replica, *(False for _ in sent)),
    )


@dataclass(frozen=True, slots=True)
class OnWorker:
    """A pass of the worker's half: servers run updates as they were cut off."""

    entry: Pass

    def __call__(self, graph: Graph) -> Graph:
        """Return the step after the pass."""
        if not is_cut(graph):
            return self.entry.run(graph)
        cut = parted(graph)
        # Workers take the values that they read as arguments: there is nothing to store.
        taken = cut.worker.replace(variables=())
        worker = self.entry.run(taken)
        if worker is taken:
            return graph
        worker = worker.replace(variables=cut.worker.variables)
        return joined(replace(cut, worker=worker), graph.variables)

    def declined(self, graph: Graph) -> Sequence[str]:
        """Return the changes of the worker's half that the pass declines."""
        found = getattr(self.entry.run, "declined", None)
        if found is None:
            return ()
        taken = parted(graph).worker.replace(variables=()) if is_cut(graph) else graph
        reasons: Sequence[str] = found(taken)
        return reasons


def on_worker(entry: Pass) -> Pass:
    """Return a pass that runs on the worker's half of a step, under the same name."""
    return Pass(entry.name, OnWorker(entry), entry.takes, entry.gives)


def of_worker(entry: Pass) -> Pass:
    """Return the pass that `on_worker` was given; any other one as it is."""
    return entry.run.entry if isinstance(entry.run, OnWorker) else entry
