"""Keep values partial through linear operations, and reduce them where the fewest bytes are sent.

A reduction over the replicas by sum or mean is linear. So an operation that is linear in the
reduction's result can be applied to each replica's term instead, and the reduction can follow
later. In between, the value is *partial*. The sum of two reductions becomes one reduction.
Gradients that a loop adds up are reduced once after the loop, instead of once per iteration. XLA
does this on GPU and TPU for additions alone, and not on CPU. A division by the number of
microbatches, or a conversion, keeps XLA from doing it.

How it works. The table of operations says in which operands an operation is linear. A value that is
computed from a reduction may be partial if all operations between are linear, through carries and
stacks of loops. All other operations take reduced values. Among the values between the reductions
and these operands, the ones with the fewest bytes are reduced (`graphdist.ir.minimum_cut`); a value
in a loop counts once per iteration. A mirrored value that is combined with a partial one becomes
partial, too, by `to_partial`.

Before:  %c = scan(%zero, %xs) { %g = all_reduce(%x)  %h = jax.mul(%g, 0.25)  %new = %c_in + %h }
After:   %p = scan(to_partial(%zero), %xs) { %h = jax.mul(to_partial(%x), 0.25)  %new = %p_in + %h }
         %c = all_reduce(%p)

The order of additions changes, and with it the last bits of results. Sums are kept in the dtype of
the carry: with gradients in bfloat16 and a carry in float32 they are better than before. Near the
largest number of a dtype they may overflow, since the mean is taken last. Left alone: values in
float16, whose range is small, narrowing conversions, and `while` loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from math import inf

from graphdist.ir.analyses import operations, walk
from graphdist.ir.definitions import Definition, ValueKind, definitions, has_shared_graphs
from graphdist.ir.flow import Vertex, choice_of, computed_of, reachable
from graphdist.ir.graph import Graph, Node, Operand, Value, is_zero
from graphdist.ir.loops import Carry, Scan, ScanEdit
from graphdist.ir.minimum_cut import connected_values, minimum_cut
from graphdist.ir.op_parameters import Reducing
from graphdist.ir.operation_table import linear_operands
from graphdist.ir.ops import ALL_REDUCE, COND, SCAN, TO_PARTIAL, WHILE
from graphdist.ir.rewrite import Copier
from graphdist.ir.source import UNKNOWN, joined_source
from graphdist.ir.types import MIRRORED, partial
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.layouts.placed_values import is_cheap, is_full_reduction, takes_mirrored

NAME = "delay_reductions"

_WIDER = {
    **dict.fromkeys(("f16", "bf16"), ("f32", "f64", "c64", "c128")),
    "f32": ("f64", "c64", "c128"),
    **dict.fromkeys(("f64", "c64"), ("c128",)),
}
_LOOPS_AND_BRANCHES = (SCAN, WHILE, COND)
_DTYPES = frozenset(
    ["bf16", "f32", "f64", "c64", "c128", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
)
_SMALL = 2**16
"""The bytes that are sent in about the time that a collective takes to start."""
_FASTER = "a sum in the loop, divided behind it, or gd.accumulate is reduced once"


@dataclass(frozen=True, slots=True)
class DelayReductions:
    """The pass, which has no options."""

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with its reductions where they send the fewest bytes."""
        for params in _kinds(graph):
            values = _PartialValues(graph, params)
            if not values.is_settled:
                graph = eliminate_dead_code(_Delayed(values).graph(graph))
        return graph

    def declined(self, graph: Graph) -> list[str]:
        """Return the reductions in loops that are added to carries, and why they stay there."""
        return [why for params in _kinds(graph) for why in _PartialValues(graph, params).declined()]


def _kinds(graph: Graph) -> list[Reducing]:
    """Return the kinds of reductions in a graph, one per reducer."""
    if ALL_REDUCE.name not in operations(graph) or has_shared_graphs(graph):
        return []
    found = (ALL_REDUCE.of(node) for node in walk(graph) if is_full_reduction(node))
    return list({params.reducer: params for params in found}.values())


