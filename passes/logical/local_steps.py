"""Let replicas take local steps, and synchronize their parameters in every H-th step.

In data-parallel training all replicas update with the mean of their gradients, in every step. Here
each replica updates its own copy of the parameters with its own gradient, and in every `every`-th
step the copies are made equal again. The bytes sent per step fall to 1 / `every`.

* Without `outer`, a copy becomes the mean of the copies: local SGD (Stich 2018, "Local SGD
  Converges Fast and Communicates Little", arXiv 1805.09767).
* With `outer`, the parameters of the last synchronization, the *anchors*, are stored too. The mean
  over the replicas of anchor - copy is given to an outer optimizer as the gradient of the anchors,
  and all copies become the new anchors: DiLoCo (Douillard et al. 2023, arXiv 2311.08105).

Before:  %g = all_reduce(%x) {reducer="mean"}   %w2 = jax.sub(%w, %g)   assign(%w2) {variable=@w}
After:   %w2 = jax.sub(%w, %x)   assign(%w2) {variable=@w}
         %n = read() {variable=@steps}   %n1, %due = count_step(%n) {every=50}
         assign(%n1) {variable=@steps}
         cond(%due)  branch { }  branch { %c = read() {variable=@w}
                                          %m = all_reduce(%c) {reducer="mean"}
                                          assign(%m) {variable=@w} }

How it works. The graph is the logical one, of an unchanged program.

1. A reduction is *removed* if it is a sum or a mean of floats that differ between replicas, and an
   assigned mirrored variable depends on its result (`ir/flow.py`). A mean is replaced by the
   replica's own value. A sum is replaced by the replica's own value times the number of replicas:
   the mean of these over the replicas is the sum, so sums that are kept in variables stay correct.
   A reduction of values that were equal on all replicas is removed, too, if the values differ now.
2. The *parameters* are the trainable variables of floats that the graph assigns, and on which the
   operand of a removed reduction depends: a gradient depends on the parameters that it is taken of.
   Parameters are synchronized; an optimizer's slots and running statistics are not. A graph without
   parameters is no training step.
3. Each variable that is now assigned a value which differs between replicas becomes local: its
   layout is `per_replica`. The step count of a schedule, which is equal on all replicas, stays
   mirrored. This is repeated, because values that depend on a local variable differ, too.
4. A step is one run of the outermost graph that assigns parameters outside of its nested loops.
   This is the program's graph, or a loop's body. The count and the `cond` are added at the end of
   that graph. All replicas have the same count, so all take the same branch.
5. An output that the program returns as one value, but that now differs between replicas, becomes
   the mean over the replicas. Integers and booleans have no mean, so their maximum is returned.

In a graph that is no training step, all replicas see one value of a variable that is stored in
copies: the mean of the copies, or their maximum as in 5. This value is computed once, at the start,
and stored in a new variable that only this graph has. The graph reads and assigns the new variable
in place of the copies. If the graph assigns it, its last value is written to all copies and to the
anchor.

Left alone: reductions that only outputs need, such as the mean of the loss; reductions of integers;
max and min; and gathers, unless their values are only added up (`training_steps.py`).
`declined` lists the collectives that still run in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol  # Any: arrays, of which passes know nothing

from graphdist.ir.analyses import walk
from graphdist.ir.builder import Builder
from graphdist.ir.errors import DistributionError
from graphdist.ir.flow import diverges
from graphdist.ir.graph import Graph, GraphVariable, Node, Operand, Operands, Stage
from graphdist.ir.op_parameters import Branching, CountingSteps, OfVariable, Reducing, Scaling
from graphdist.ir.ops import (
    AGGREGATE,
    ALL_REDUCE,
    ASSIGN,
    COND,
    COUNT_STEP,
    READ,
    SCALE,
    TO_REPLICAS,
    variable_named_by,
)
from graphdist.ir.rewrite import Copier
from graphdist.ir.source import Source
from graphdist.ir.types import MIRRORED, Layout, Type
from graphdist.ir.variable_storage import AddedRole, Anchor, OuterSlot, StepCount
from graphdist.passes.logical.infer_layouts import infer_layouts, nested_graphs, with_layouts
from graphdist.passes.logical.local_variables import (
    add_assign,
    add_read,
    added_variable,
    as_local,
    has_hidden_copies,
    is_local_copy,
    one_value,
    read_as_means,
)
from graphdist.passes.logical.training_steps import (
    TrainingStep,
    find_step,
    is_mirrored,
    reduced_sums_of_gathers,
    reducer_in_step,
    why_kept,
)

NAME = "local_steps"


class OuterUpdate(Protocol):
    """The update of an outer optimizer, as a graph."""

    def graph(self, parameters: tuple[Type, ...], num_replicas: int) -> Graph:
        """Return the graph from (anchors, copies, slots) to (new anchors, new slots).

        Anchors and slots are mirrored, copies are per replica. Equal arguments give the same graph
        object.
        """

    def slots(self, parameters: Sequence[Any]) -> list[Any]:
        """Return the initial values of the slots for parameters with these values."""


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """The pass: synchronize in every `every`-th step, by an outer optimizer or by the mean."""

    every: int
    outer: OuterUpdate | None = None

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with local steps; raises `DistributionError` for per-replica keys."""
        if graph.num_replicas == 1 and self.outer is None:
            return graph
        graph = reduced_sums_of_gathers(graph)
        step = find_step(graph)
        if step is None:
            return read_as_means(graph, anchored=self.outer is not None)
        return infer_layouts(_Localizer(graph, step, self).run())

    def declined(self, graph: Graph) -> list[str]:
        """Return the reductions that still run in every step, or why there are no local steps."""
        if graph.num_replicas == 1 and self.outer is None:
            return []
        graph = reduced_sums_of_gathers(graph)
        step = find_step(graph)
        if step is not None:
            gone = step.removed | step.redundant
            return [
                f"{node.op.name} of {node.operands[0].type} at {node.source}: it runs in every "
                f"step, since {why_kept(node)}"
                for node in walk(graph)
                if node.op.is_collective and node not in gone
            ]
        if any(map(is_local_copy, graph.variables)):
            return []
        return [
            "it assigns no trainable variable of floats by a gradient that is reduced over the "
            "replicas: it is no training step, and runs as without sync_every"
        ]


