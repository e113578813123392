"""Share the update of variables out over the replicas: each updates its slice, then all gather it.

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
outputs backwards each value learns how it is needed: whole, in slices, or either way, which is how
a reduction to a scalar needs it (a global norm, or whether all is finite: the slices are reduced,
and the scalars all_reduced). An operation that computes each element by itself hands on what is
needed of its result, and so does a `cond` whose index is mirrored, through its branches; what may
be either way is cut where it meets a slice; any other operation needs its operands whole, or takes
them gathered where that sends no more (`passes/gathered_values.py`). A variable into whose slices
no reduce_scatter flows gains nothing, and is no longer wanted; that may change what others need, so
it is asked again until all that are wanted gain (`passes/slices.py`, `passes/slice_gains.py`). Then
the graph is built anew, each value in the form that is needed, the other form made from it where
something wants that after all: a wrong guess would cost time and never a wrong result.

A branch is handed slices and returns slices. It holds an all_reduce where it reduces slices to a
number; all replicas take the branch or none, since the index is mirrored.

Left alone: bodies of loops, branches that replicas choose for themselves, what finds the place of a
number (argmax), reductions to rows and columns, variables none of whose dimensions divides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operand, Value, Variable
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, COND, OWN_SLICE, REDUCE_SCATTER
from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.types import Type, own_slice
from graphdist.passes.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.slice_gains import Sharding, wanted_in_slices
from graphdist.passes.slice_kinds import REDUCERS, cut_of, is_shared, params_of_reduction
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
        """Return the variables that are assigned whole, each with the reason."""
        if not self.sharding.is_on or graph.num_replicas == 1:
            return []
        _, reasons = wanted_in_slices(graph, self.sharding)
        return [f"{name}: {reason}" for name, reason in reasons.items() if reason]


class _Sharder:
    """Builds the graph anew; of a value it knows the whole, the slice, or both."""

    def __init__(self, graph: Graph, needs: Needs) -> None:
        self.graph, self.needs = graph, needs
        self.builder = Builder(NAME)
        self.wholes: dict[Operand, Operand] = {}
        self.slices: dict[Operand, Operand] = {}
        self.put_off: dict[Operand, Node] = {}
        """What broadcasts and all_gathers make, once it is known in which form it is wanted."""

    def run(self) -> Graph:
        """Return the new graph."""
        graph = self.graph
        variables = tuple(map(self._stored, graph.variables, graph.inputs))
        inputs = tuple(map(self._input, variables, graph.inputs))
        rest = graph.inputs[len(inputs) :]
        self.wholes.update(zip(rest, rest, strict=True))
        self._rebuild_all()
        assigned = [variable for variable in variables if variable.assigned]
        of_variables = list(map(self._output, assigned, graph.outputs))
        outputs = (*of_variables, *map(self._whole, graph.outputs[len(of_variables) :]))
        nodes = tuple(self.builder.nodes)
        # What was put off stands elsewhere: the same nodes in another order are nothing new.
        if (set(nodes), outputs, variables) == (set(graph.nodes), graph.outputs, graph.variables):
            return graph
        inputs = (*inputs, *rest)
        rebuilt = graph.replace(inputs=inputs, outputs=outputs, nodes=nodes, variables=variables)
        return eliminate_dead_code(rebuilt)  # what was made in the form that nobody took

    def branch(self, used: Sequence[int], returned: Sequence[tuple[int, bool]]) -> Graph:
        """Return the graph, a branch, with the inputs and outputs at these positions.

        Each output is marked True where a slice is wanted of it.
        """
        graph = self.graph
        inputs = tuple(self._passed(graph.inputs[position]) for position in used)
        self._rebuild_all()
        outputs = tuple(
            (self._slice if is_slice else self._whole)(graph.outputs[position])
            for position, is_slice in returned
        )
        nodes = tuple(self.builder.nodes)
        if (set(nodes), outputs, inputs) == (set(graph.nodes), graph.outputs, graph.inputs):
            return graph
        return graph.replace(inputs=inputs, outputs=outputs, nodes=nodes)

    def _rebuild_all(self) -> None:
        for node in self.graph.nodes:
            if self.needs.of_node(node):
                self._rebuild(node)

    def _passed(self, value: Value) -> Value:
        if not self.needs.in_slices(value):
            self.wholes[value] = value
            return value
        slice = Value(self._slice_type(value), value.hint)
        self.slices[value] = slice
        return slice

    def _stored(self, variable: Variable, value: Value) -> Variable:
        """Return the variable as it is stored from now on."""
        is_stored = variable.sharded_along is not None
        if is_stored or variable.name not in self.needs.wanted or self.needs.is_whole(value):
            return variable
        return variable.stored_along(self._cut(value.type))

    def _input(self, variable: Variable, value: Value) -> Value:
        held = variable.held(self.graph.num_replicas)
        if held == value.type or not held.shape:
            self.wholes[value] = value
            return value
        slice = Value(held, value.hint)
        self.slices[value] = slice
        return slice

    def _output(self, variable: Variable, output: Operand) -> Operand:
        is_cut = variable.sharded_along is not None and output.type.shape == variable.type.shape
        return self._slice(output) if is_cut else self._whole(output)

    def _cut(self, type: Type) -> int:
        axis = cut_of(type.shape, self.graph.num_replicas)
        assert axis is not None
        return axis

    def _rebuild(self, node: Node) -> None:
        if node in self.needs.branching:
            self._branches(node)
            return
        kind = self.needs.kinds.get(node.results[0], "") if node.results else ""
        result = node.results[0] if len(node.results) == 1 else None
        if result is not None and not self.needs.is_whole(result):
            if kind in ("broadcast", "gathered"):
                self.put_off[result] = node
                return
            if kind == "elementwise" and self.needs.in_slices(result):
                self.slices[result] = self._elementwise(node, result)
                return
            if kind == "all_reduce" and self.needs.in_slices(result):
                self.slices[result] = self._reduce_scattered(node, result)
                return
        if kind == "sliced" and self._is_sliced(node.operands[0]):
            self.wholes[node.results[0]] = self._slice(node.operands[0])
            return
        if node in self.needs.reduced:
            self.wholes[node.results[0]] = self._reduced(node)
            return
        operands = tuple(map(self._whole, node.operands))
        results = self.builder.keep(node, operands, node.graphs)
        self.wholes.update(zip(node.results, results, strict=True))
        if kind == "gathered":
            self.slices[node.results[0]] = operands[0]
        elif kind == "sliced":
            self.slices.setdefault(node.operands[0], results[0])

    def _branches(self, node: Node) -> None:
        """Hand a `cond` slices where branches take them, and take slices from it."""
        needs = self.needs
        inputs = node.graphs[0].inputs
        used = [position for position, value in enumerate(inputs) if needs.flags.get(value)]
        returned = [
            (position, needs.in_slices(result))
            for position, result in enumerate(node.results)
            if needs.flags.get(result)
        ]
        index, *passed = node.operands
        operands = [
            (self._slice if needs.in_slices(inputs[position]) else self._whole)(passed[position])
            for position in used
        ]
        graphs = tuple(_Sharder(branch, needs).branch(used, returned) for branch in node.graphs)
        operands = [self._whole(index), *operands]
        if len(returned) == len(node.results):
            results = self.builder.keep(node, tuple(operands), graphs)
        else:
            results = self.builder.add(COND, operands, node.params, graphs, at=node.source)
        for (position, is_slice), result in zip(returned, results, strict=True):
            (self.slices if is_slice else self.wholes)[node.results[position]] = result

    def _is_sliced(self, operand: Operand) -> bool:
        """Return whether a slice of the operand is there, or can be made without the whole."""
        return operand in self.slices or operand in self.put_off

    def _elementwise(self, node: Node, result: Value) -> Operand:
        operands = [
            (self._whole if is_shared(operand, result, self.graph.num_replicas) else self._slice)(
                operand
            )
            for operand in node.operands
        ]
        return self._add(node, operands, self._slice_type(result))

    def _reduce_scattered(self, node: Node, result: Value) -> Operand:
        params = {**node.params, "axis": self._cut(result.type)}
        operands = [self._whole(operand) for operand in node.operands]
        at, hint = node.source, result.hint
        return self.builder.add(REDUCE_SCATTER, operands, params, at=at, hint=hint)[0]

    def _reduced(self, node: Node) -> Operand:
        """Reduce a replica's slice, then what the replicas have of it; or all there is."""
        operands = self.needs.reduced[node]
        is_cut = any(map(self.needs.is_cut, operands))
        given = tuple(map(self._slice if is_cut else self._whole, operands))
        if not is_cut and given == node.operands:
            return self.builder.keep(node, given, ())[0]
        at, hint, types = node.source, node.results[0].hint, [node.results[0].type]
        params = params_of_reduction(node, operands)
        local = self.builder.add(node.op, given, params, at=at, types=types, hint=hint)[0]
        if not is_cut:
            return local
        params = {"reducer": REDUCERS[node.op.name], "group_size": self.graph.num_replicas}
        return self.builder.add(ALL_REDUCE, (local,), params, at=at, hint=hint)[0]

    def _add(self, node: Node, operands: Sequence[Operand], type: Type) -> Operand:
        types = None if node.op.rule else [type]
        hint = node.results[0].hint
        return self.builder.add(
            node.op, operands, node.params, at=node.source, types=types, hint=hint
        )[0]

    def _whole(self, operand: Operand) -> Operand:
        """Return all of a value."""
        if type(operand) is not Value:
            return operand
        found = self.wholes.get(operand)
        if found is None:
            found = self.wholes[operand] = self._made_whole(operand)
        return found

    def _made_whole(self, value: Value) -> Operand:
        node = self.put_off.get(value)
        if node is not None:
            operands = tuple(map(self._whole, node.operands))
            return self.builder.keep(node, operands, ())[0]
        params = {"axis": self._cut(value.type), "group_size": self.graph.num_replicas}
        at, hint = self._source(value), value.hint
        return self.builder.add(ALL_GATHER, (self.slices[value],), params, at=at, hint=hint)[0]

    def _slice(self, operand: Operand) -> Operand:
        """Return a replica's slice of a value."""
        found = self.slices.get(operand)
        if found is None:
            found = self.slices[operand] = self._made_slice(operand)
        return found

    def _made_slice(self, operand: Operand) -> Operand:
        node = self.put_off.get(operand)
        if node is not None and node.op is ALL_GATHER:
            return self._whole(node.operands[0])
        if node is not None:
            return self._broadcast_slice(node)
        params = {"axis": self._cut(operand.type), "group_size": self.graph.num_replicas}
        whole = (self._whole(operand),)
        return self.builder.add(OWN_SLICE, whole, params, at=self._source(operand))[0]

    def _broadcast_slice(self, node: Node) -> Operand:
        type = self._slice_type(node.results[0])
        operands, hint = map(self._whole, node.operands), node.results[0].hint
        params = {**node.params, "shape": type.shape}
        return self.builder.add(
            node.op, tuple(operands), params, at=node.source, types=[type], hint=hint
        )[0]

    def _slice_type(self, value: Operand) -> Type:
        return own_slice(value.type, self._cut(value.type), self.graph.num_replicas)

    def _source(self, operand: Operand) -> Source:
        return self.needs.sources.get(operand, UNKNOWN)