class _PartialValues:
    """The values that may be partial for one kind of reduction.

    `made_of` maps such a value to those of its operands that may be partial, too. A *source*, which
    is the result of a reduction of the program, has no such operands. `wanted` maps each value that
    a node takes reduced to that node.

    A carry of a loop has one more value, which stands for both the body's input and the loop's
    result. This value is never reduced: the input and the result are reduced instead.
    """

    def __init__(self, graph: Graph, params: Reducing) -> None:
        self.graph, self.params, self.program = graph, params, definitions(graph)
        self.reductions = {
            value: definition.node
            for value, definition in self.program.of.items()
            if is_full_reduction(definition.node)
            if ALL_REDUCE.of(definition.node).reducer == params.reducer
        }
        """The reductions of this kind, by their results."""
        self.indices: dict[Node, tuple[int, ...]] = {}
        """The indices of the operands of a node that may be partial together."""
        loops = (Scan(node) for node in walk(graph) if node.op is SCAN)
        # A training step in a loop gives the same bits as a step alone.
        self.loops = {
            scan.node: scan for scan in loops if scan.length > 1 and not scan.params.steps
        }
        """The loops whose carries may be partial."""
        self.carried = {
            carry.value: Value(carry.value.type, carry.value.hint)
            for scan in self.loops.values()
            for carry in scan.carries
            if carry.value.type.layout is MIRRORED and carry.value.type.dtype in _DTYPES
        }
        carries = set(self.carried)
        while True:
            self.made_of = self._derived(carries)
            fit = {v for v in carries if {v, self.program.of[v].parents[1]} <= self.made_of.keys()}
            if fit == carries:
                break
            carries = fit
        self.wanted = self._wanted()

    @cached_property
    def cut(self) -> set[Value]:
        """Return the values to reduce: the minimum cut in bytes that is nearest to the sources."""
        cut: set[Value] = set()
        users = _users(self.made_of)
        for values in connected_values(self.made_of):
            users_of = {value: users.get(value, []) for value in values}
            sources = [value for value in values if not self.made_of[value]]
            costs = {value: self._cost(value) for value in values}
            cut |= minimum_cut(sources, users_of, costs, ends=self.wanted.keys())
        return cut

    @property
    def is_settled(self) -> bool:
        """Return whether the program already reduces exactly the values of the cut."""
        return not any(self.made_of[value] for value in self.cut)

    def sources(self, value: Value) -> list[Node]:
        """Return the reductions of the program from which a value is computed."""
        found = self.reductions.keys() & reachable(self.made_of, [value])
        return sorted((self.reductions[each] for each in found), key=self._positions.__getitem__)

    @cached_property
    def _positions(self) -> Mapping[Node, int]:
        return {node: position for position, node in enumerate(walk(self.graph))}

    def _derived(self, carries: AbstractSet[Value]) -> dict[Value, tuple[Value, ...]]:
        """Return `made_of` for the case that these carries may be partial."""
        made_of: dict[Value, tuple[Value, ...]] = {}
        for value, definition in self.program.of.items():
            if definition.kind is ValueKind.COMPUTED:
                if any(type(each) is Value and each in made_of for each in definition.parents):
                    if operands := self._linear_in(value, definition, made_of):
                        made_of[value] = operands
                elif value in self.reductions:
                    made_of[value] = ()
            elif value in carries:
                made_of[self.carried[value]] = tuple(_values(definition.parents))
                made_of[value] = (self.carried[value],)
            elif definition.node in self.loops and (parents := _values(definition.parents)):
                if definition.kind is ValueKind.LAST and parents[0] in carries:
                    made_of[value] = (self.carried[parents[0]],)
                elif definition.kind is ValueKind.STACK and parents[0] in made_of:
                    made_of[value] = tuple(parents)
        kept = reachable(_users(made_of), self.reductions.keys() & made_of.keys())
        return {
            value: tuple(each for each in operands if each in kept and each in made_of)
            for value, operands in made_of.items()
            if value in kept
        }

    def _linear_in(
        self, value: Value, definition: Definition, made_of: Mapping[Value, object]
    ) -> tuple[Value, ...]:
        """Return the partial operands of the node of `value`, if the node is linear in them."""
        node = definition.node
        assert node is not None
        dtype = value.type.dtype
        if not is_cheap(node) or len(node.results) > 1 or not takes_mirrored(node):
            return ()
        for together in linear_operands(node) if dtype in _DTYPES else ():
            dtypes = {node.operands[i].type.dtype for i in together}
            found = [node.operands[i] for i in together if node.operands[i] in made_of]
            if found and all(each == dtype or dtype in _WIDER.get(each, ()) for each in dtypes):
                self.indices[node] = together
                return tuple(_values(found))
        return ()

    def _wanted(self) -> dict[Value, Node | None]:
        """Map each value that a node takes reduced to this node, and reduced outputs to None."""
        wanted: dict[Value, Node | None] = {}
        for node in walk(self.graph):
            operands = [each for each in node.operands if type(each) is Value]
            if self.made_of.keys().isdisjoint(operands):
                continue
            taken = list(node.operands) if node.op not in _LOOPS_AND_BRANCHES else []
            taken += [choice] if (choice := choice_of(node)) is not None else []
            if any(self.made_of.get(result) for result in node.results):
                partial_ones = self.indices.get(node, range(len(taken)))
                taken = [each for i, each in enumerate(taken) if i not in partial_ones]
            wanted.update((each, node) for each in taken if each in self.made_of)
        for parent in self.made_of:
            for value in self.program.children.get(parent, ()):
                if value not in self.made_of:
                    wanted[parent] = self.program.of[value].node
        wanted.update((each, None) for each in self.graph.outputs if each in self.made_of)
        return wanted

    def _cost(self, value: Value) -> float:
        """Return the approximate bytes that are sent to reduce a value."""
        definition = self.program.of.get(value)
        if definition is None:
            return inf  # a carry, which is never reduced itself
        if definition.kind is ValueKind.STACK:  # costs more than in the loop, which holds less
            (slice_out,) = definition.parents
            return self._cost(slice_out) + 1 if type(slice_out) is Value else _SMALL
        return (value.type.bytes + _SMALL) * definition.times

    def declined(self) -> Iterator[str]:
        """Yield the reductions in loops that are added to carries, and why they stay there."""
        reduced = self.cut & self.reductions.keys()
        for scan in self.loops.values():
            for carry in scan.carries:
                behind = _behind([carry.following], scan.body)
                for node in scan.body.nodes:
                    if not reduced.isdisjoint(behind.intersection(node.results)):
                        yield self._why(node, carry, scan)

    def _why(self, reduction: Node, carry: Carry, scan: Scan) -> str:
        (result,), value = reduction.results, carry.value
        made_of_it = reachable(_users(self.made_of), [result])
        takers = [self.wanted[each] for each in made_of_it if each in self.wanted]
        inside = [node for node in scan.body.nodes if node in takers]
        if inside:
            why = f"{inside[0].op.name} at {inside[0].source} takes the reduced value"
        elif value in self.made_of:
            most = max(result.type.bytes * scan.length, _SMALL)
            why = f"its {value.type.bytes:,} bytes are more than the {most:,} that the loop reduces"
        else:
            why = f"it is of dtype {value.type.dtype}"
        # A gradient of the carry, as in training steps, has to be reduced in each iteration.
        is_of_carry = value in _behind(reduction.operands, scan.body)
        advice = "" if is_of_carry else f"; {_FASTER}"
        return f"{reduction.op.name} at {reduction.source} into a carry of a loop: {why}{advice}"


