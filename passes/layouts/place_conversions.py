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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TypeAlias, cast

from graphdist.ir.analyses import has_effect, operations
from graphdist.ir.builder import Builder
from graphdist.ir.compare import is_same_program
from graphdist.ir.definitions import BARRIERS, ValueKind, has_shared_graphs
from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Op, Operand, Value
from graphdist.ir.loops import Scan, ScanEdit
from graphdist.ir.operation_table import on_shards
from graphdist.ir.ops import (
    ALL_GATHER,
    ALL_REDUCE,
    AS_SHARD,
    COND,
    OWN_SLICE,
    REDUCE_SCATTER,
    SCAN,
    of_groups,
)
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import own_slice
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.layouts.gather_positions import priced_positions, unsharded_stacks
from graphdist.passes.layouts.placed_values import (
    PlacedValues,
    is_full_reduction,
    operands_on_shards,
)
from graphdist.passes.layouts.sharded_updates import UpdateSharding, choose_sharded_updates

NAME = "place_conversions"
_ROUNDS = 8

Form: TypeAlias = tuple[Operand, int | None]
"""A value, and the dimension along which it is sharded, or None for the full value."""

Taken: TypeAlias = tuple[int, int | None, Operand]
"""The index of an input of nested graphs, its sharded dimension if any, and the operand for it."""

Way: TypeAlias = tuple[Sequence[Form], Callable[[Sequence[Operand]], None]]
"""The forms from which another form is made, and the function that makes it."""


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
            placed, _ = self._placed(graph)
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
        placed, reasons = self._placed(graph)
        updates = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
        return [*(updates if self.sharding.is_on else ()), *unsharded_stacks(placed)]

    def chosen(self, graph: Graph) -> list[str]:
        """Return the positions of gathers, their costs, and the costs of other positions."""
        return priced_positions(self._placed(graph)[0]) if graph.num_replicas > 1 else []

    def _placed(self, graph: Graph) -> tuple[PlacedValues, dict[str, str]]:
        return choose_sharded_updates(graph, self.sharding, self.smallest, self.most_bytes)


