"""Divide the update of variables among the replicas: each updates a slice, then all are gathered.

Data-parallel training reduces a gradient to every replica, and every replica then makes the same
update of all parameters and keeps all of the optimizer's state. Shared out, a gradient is
reduce_scattered, each replica updates its slice, and the new parameters are gathered: R times fewer
computed on, as many bytes moved where a gradient updates one parameter, and state that is read in
slices only (an optimizer's slots) is kept in slices between steps: `sharded_along` of the variable.
The values are the same. (Xu et al. 2020, "Automatic Cross-Replica Sharding of Weight Update in
Data-Parallel Training"; stage 1 of Rajbhandari et al. 2020, "ZeRO".)

Before:  %g = all_reduce(%x)  %m1 = mul(%m, 0.9)  %m2 = add(%m1, %g)  %w2 = sub(%w, %m2)
         return %m2 -> @m, %w2 -> @w
After:   %g = reduce_scatter(%x)  %m1 = mul(%m, 0.9)  %m2 = add(%m1, %g)
         %s = own_slice(%w)  %d = sub(%s, %m2)  %w2 = all_gather(%d)  return %m2 -> @m, %w2 -> @w

How it works. Every variable worth it is *wanted* in slices (`Sharding` has the rule). From the
outputs backwards each value learns how it is needed: in full, in slices, or either way. The rule of
an operation (`passes/slice_rules.py`) says how it needs its operands. An operation that computes
each element by itself needs its operands as its result is needed, and so does a `cond` with a
mirrored index, through its branches. A reduction to a number (a global norm, or whether all is
finite) takes either form: the slices are reduced, and then the numbers all_reduced. What may be
either way is cut where it comes together with a slice. Any other operation needs its operands in
full, or takes them gathered where that sends no more (`passes/gathered_values.py`). A variable
gains nothing if no reduce_scatter flows into its slices, and is then no longer wanted; that may
change what others need, so the analysis is repeated until all wanted variables gain
(`passes/slices.py`, `passes/slice_gains.py`). Then the graph is built again, each value in the form
that is needed. Where something needs the other form after all, it is made from the first: a wrong
guess would cost time and never give a wrong result.

The pass is idempotent: variables that are stored in slices stay so, and a graph of the same nodes
in another order is not returned as a new one.

A branch is handed slices and returns slices. It holds an all_reduce where it reduces slices to a
number. All replicas reach it or none, since the index is mirrored.

Left alone: bodies of loops, branches that replicas choose for themselves, operations that find the
place of a number (argmax), reductions to rows and columns, variables of which no dimension divides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, GraphVariable, Node, Operand, Value
from graphdist.ir.ops import ALL_GATHER, COND, OWN_SLICE
from graphdist.ir.source import UNKNOWN
from graphdist.passes.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.slice_gains import Sharding, wanted_in_slices
from graphdist.passes.slices import Needs

NAME = "shard_update"


@dataclass(frozen=True, slots=True)
class ShardUpdate:
    """The pass for one target."""

    sharding: Sharding

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with the updates of variables shared out where that gains."""
        if not self.sharding.is_on or graph.num_replicas == 1:
            return graph
        needs, _ = wanted_in_slices(graph, self.sharding)
        return graph if needs is None else _Sharder(graph, needs).run()

    def declined(self, graph: Graph) -> list[str]:
        """Return the variables that are updated unsharded, and why."""
        if not self.sharding.is_on or graph.num_replicas == 1:
            return []
        _, reasons = wanted_in_slices(graph, self.sharding)
        return [f"{name}: {reason}" for name, reason in reasons.items() if reason]


