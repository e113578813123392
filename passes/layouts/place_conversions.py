"""Add the conversions between sharded and unsharded values that a placement states.

`PlacedValues` states which values of a program are sharded and which unsharded; this pass builds
that program. An operation on shards takes the shards of its operands, and parameters for their
shapes. A sharded value is gathered before its first use that needs it unsharded. If an unsharded
value is needed sharded, each replica takes its own shard of it. A reduction whose result is needed
only sharded becomes a reduce_scatter. Loops and branches take, carry and return each value in the
layout that the placement states.

Variables that `sharded_updates.py` updates sharded are stored sharded if nothing needs them
unsharded; otherwise they are gathered at the end of the step.

Before:  %w_all = all_gather(%w)    %g = all_reduce(%x)      %new = sub(%w_all, %g)
         %n = convert(%w_all)  %y = dot(%x, %n)   return own_slice(%new) -> @w
After:   %t = reduce_scatter(%x)    %w_new = sub(%w, %t)
         %s = convert(%w)      %n = all_gather(%s)  %y = dot(%x, %n)   return %w_new -> @w
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from graphdist.ir.analyses import has_effect, operations
from graphdist.ir.builder import Builder
from graphdist.ir.compare import is_same_program
from graphdist.ir.definitions import BARRIERS, ValueKind, has_shared_graphs
from graphdist.ir.factors import Factors
from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Op, Operand, Value
from graphdist.ir.loops import Scan, ScanEdit
from graphdist.ir.operation_table import on_shards
from graphdist.ir.ops import (
    ALL_GATHER,
    ALL_REDUCE,
    COND,
    OWN_SLICE,
    REDUCE_SCATTER,
    SCAN,
    of_groups,
)
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import Type, own_slice
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.layouts.gather_prices import priced_positions, unsharded_stacks
from graphdist.passes.layouts.placed_values import PlacedValues, Rules, is_full_reduction
from graphdist.passes.layouts.sharded_updates import (
    UpdateSharding,
    choose_sharded_updates,
    rules_of,
)

NAME = "place_conversions"
_ROUNDS = 8

Form: TypeAlias = tuple[Operand, int | None]
"""A value, and the dimension along which it is sharded, or None for the full value."""

Make: TypeAlias = Callable[[Sequence[Operand]], None]


@dataclass(frozen=True, slots=True)
class PlaceConversions:
    """The pass for one target.

    Slices of at least `smallest` bytes of a stack are gathered in the iteration that uses them. Up
    to `most_bytes` of smaller slices and constants may be gathered in front of a loop.
    """

    sharding: UpdateSharding
    smallest: int = 0
    most_bytes: int = 0

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with its conversions at the positions that the placement states.

        New shards of full values may allow a better placement of other values, so this is repeated
        until nothing changes.
        """
        if graph.num_replicas == 1 or has_shared_graphs(graph):
            return graph
        for _ in range(_ROUNDS):
            placed, _ = choose_sharded_updates(graph, self.sharding, self._rules(graph))
            if not (placed.derived or placed.sharded):
                return graph
            rebuilt = _rebuilt(graph, placed)
            if is_same_program(graph, rebuilt):
                return graph
            graph = rebuilt
            if OWN_SLICE.name not in operations(graph):
                break
        return graph

    def declined(self, graph: Graph) -> list[str]:
        """Return the variables updated unsharded, and the gathered stacks, each with a reason."""
        if graph.num_replicas == 1:
            return []
        placed, reasons = choose_sharded_updates(graph, self.sharding, self._rules(graph))
        updates = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
        return [*(updates if self.sharding.is_on else ()), *unsharded_stacks(placed)]

    def chosen(self, graph: Graph) -> list[str]:
        """Return the positions of gathers, their costs, and the costs of other positions."""
        if graph.num_replicas == 1:
            return []
        placed, _ = choose_sharded_updates(graph, self.sharding, self._rules(graph))
        return priced_positions(placed)

    def _rules(self, graph: Graph) -> Rules:
        return rules_of(graph, self.sharding, self.smallest, self.most_bytes)