class _Localizer:
    """Builds the graph again, with per-replica values in place of the removed reductions."""

    def __init__(self, graph: Graph, step: TrainingStep, options: LocalSteps) -> None:
        """Start with the variables that are stored in copies, and with those that the pass adds."""
        self.graph, self.step, self.every = graph, step, options.every
        self.declared = {variable.name: variable for variable in graph.variables}
        self.local: dict[str, GraphVariable] = {}
        """The local variables found so far, by name."""
        self.is_divergent = False
        """Whether only some replicas may run the nodes that are being built."""
        self.has_more = False
        """Whether a variable became local in this walk of the graph, so that it is walked again."""
        for variable in graph.variables:
            if has_hidden_copies(variable):
                self._make_local(variable, step.source)
        self.added: dict[AddedRole, GraphVariable] = {}
        """The variables that the pass adds."""
        names = set(self.declared)
        if self.every > 1:
            self._add(StepCount(step.parameters), Type("i32", ()), names)
        self.update: Graph | None = None
        """The update of the outer optimizer."""
        if options.outer is not None:
            types = [self.declared[name].type.with_layout(MIRRORED) for name in step.parameters]
            for name, type in zip(step.parameters, types, strict=True):
                self._add(Anchor((name,)), type, names)
            self.update = options.outer.graph(tuple(types), graph.num_replicas)
            for index, slot in enumerate(self.update.inputs[2 * len(types) :]):
                self._add(OuterSlot(step.parameters, index), slot.type, names)

    def run(self) -> Graph:
        """Return the new graph, without the checks of `infer_layouts`."""
        graph = self.graph
        while True:
            self.has_more = False
            made = self._derived(graph, [value.type.layout for value in graph.inputs])
            if not self.has_more:
                break
        variables = {**self.declared, **self.local}.values()
        return made.replace(variables=(*variables, *self.added.values()))

    def _make_local(self, variable: GraphVariable, at: Source) -> None:
        if variable.type.dtype.startswith("key"):
            raise DistributionError(
                f"variable {variable.name!r} of random keys would differ between the replicas, "
                f"which take local steps: its copies have no mean",
                source=at,
                other=self.step.source,
                hint="compute its new value from values that are the same on all replicas",
            )
        self.local[variable.name] = as_local(variable)
        self.has_more = True

    def _add(self, role: AddedRole, type: Type, names: set[str]) -> None:
        self.added[role] = added_variable(role, type, names)

    def _derived(self, graph: Graph, entering: Sequence[Layout | None]) -> Graph:
        """Return the graph, or one nested in it, for inputs of these layouts."""
        inputs = with_layouts(graph.inputs, entering)
        copier = Copier(NAME)
        copier.put(graph.inputs, inputs)
        for node in graph.nodes:
            copier.put(node.results, self._rebuilt(copier, node, copier.now(node.operands)))
        if graph in self.step.bodies:
            self._synchronize(copier)
        outputs = copier.now(graph.outputs)
        if graph is self.graph:
            outputs = tuple(
                output
                if per_replica or output.type.layout is MIRRORED
                else one_value(copier, output, graph.num_replicas, self.step.source)
                for output, per_replica in zip(outputs, graph.returns_per_replica, strict=True)
            )
        return graph.replace(inputs=inputs, nodes=tuple(copier.nodes), outputs=outputs)

    def _rebuilt(self, builder: Builder, node: Node, operands: Operands) -> Sequence[Operand]:
        differs = any(operand.type.layout is not MIRRORED for operand in operands)
        if node in self.step.removed or (differs and node in self.step.redundant):
            if reducer_in_step(node) != "sum" or self.graph.num_replicas == 1:
                return operands
            return builder.add(SCALE, operands, Scaling(self.graph.num_replicas), at=node.source)
        if node.op is TO_REPLICAS and differs:
            return operands
        if node.op in (READ, ASSIGN, AGGREGATE):
            return self._of_variable(builder, node, operands, differs or self.is_divergent)
        if node.graphs:
            return self._control_flow(builder, node, operands)
        return builder.keep(node, operands, ())

    def _of_variable(
        self, builder: Builder, node: Node, operands: Operands, differs: bool
    ) -> Sequence[Operand]:
        variable = variable_named_by(node)
        is_first = variable.name not in self.local
        if node.op is ASSIGN and is_mirrored(variable) and differs and is_first:
            self._make_local(variable, node.source)
        local = self.local.get(variable.name)
        if local is None or variable.is_local:
            return builder.keep(node, operands, ())
        if node.op is not AGGREGATE:
            return builder.add(node.op, operands, OfVariable(local), at=node)
        # The value to write to each replica's copy.
        is_of_replicas = AGGREGATE.of(node).context == "replica"
        if not is_of_replicas or variable.aggregation not in ("max", "min", "sum"):
            return operands
        params = Reducing(variable.aggregation, group_size=self.graph.num_replicas)
        return builder.add(ALL_REDUCE, operands, params, at=node.source)

    def _control_flow(self, builder: Builder, node: Node, operands: Operands) -> Sequence[Operand]:
        types = [operand.type for operand in operands]
        before = self.is_divergent
        graphs = nested_graphs(node, types, self._derived)
        if not before and diverges(Node(node.op, operands, node.params, graphs, ())):
            self.is_divergent = True
            graphs = nested_graphs(node, types, self._derived)
        self.is_divergent = before
        return builder.keep(node, operands, graphs)

    def _synchronize(self, builder: Builder) -> None:
        """Count the steps, and add the branch that synchronizes in every `every`-th step."""
        count = self.added.get(StepCount(self.step.parameters))
        if count is None:
            self._make_equal(builder)
            return
        branch = Builder(NAME)
        self._make_equal(branch)
        at, replicas = self.step.source, self.graph.num_replicas
        (steps,) = add_read(builder, count, at)
        more, is_due = builder.add(COUNT_STEP, (steps,), CountingSteps(self.every), at=at)
        add_assign(builder, count, more, at)
        stay = Graph("stay", Stage.LOGICAL, replicas, (), (), ())
        synchronize = Graph("synchronize", Stage.LOGICAL, replicas, (), tuple(branch.nodes), ())
        # For cost estimates: one of this many steps runs the branch.
        params = Branching(every=self.every)
        builder.add(COND, (is_due,), params, (stay, synchronize), at=at)

    def _make_equal(self, builder: Builder) -> None:
        """Add the nodes that make the copies of each parameter equal."""
        at, names = self.step.source, self.step.parameters
        parameters = [self.local.get(name, self.declared[name]) for name in names]
        copies = [value for variable in parameters for value in add_read(builder, variable, at)]
        if self.update is None:
            params = Reducing("mean", group_size=self.graph.num_replicas)
            for variable, copy in zip(parameters, copies, strict=True):
                (mean,) = builder.add(ALL_REDUCE, (copy,), params, at=at, hint=variable.name)
                add_assign(builder, variable, mean, at)
            return
        anchors = [self.added[Anchor((name,))] for name in names]
        slots = [added for role, added in self.added.items() if isinstance(role, OuterSlot)]
        held = [value for variable in anchors for value in add_read(builder, variable, at)]
        kept = [value for variable in slots for value in add_read(builder, variable, at)]
        outer = Copier(NAME)
        outer.put(self.update.inputs, (*held, *copies, *kept))
        for node in self.update.nodes:
            outer.copy(node)
        builder.nodes.extend(outer.nodes)
        new = outer.now(self.update.outputs)
        assigned = zip((*anchors, *slots, *parameters), (*new, *new[: len(names)]), strict=True)
        for variable, value in assigned:
            add_assign(builder, variable, value, at)