class _Sharder:
    """Builds the graph again. It has a value in full, in slices, or both."""

    def __init__(self, graph: Graph, needs: Needs) -> None:
        self.graph, self.needs = graph, needs
        self.cuts = needs.cuts
        self.builder = Builder(NAME)
        self.fulls: dict[Operand, Operand] = {}
        self.slices: dict[Operand, Operand] = {}
        self.put_off: dict[Operand, Node] = {}
        """The nodes that are made on demand, until it is known in which form."""

    def run(self) -> Graph:
        """Return the new graph."""
        graph = self.graph
        variables = tuple(map(self._stored, graph.variables, graph.inputs))
        inputs = tuple(map(self._input, variables, graph.inputs))
        rest = graph.inputs[len(inputs) :]
        self.fulls.update(zip(rest, rest, strict=True))
        self._rebuild_all()
        assigned = [variable for variable in variables if variable.assigned]
        of_variables = list(map(self._output, assigned, graph.outputs))
        outputs = (*of_variables, *map(self.full, graph.outputs[len(of_variables) :]))
        nodes = tuple(self.builder.nodes)
        # Nodes that were put off stand elsewhere: the same nodes in another order are nothing new.
        if (set(nodes), outputs, variables) == (set(graph.nodes), graph.outputs, graph.variables):
            return graph
        inputs = (*inputs, *rest)
        rebuilt = graph.replace(inputs=inputs, outputs=outputs, nodes=nodes, variables=variables)
        return eliminate_dead_code(rebuilt)  # values in a form that nobody took

    def branch(self, used: Sequence[int], returned: Sequence[tuple[int, bool]]) -> Graph:
        """Return the graph, a branch, with the inputs and outputs at these positions.

        Each output is marked True where a slice is wanted of it.
        """
        graph = self.graph
        inputs = tuple(self._passed(graph.inputs[position]) for position in used)
        self._rebuild_all()
        outputs = tuple(
            self._form(graph.outputs[position], is_slice) for position, is_slice in returned
        )
        nodes = tuple(self.builder.nodes)
        if (set(nodes), outputs, inputs) == (set(graph.nodes), graph.outputs, graph.inputs):
            return graph
        return graph.replace(inputs=inputs, outputs=outputs, nodes=nodes)

    def full(self, operand: Operand) -> Operand:
        """Return all of a value."""
        if type(operand) is not Value:
            return operand
        found = self.fulls.get(operand)
        if found is None:
            found = self.fulls[operand] = self._made_full(operand)
        return found

    def slice(self, operand: Operand) -> Operand:
        """Return a replica's slice of a value."""
        found = self.slices.get(operand)
        if found is None:
            found = self.slices[operand] = self._made_slice(operand)
        return found

    def has_slice(self, operand: Operand) -> bool:
        """Return whether a slice is there, or can be made without the full value."""
        return operand in self.slices or operand in self.put_off

    def keep_slice(self, operand: Operand, slice: Operand) -> None:
        """Remember a slice of a value that is there in full, too."""
        self.slices.setdefault(operand, slice)

    def reduced(self, node: Node) -> tuple[Operand, ...] | None:
        """Return what a reduction may take in slices; None if it may not."""
        return self.needs.reduced.get(node)

    def is_cut(self, operand: Operand) -> bool:
        """Return whether a value is made in slices, and never in full."""
        return self.needs.is_cut(operand)

    def _rebuild_all(self) -> None:
        for node in self.graph.nodes:
            if self.needs.of_node(node):
                self._rebuild(node)

    def _rebuild(self, node: Node) -> None:
        if node in self.needs.branching:
            self._branches(node)
            return
        rule = self.needs.rule_of(node)
        if len(node.results) == 1 and not self.needs.is_full(node.results[0]):
            result = node.results[0]
            if rule.on_demand:
                self.put_off[result] = node
                return
            if self.needs.is_cut(result):
                self.slices[result] = rule.slice(node, self)
                return
        self.fulls.update(zip(node.results, rule.results(node, self), strict=True))

    def _branches(self, node: Node) -> None:
        """Hand a `cond` slices where branches take them, and take slices from it."""
        needs = self.needs
        inputs = node.graphs[0].inputs
        used = [position for position, value in enumerate(inputs) if needs.need(value)]
        returned = [
            (position, needs.in_slices(result))
            for position, result in enumerate(node.results)
            if needs.need(result)
        ]
        index, *passed = node.operands
        operands = [
            self._form(passed[position], needs.in_slices(inputs[position])) for position in used
        ]
        graphs = tuple(_Sharder(branch, needs).branch(used, returned) for branch in node.graphs)
        operands = [self.full(index), *operands]
        if len(returned) == len(node.results):
            results = self.builder.keep(node, tuple(operands), graphs)
        else:
            results = self.builder.add(COND, operands, node.params, graphs, at=node.source)
        for (position, is_slice), result in zip(returned, results, strict=True):
            (self.slices if is_slice else self.fulls)[node.results[position]] = result

    def _form(self, operand: Operand, is_slice: bool) -> Operand:
        return self.slice(operand) if is_slice else self.full(operand)

    def _passed(self, value: Value) -> Value:
        """Return the input of a branch in the form in which it is handed in."""
        if not self.needs.in_slices(value):
            self.fulls[value] = value
            return value
        slice = Value(self.cuts.slice_type(value.type), value.hint)
        self.slices[value] = slice
        return slice

    def _stored(self, variable: GraphVariable, value: Value) -> GraphVariable:
        """Return the variable as it is stored from now on."""
        is_stored = variable.sharded_along is not None
        if is_stored or variable.name not in self.needs.wanted or self.needs.is_full(value):
            return variable
        return variable.stored_along(self.cuts.dimension(value.type))

    def _input(self, variable: GraphVariable, value: Value) -> Value:
        held = variable.held(self.cuts.num_replicas)
        if held == value.type or not held.shape:
            self.fulls[value] = value
            return value
        slice = Value(held, value.hint)
        self.slices[value] = slice
        return slice

    def _output(self, variable: GraphVariable, output: Operand) -> Operand:
        is_cut = variable.sharded_along is not None and output.type.shape == variable.type.shape
        return self._form(output, is_cut)

    def _made_full(self, value: Value) -> Operand:
        node = self.put_off.get(value)
        if node is not None:
            return self.needs.rule_of(node).results(node, self)[0]
        at = self.needs.sources.get(value, UNKNOWN)
        sliced = (self.slices[value],)
        return self.builder.add(ALL_GATHER, sliced, self._cut(value), at=at, hint=value.hint)[0]

    def _made_slice(self, operand: Operand) -> Operand:
        node = self.put_off.get(operand)
        if node is not None:
            return self.needs.rule_of(node).slice(node, self)
        at = self.needs.sources.get(operand, UNKNOWN)
        return self.builder.add(OWN_SLICE, (self.full(operand),), self._cut(operand), at=at)[0]

    def _cut(self, operand: Operand) -> dict[str, object]:
        """Return the parameters of what goes between a value and its slices."""
        return self.cuts.params(self.cuts.dimension(operand.type))