def _rebuilt(graph: Graph, placed: PlacedValues) -> Graph:
    scope = _Scope(placed, Builder(NAME))
    scope.made = {(value, None): value for value in graph.inputs}
    variables = {variable.name: variable for variable in graph.variables}
    inputs, new = graph.variable_inputs, graph.variable_outputs
    for name, output in new.items():
        value = inputs[name]
        if output in placed.wanted and value not in placed.unsharded:
            dimension = placed.dimension[output]
            variables[name] = variables[name].stored_along(dimension)
            inputs[name] = Value(variables[name].held(graph.mesh), value.hint)
            del scope.made[value, None]
            scope.made[value, dimension] = inputs[name]
    scope.run(graph)
    outputs = [scope.output(output, variables[name]) for name, output in new.items()]
    outputs += map(scope.get, graph.outputs[len(outputs) :])
    rebuilt = graph.replace(
        inputs=(*inputs.values(), *graph.inputs[len(inputs) :]),
        nodes=tuple(scope.builder.nodes),
        outputs=tuple(outputs),
        variables=tuple(variables.values()),
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
        if type(operand) is not Value or operand not in self.placed.wanted:
            return self.get(operand)
        dimension = self.placed.dimension[operand]
        shard = self.get(operand, dimension)
        if variable.sharded_along is not None:
            return shard
        return self._convert(ALL_GATHER, shard, operand, axis=dimension)

    def _is_there(self, form: Form) -> bool:
        return type(form[0]) is Literal or form in self.made

    def _there(self, form: Form) -> Operand:
        operand, dimension = form
        if type(operand) is not Literal:
            return self.made[form]
        if dimension is None:
            return operand
        shard = own_slice(operand.type, dimension, self.placed.rules.mesh)
        return Literal.of(operand.value, shard)

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

    def _way(self, value: Value, dimension: int | None) -> Way:
        """Return how to make a form of `value`."""
        if dimension is None:
            return self._way_to_unsharded(value)
        is_own = dimension == self.placed.dimension.get(value)
        way = self._way_to_shard(value, dimension) if is_own else None
        # Without a way to compute it, the shard is cut from the full value.
        return way or self._converted(OWN_SLICE, value, dimension, (value, None), axis=dimension)

    def _way_to_unsharded(self, value: Value) -> Way:
        placed, definition = self.placed, self.placed.program.of[value]
        node = definition.node
        assert node is not None
        if value not in placed.gathered:
            if definition.kind is ValueKind.BEHIND_BARRIER:
                return self._taken((value, None), (definition.parents[0], None))
            return self._kept(node)
        if value in placed.terms:
            return self._term(value, None, ALL_REDUCE)
        is_reduced = is_full_reduction(node) and value not in placed.sharded
        if node.op is ALL_GATHER or is_reduced:
            return self._kept(node)
        own = placed.dimension[value]
        return self._converted(ALL_GATHER, value, None, (value, own), axis=own)

    def _way_to_shard(self, value: Value, own: int) -> Way | None:
        """Return how to compute the shard of a value; None if the graph takes the full value."""
        placed, node = self.placed, self.placed.program.of[value].node
        if node is None or not placed.is_computed_on_shards(value):
            return None
        if value in placed.terms:
            return self._term(value, own, REDUCE_SCATTER, axis=own)
        if is_full_reduction(node):
            reducer, summed = node.params["reducer"], (node.operands[0], None)
            return self._converted(REDUCE_SCATTER, value, own, summed, reducer=reducer, axis=own)
        if node.op is ALL_GATHER:
            shard = node.operands[0]
            if shard.type.sharded_along is not None:
                return self._taken((value, own), (shard, None))
            return self._converted(AS_SHARD, value, own, (shard, None), axis=own)
        found = placed.factor(value)
        if found is None:
            return None
        factors, factor = found

        def apply(operands: Sequence[Operand]) -> None:
            made = on_shards(node, operands, factor, placed.rules.mesh.group_size, self.builder)
            for result, dimensions, shard in zip(node.results, factors.results, made, strict=True):
                dimension = placed.dimension.get(result)
                if dimension is not None and dimensions[dimension] == factor:
                    self.made.setdefault((result, dimension), shard)

        return list(operands_on_shards(node, factors, factor)), apply

    def _taken(self, form: Form, needed: Form) -> Way:
        """Return how to make a form that equals the form `needed`."""

        def take(operands: Sequence[Operand]) -> None:
            (self.made[form],) = operands

        return [needed], take

    def _converted(
        self, op: Op, value: Value, dimension: int | None, needed: Form, **params: object
    ) -> Way:
        """Return how to make a form of `value` by a collective, or an own_slice, of `needed`."""

        def convert(operands: Sequence[Operand]) -> None:
            self.made[value, dimension] = self._convert(op, operands[0], value, **params)

        return [needed], convert

    def _term(self, value: Value, dimension: int | None, op: Op, **params: object) -> Way:
        """Return how to reduce the replicas' terms of a sum over shards."""
        (factors, factor), node = self.placed.terms[value], self.placed.program.of[value].node
        assert node is not None
        count = self.placed.rules.mesh.group_size

        def reduce(operands: Sequence[Operand]) -> None:
            (term,) = on_shards(node, operands, factor, count, self.builder)
            made = self._convert(op, term, value, reducer=factors.summed[factor], **params)
            self.made[value, dimension] = made

        return list(operands_on_shards(node, factors, factor)), reduce

    def _kept(self, node: Node) -> Way:
        """Return how to add a node as it is, with unsharded operands."""
        if node.op is OWN_SLICE:
            needed = node.operands[0], OWN_SLICE.of(node).axis
            return self._taken((node.results[0], None), needed)

        def keep(operands: Sequence[Operand]) -> None:
            graphs = tuple(map(self._unsharded, node.graphs))
            results = self.builder.keep(node, tuple(operands), graphs)
            for result, made in zip(node.results, results, strict=True):
                self.made.setdefault((result, None), made)

        return [(operand, None) for operand in node.operands], keep

    def _convert(self, op: Op, operand: Operand, of: Value, **params: object) -> Operand:
        """Add a collective, or an own_slice, that makes a form of a value."""
        node = self.placed.program.of[of].node
        params |= of_groups(self.placed.rules.mesh)
        at = UNKNOWN if node is None else node.source
        return self.builder.add(op, (operand,), params, at=at, hint=of.hint)[0]

    def _unsharded(self, graph: Graph) -> Graph:
        """Return the new version of a nested graph that takes and returns unsharded values."""
        taken = [(index, None, value) for index, value in enumerate(graph.inputs)]
        return self._nested(graph, taken, repeat(None))

    def _nested(self, graph: Graph, taken: Sequence[Taken], along: Iterable[int | None]) -> Graph:
        """Return the new version of a nested graph that takes and returns values in given forms.

        `along` has the sharded dimension of each output, None for an unsharded output.
        """
        inner, inputs = _Scope(self.placed, Builder(NAME)), list[Value]()
        for index, dimension, operand in taken:
            value = graph.inputs[index]
            inputs.append(value if dimension is None else Value(operand.type, value.hint))
            inner.made[value, dimension] = inputs[-1]
        inner.run(graph)
        outputs = tuple(map(inner.get, graph.outputs, along))
        nodes = tuple(inner.builder.nodes)
        return graph.replace(inputs=tuple(inputs), nodes=nodes, outputs=outputs)

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
            own, type_ = placed.derived_along(carry.value), carry.value.type
            if own is not None:
                type_ = own_slice(type_, own, placed.rules.mesh)
            new = edit.replace(carry.value, self.get(carry.first, own), type_)
            inner.made[carry.value, own] = carried[carry.value] = new
        inner.run(scan.body)
        for carry in scan.carries:
            following = inner.get(carry.following, placed.derived_along(carry.value))
            edit.follow(carried[carry.value], following)
        for output, result in scan.stacked:
            own = placed.derived_along(result)
            edit.stack(result, inner.get(output, None if own is None else own - 1))
        self._take(node, edit.finish(self.builder))

    def _cond(self, node: Node) -> None:
        if not self._is_needed(node):
            return
        choice, taken = self.get(node.operands[0]), list[Taken]()
        of_branches = zip(*(branch.inputs for branch in node.graphs), strict=True)
        for index, values in enumerate(of_branches):
            forms = dict.fromkeys(form for value in values for form in self.placed.forms(value))
            operand = node.operands[index + 1]
            taken += [(index, dimension, self.get(operand, dimension)) for dimension in forms]
        along = [self.placed.derived_along(result) for result in node.results]
        graphs = tuple(self._nested(branch, taken, along) for branch in node.graphs)
        operands = (choice, *(operand for *_, operand in taken))
        self._take(node, self.builder.keep(node, operands, graphs))

    def _take(self, node: Node, results: Sequence[Operand]) -> None:
        """Record the results of a loop or a branch, each in the form in which it is returned."""
        for result, made in zip(node.results, results, strict=True):
            self.made[result, self.placed.derived_along(result)] = made

    def _barrier(self, node: Node) -> None:
        passing: list[tuple[Form, Operand]] = []
        for operand, result in zip(node.operands, node.results, strict=True):
            own = self.placed.derived_along(result)
            if result not in (self.placed.unsharded if own is None else self.placed.sharded):
                continue
            taken = self.get(operand, own)
            if own is not None and not self.placed.needs_barrier(result):
                self.made[result, own] = taken
            else:
                passing.append(((result, own), taken))
        operands = tuple(operand for _, operand in passing)
        if operands == node.operands:
            results = self.builder.keep(node, operands, ())
        elif operands:
            types = [operand.type for operand in operands]
            results = self.builder.add(node.op, operands, node.params, at=node.source, types=types)
        else:
            return
        self.made.update(zip((form for form, _ in passing), results, strict=True))