def _rebuilt(graph: Graph, placed: PlacedValues) -> Graph:
    scope = _Scope(placed, Builder(NAME))
    inputs, variables = list(graph.inputs), list(graph.variables)
    new_values = dict(zip((v.name for v in graph.assigned), graph.outputs, strict=False))
    for place, (variable, value) in enumerate(zip(variables, graph.inputs, strict=False)):
        new = new_values.get(variable.name)
        if new in placed.wanted and value not in placed.unsharded:
            dimension = placed.dimension[cast(Value, new)]
            variables[place] = variable.stored_along(dimension)
            inputs[place] = Value(variables[place].held(graph.mesh), value.hint)
            scope.made[value, dimension] = inputs[place]
        else:
            scope.made[value, None] = value
    for value in graph.inputs[len(variables) :]:
        scope.made[value, None] = value
    scope.run(graph)
    stored = {variable.name: variable for variable in variables}
    outputs = [
        scope.output(output, stored[variable.name])
        for variable, output in zip(graph.assigned, graph.outputs, strict=False)
    ]
    outputs += map(scope.get, graph.outputs[len(outputs) :])
    rebuilt = graph.replace(
        inputs=tuple(inputs),
        nodes=tuple(scope.builder.nodes),
        outputs=tuple(outputs),
        variables=tuple(variables),
    )
    return eliminate_dead_code(rebuilt)