def _users(made_of: Mapping[Value, Iterable[Value]]) -> Mapping[Value, list[Value]]:
    users: dict[Value, list[Value]] = {}
    for value, operands in made_of.items():
        for operand in operands:
            users.setdefault(operand, []).append(value)
    return users


def _values(operands: Iterable[Operand]) -> list[Value]:
    return [operand for operand in operands if type(operand) is Value]


def _behind(operands: Iterable[Operand], body: Graph) -> set[Vertex]:
    """Return `operands`, and the values of a loop's body from which these are computed."""
    starts: list[Vertex] = [*_values(operands)]
    return reachable(computed_of(body), starts)


class _Delayed:
    """Builds the program with partial values, and reductions at the cut.

    `reduced` are the values that are computed from reduced values, `partial` the values that are
    computed from partial ones.
    """

    def __init__(self, values: _PartialValues) -> None:
        self.values = values
        self.mirrored: dict[Operand, Operand] = {}
        self.terms: dict[Value, Operand] = {}
        cut, made_of = values.cut, values.made_of
        uncut = {value: [each for each in made_of[value] if each not in cut] for value in made_of}
        self.reduced = reachable(uncut, [value for value in values.wanted if value not in cut])
        of_terms = {
            value: [each for each in operands if each not in self.reduced and made_of[each]]
            for value, operands in made_of.items()
        }
        self.partial = reachable(of_terms, [value for value in cut if made_of[value]])

    def graph(self, graph: Graph) -> Graph:
        """Return a graph, nested or not, with the reductions at the cut."""
        copier = Copier(NAME)
        copier.environment = self.mirrored
        self._add_nodes(graph, copier)
        return graph.replace(nodes=tuple(copier.nodes), outputs=copier.now(graph.outputs))

    def _add_nodes(self, graph: Graph, copier: Copier) -> None:
        for node in graph.nodes:
            if node.op is SCAN:
                self._add_loop(node, copier)
            elif self.partial.isdisjoint(node.results):
                copier.copy(node, tuple(map(self.graph, node.graphs)))
            else:
                self._add_on_terms(node, copier)

    def _add_on_terms(self, node: Node, copier: Copier) -> None:
        indices, (result,) = self.values.indices[node], node.results
        operands = [
            self._term(each, copier) if i in indices and not is_zero(each) else each
            for i, each in enumerate(node.operands)
        ]
        self._set_term(result, copier.again(node, copier.now(operands))[0], copier)

    def _add_loop(self, node: Node, copier: Copier) -> None:
        scan = Scan(node, copier.now(node.operands))
        edit, partial_type = ScanEdit(scan, NAME), partial(self.values.params.reducer)
        edit.inside.environment = self.mirrored
        carried: dict[Carry, Value] = {}
        for carry in Scan(node).carries:
            if self.values.carried.get(carry.value) in self.partial:
                first, type = self._term(carry.first, copier), carry.value.type
                carried[carry] = edit.replace(carry.value, first, type.with_layout(partial_type))
                self._set_term(carry.value, carried[carry], edit.inside)
        self._add_nodes(scan.body, edit.inside)
        for carry, term in carried.items():
            edit.follow(term, self._term(carry.following, edit.inside))
        for output, result in scan.stacked:
            if result in self.partial:
                edit.stack(result, self._term(output, edit.inside))
        is_partial = {carry.last for carry in carried} | self.partial
        for result, made in zip(node.results, edit.finish(copier), strict=True):
            if result in is_partial:
                self._set_term(result, made, copier)
            else:
                self.mirrored[result] = made

    def _term(self, operand: Operand, copier: Copier) -> Operand:
        """Return each replica's term of a value."""
        reduction = None
        if type(operand) is Value:
            if operand in self.terms:
                return self.terms[operand]
            reduction = self.values.reductions.get(operand)
        of = copier.now(reduction.operands if reduction else (operand,))
        at = reduction.source if reduction else UNKNOWN
        (term,) = copier.add(TO_PARTIAL, of, self.values.params, at=at)
        if type(operand) is Value:
            self.terms[operand] = term
        return term

    def _set_term(self, value: Value, term: Operand, copier: Copier) -> None:
        """Record each replica's term of a value, and reduce the term if the value is in the cut."""
        self.terms[value] = term
        if value in self.values.cut:
            at = joined_source(tuple(node.source for node in self.values.sources(value)))
            params, hint = self.values.params, value.hint
            (self.mirrored[value],) = copier.add(ALL_REDUCE, (term,), params, at=at, hint=hint)