class _Scope:
    """The new version of one graph. `made` has the forms of old values that it has so far."""

    def __init__(self, placed: PlacedValues, builder: Builder) -> None:
        """Start without values; the builder collects the new nodes."""
        self.placed, self.builder = placed, builder
        self.made: dict[Form, Operand] = {}

    def run(self, graph: Graph) -> None:
        """Add the nodes of the graph that are needed, in order.

        Gathers, and nodes that compute on gathered values, are added where they are first used.
        """
        for node in graph.nodes:
            if node.op is SCAN:
                self._scan(node)
            elif node.op is COND:
                self._cond(node)
            elif node.op.name in BARRIERS:
                self._barrier(node)
            else:
                self._add(node)

    def get(self, operand: Operand, dimension: int | None = None) -> Operand:
        """Return a value unsharded, or a replica's shard of the value along a dimension.

        There is no recursion, since chains of operations may be long.
        """
        pending: list[Form] = [(operand, dimension)]
        while pending:
            form = pending[-1]
            if self._is_there(form):
                pending.pop()
                continue
            needed, make = self._way(cast(Value, form[0]), form[1])
            missing = [other for other in needed if not self._is_there(other)]
            if missing:
                pending.extend(reversed(missing))
            else:
                make([self._there(other) for other in needed])
        return self._there((operand, dimension))

    def output(self, operand: Operand, variable: GraphVariable) -> Operand:
        """Return the new value of a variable, sharded or unsharded as it is stored."""
        placed = self.placed
        if type(operand) is not Value or operand not in placed.wanted:
            return self.get(operand)
        shard = self.get(operand, placed.dimension[operand])
        if variable.sharded_along is not None:
            return shard
        return self._convert(ALL_GATHER, shard, operand, axis=placed.dimension[operand])

    def type_of_shard(self, value: Value) -> Type:
        """Return the type of a replica's shard."""
        rules = self.placed.rules
        return own_slice(value.type, self.placed.dimension[value], rules.mesh)

    def _is_there(self, form: Form) -> bool:
        return type(form[0]) is Literal or form in self.made

    def _there(self, form: Form) -> Operand:
        operand, dimension = form
        if type(operand) is not Literal:
            return self.made[form]
        if dimension is None:
            return operand
        rules = self.placed.rules
        type_ = own_slice(operand.type, dimension, rules.mesh)
        return Literal.of(operand.value, type_)

    def _add(self, node: Node) -> None:
        placed = self.placed
        if has_effect(node) or (node.graphs and self._is_needed(node)):
            needed, make = self._kept(node)
            make([self.get(*form) for form in needed])
        for result in node.results:
            if result not in placed.derived:
                if result in placed.unsharded:
                    self.get(result)
            elif result in placed.sharded and placed.is_computed_on_shards(result):
                self.get(result, placed.dimension[result])

    def _is_needed(self, node: Node) -> bool:
        placed = self.placed
        return has_effect(node) or any(
            v in placed.unsharded or v in placed.sharded for v in node.results
        )

    def _way(self, value: Value, dimension: int | None) -> tuple[list[Form], Make]:
        """Return the forms from which a form of `value` is made, and the function that makes it."""
        if dimension is None:
            return self._way_to_unsharded(value)
        if dimension != self.placed.dimension.get(value):
            return self._own_shard(value, dimension)
        return self._way_to_shard(value, dimension)

    def _way_to_unsharded(self, value: Value) -> tuple[list[Form], Make]:
        placed, definition = self.placed, self.placed.program.of[value]
        node = definition.node
        assert node is not None
        if definition.kind is ValueKind.BEHIND_BARRIER and value not in placed.gathered:

            def take(operands: Sequence[Operand]) -> None:
                self.made[value, None] = operands[0]

            return [(definition.parents[0], None)], take
        is_alone = value not in placed.sharded
        if value not in placed.gathered or (is_full_reduction(node) and is_alone):
            return self._kept(node)
        if value in placed.terms:
            return self._term(value, node, ALL_REDUCE)
        if node.op is ALL_GATHER:
            return self._kept(node)
        own = placed.dimension[value]

        def gather(operands: Sequence[Operand]) -> None:
            self.made[value, None] = self._convert(ALL_GATHER, operands[0], value, axis=own)

        return [(value, own)], gather

    def _way_to_shard(self, value: Value, own: int) -> tuple[list[Form], Make]:
        placed = self.placed
        definition = placed.program.of[value]
        node, found = definition.node, placed.factor(value)
        if node is None or not placed.is_computed_on_shards(value):
            return self._own_shard(value, own)
        if value in placed.terms:
            return self._term(value, node, REDUCE_SCATTER, axis=own)
        if is_full_reduction(node):

            def scatter(operands: Sequence[Operand]) -> None:
                self.made[value, own] = self._convert(
                    REDUCE_SCATTER, operands[0], value, reducer=node.params["reducer"], axis=own
                )

            return [(node.operands[0], None)], scatter
        if node.op is ALL_GATHER and found is None:

            def take(operands: Sequence[Operand]) -> None:
                self.made[value, own] = operands[0]

            return [(node.operands[0], None)], take
        if found is None or definition.kind is not ValueKind.COMPUTED:
            return self._own_shard(value, own)  # an input that the graph takes unsharded
        factors, factor = found

        def apply(operands: Sequence[Operand]) -> None:
            made = on_shards(node, operands, factor, placed.rules.mesh.group_size, self.builder)
            for result, dimensions, shard in zip(node.results, factors.results, made, strict=True):
                dimension = placed.dimension.get(result)
                if dimension is not None and dimensions[dimension] == factor:
                    self.made.setdefault((result, dimension), shard)

        return _operands_on_shards(node, factors, factor), apply

    def _own_shard(self, value: Value, dimension: int) -> tuple[list[Form], Make]:
        """Return how to take a replica's own shard of a full value."""

        def cut(operands: Sequence[Operand]) -> None:
            self.made[value, dimension] = self._convert(
                OWN_SLICE, operands[0], value, axis=dimension
            )

        return [(value, None)], cut

    def _term(self, value: Value, node: Node, op: Op, **params: object) -> tuple[list[Form], Make]:
        """Return how to reduce the replicas' terms of a sum over shards."""
        factors, factor = self.placed.terms[value]
        count = self.placed.rules.mesh.group_size

        def reduce(operands: Sequence[Operand]) -> None:
            (term,) = on_shards(node, operands, factor, count, self.builder)
            made = self._convert(op, term, value, reducer=factors.summed[factor], **params)
            self.made[value, cast("int | None", params.get("axis"))] = made

        return _operands_on_shards(node, factors, factor), reduce

    def _kept(self, node: Node) -> tuple[list[Form], Make]:
        """Return how to add a node as it is, with unsharded operands."""
        if node.op is OWN_SLICE:

            def take(operands: Sequence[Operand]) -> None:
                self.made[node.results[0], None] = operands[0]

            return [(node.operands[0], cast(int, node.params["axis"]))], take

        def keep(operands: Sequence[Operand]) -> None:
            graphs = tuple(map(self._nested, node.graphs))
            results = self.builder.keep(node, tuple(operands), graphs)
            for result, made in zip(node.results, results, strict=True):
                self.made.setdefault((result, None), made)

        return [(operand, None) for operand in node.operands], keep

    def _convert(self, op: Op, operand: Operand, of: Value, **params: object) -> Operand:
        """Add a collective, or an own_slice, that makes a form of a value."""
        rules, node = self.placed.rules, self.placed.program.of[of].node
        params |= of_groups(rules.mesh)
        at = UNKNOWN if node is None else node.source
        return self.builder.add(op, (operand,), params, at=at, hint=of.hint)[0]

    def _nested(self, graph: Graph) -> Graph:
        """Return the new version of a nested graph that takes and returns unsharded values."""
        inner = _Scope(self.placed, Builder(NAME))
        inner.made = {(value, None): value for value in graph.inputs}
        inner.run(graph)
        outputs = tuple(map(inner.get, graph.outputs))
        return graph.replace(nodes=tuple(inner.builder.nodes), outputs=outputs)

    def _own_dimension(self, value: Value) -> int | None:
        """Return the dimension along which a value that a loop or a branch returns is sharded.

        It is None if the value is returned unsharded.
        """
        return self.placed.dimension[value] if value in self.placed.derived else None

    def _take(self, node: Node, results: Sequence[Operand]) -> None:
        """Record the results of a loop or a branch, each in the form in which it is returned."""
        for result, made in zip(node.results, results, strict=True):
            self.made[result, self._own_dimension(result)] = made

    def _scan(self, node: Node) -> None:
        if not self._is_needed(node):
            return
        placed, scan = self.placed, Scan(node)
        edit = ScanEdit(scan, NAME)
        inner = _Scope(placed, edit.inside)
        for taken, add, shift in (
            (scan.constants, edit.add_constant, 0),
            (scan.scanned, edit.add_scanned, 1),
        ):
            edit.drop([value for _, value in taken])
            for operand, value in taken:
                for dimension in placed.forms(value):
                    outer = None if dimension is None else dimension + shift
                    inner.made[value, dimension] = add(self.get(operand, outer), value.hint)
        carried: dict[Value, Value] = {}
        for carry in scan.carries:
            own = self._own_dimension(carry.value)
            type_ = carry.value.type if own is None else self.type_of_shard(carry.value)
            new = edit.replace(carry.value, self.get(carry.first, own), type_)
            inner.made[carry.value, own] = carried[carry.value] = new
        inner.run(scan.body)
        for carry in scan.carries:
            following = inner.get(carry.following, self._own_dimension(carry.value))
            edit.follow(carried[carry.value], following)
        for output, result in scan.stacked:
            own = self._own_dimension(result)
            edit.stack(result, inner.get(output, None if own is None else own - 1))
        self._take(node, edit.finish(self.builder))

    def _cond(self, node: Node) -> None:
        if not self._is_needed(node):
            return
        placed = self.placed
        scopes = [_Scope(placed, Builder(NAME)) for _ in node.graphs]
        inputs: list[list[Value]] = [[] for _ in node.graphs]
        operands = [self.get(node.operands[0])]
        of_branches = zip(*(branch.inputs for branch in node.graphs), strict=True)
        for operand, values in zip(node.operands[1:], of_branches, strict=True):
            forms = dict.fromkeys(form for value in values for form in placed.forms(value))
            for dimension in forms:
                operands.append(self.get(operand, dimension))
                for scope, taken, value in zip(scopes, inputs, values, strict=True):
                    new = Value(operands[-1].type, value.hint)
                    if dimension is None:
                        new = value
                    taken.append(new)
                    scope.made[value, dimension] = new
        graphs = []
        for scope, taken, branch in zip(scopes, inputs, node.graphs, strict=True):
            scope.run(branch)
            outputs = tuple(
                scope.get(output, self._own_dimension(result))
                for output, result in zip(branch.outputs, node.results, strict=True)
            )
            nodes = tuple(scope.builder.nodes)
            graphs.append(branch.replace(inputs=tuple(taken), nodes=nodes, outputs=outputs))
        self._take(node, self.builder.keep(node, tuple(operands), tuple(graphs)))

    def _barrier(self, node: Node) -> None:
        passing: list[tuple[Value, int | None, Operand]] = []
        for operand, result in zip(node.operands, node.results, strict=True):
            own = self._own_dimension(result)
            if result not in (self.placed.unsharded if own is None else self.placed.sharded):
                continue
            if own is not None and not self.placed.needs_barrier(result):
                self.made[result, own] = self.get(operand, own)
            else:
                passing.append((result, own, self.get(operand, own)))
        if not passing:
            return
        operands = tuple(operand for _, _, operand in passing)
        if operands == node.operands:
            results = self.builder.keep(node, operands, ())
        else:
            types = [operand.type for operand in operands]
            results = self.builder.add(node.op, operands, node.params, at=node.source, types=types)
        for (result, own, _), made in zip(passing, results, strict=True):
            self.made[result, own] = made


def _operands_on_shards(node: Node, factors: Factors, factor: int) -> list[Form]:
    """Return the forms of the operands of a node that is applied to shards."""
    return [
        (operand, dimensions.index(factor) if factor in dimensions else None)
        for operand, dimensions in zip(node.operands, factors.operands, strict=True)
    ]
