"""Which values a program has in shards, which it has in full, and where one is made of the other.

A conversion of the layout is written where the program says it: a variable that is stored in shards
is gathered where it is read, a gradient is all_reduced, the new value of a variable is sharded
where it is stored. This analysis finds where the conversions are best made; `place_conversions.py`
makes them there.

1. *Ask.* A value is *derived* if it can be computed on shards, beginning with those that are there:
   stored variables, and what is reduced over the replicas, which a reduce_scatter leaves in shards.
   The table of operations says how far (`graphdist.ir.operation_table`). Slices of stacks, branches
   and carries of loops hand it on. A sum over the dimension of the shards is a *term* of each
   replica: an all_reduce of the sums makes it whole.
2. *Position.* From the outputs backwards each value is asked for in shards or in full. Whatever is
   not derived and takes a derived value asks for it in full. Of all values on the way from the
   shards to those asked for in full the ones of fewest bytes are gathered, a minimum cut, and what
   is behind them is computed of the gathered ones. A gather in a loop counts once an iteration. Yet
   the operands of loops are gathered inside, a slice at a time, where that holds less in memory.
3. *Apply.* See `place_conversions.py`.

The idea of layouts that spread over factors is GSPMD's (Xu et al. 2021), of conversions at a
minimum cut that of register and communication placement in general; the shards of updates are those
of Xu et al. 2020, "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import cast

from graphdist.ir.analyses import has_effect, walk
from graphdist.ir.definitions import BARRIERS, Definition, Definitions, Kind, definitions
from graphdist.ir.factors import Factors
from graphdist.ir.flow import choice_of
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan
from graphdist.ir.minimum_cut import minimum_cut
from graphdist.ir.operation_table import divides, factors_of, row_of
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, OWN_SLICE, SCAN, WHILE, num_copies_of
from graphdist.ir.types import MIRRORED, numpy_dtype
from graphdist.passes.shard_dimensions import shard_dimensions

__all__ = ["Placement", "Rules", "is_reduced", "placement_of"]

_PASSED_IN = frozenset({Kind.CONSTANT, Kind.SLICE, Kind.BRANCH_INPUT})
"""What a nested graph may take in both forms."""


_STORED_IN_FULL = 8
"""How much less it counts to store a variable in full, gathered at the end of each step, than to
gather it: converted to any dtype it is stored in full, reduced to a number it is not."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides about positions.

    There are `count` shards of a value, and `num_copies` groups of replicas that have all of them.
    What an iteration takes of a scanned operand is gathered in the loop from `smallest` bytes on.
    `most_bytes` of what all iterations take may be gathered in front of a loop. Sums are not taken
    of shards unless `reorders`, since their order of additions shows.
    """

    count: int
    num_copies: int = 1
    smallest: int = 0
    most_bytes: int = 0
    reorders: bool = True


@dataclass
class Placement:
    """The forms in which a program has its values.

    `dimension` says along which a value is sharded, if it is. A value in `shards` is made in
    shards, one in `full` in full; one in `gathered` is made in full of its shards. `terms` are the
    sums over shards, with their factors and the one that is summed. The outputs that are `wanted`
    are asked for in shards; inputs `in_shards` come so unless something needs them in full.
    `because` has what asks for a derived value in full.
    """

    graph: Graph
    program: Definitions
    rules: Rules
    dimension: Mapping[Value, int]
    derived: dict[Value, None] = field(default_factory=dict)
    terms: dict[Value, tuple[Factors, int]] = field(default_factory=dict)
    wanted: AbstractSet[Value] = frozenset()
    in_shards: AbstractSet[Value] = frozenset()
    full: set[Value] = field(default_factory=set)
    shards: set[Value] = field(default_factory=set)
    gathered: AbstractSet[Value] = frozenset()
    because: dict[Value, Node | str] = field(default_factory=dict)
    _factors: dict[Node, Factors | None] = field(default_factory=dict)

    def is_derived(self, operand: Operand) -> bool:
        """Return whether shards of a value are computed of shards."""
        return type(operand) is Value and operand in self.derived

    def needs_barrier(self, value: Value) -> bool:
        """Return whether the shards behind a barrier have to pass it.

        They need not if nothing in front of the barrier is gathered of what they are made of: there
        is nothing then with which their gather could be merged, and it may start early.
        """
        (operand,) = self.program.of[value].parents
        made_of = self._spread([operand], self._parents_on_shards)
        found = self._spread(made_of, self._results_on_shards)
        return not self.gathered.isdisjoint(found)

    def _spread(
        self, starts: Iterable[Operand], following: Callable[[Value], Iterable[Operand]]
    ) -> set[Operand]:
        pending = list(starts)
        found = set(pending)
        while pending:
            value = pending.pop()
            for other in following(value) if type(value) is Value else ():
                if other not in found and self.is_derived(other):
                    found.add(other)
                    pending.append(other)
        return found

    def _parents_on_shards(self, value: Value) -> Iterable[Operand]:
        definition = self.program.of[value]
        return definition.parents if definition.kind is Kind.COMPUTED else ()

    def _results_on_shards(self, value: Value) -> Iterable[Operand]:
        return (result for node in self.program.nodes.get(value, ()) for result in node.results)

    def is_scattered(self, value: Value) -> bool:
        """Return whether a reduce_scatter leaves the shards of a sum over shards.

        It would add up what all groups of replicas have, each of them the whole sum.
        """
        factors, factor = self.terms[value]
        is_sum = factors.summed[factor] == "sum"
        return is_sum and self.rules.num_copies == 1 and value not in self.full

    def derived_along(self, operand: Operand) -> int | None:
        """Return along which dimension a derived value is sharded; a number is along none."""
        if type(operand) is not Value or operand not in self.derived:
            return None
        return self.dimension.get(operand)

    def forms(self, value: Value) -> Iterator[int | None]:
        """Yield the forms in which an input of a nested graph is handed in."""
        if value in self.full and value not in self.gathered:
            yield None
        if value in self.shards:
            yield self.dimension[value]

    def factor(self, value: Value) -> tuple[Factors, int] | None:
        """Return the factors of the node that computes a value, and the one of its shards."""
        definition = self.program.of[value]
        node, dimension = definition.node, self.dimension.get(value)
        if definition.kind is not Kind.COMPUTED or node is None or dimension is None:
            return None
        factors = self.factors_of(node)
        if factors is None:
            return None
        factor = factors.results[node.results.index(value)][dimension]
        if factor is None or not divides(node, factors, factor, self.rules.count):
            return None
        return factors, factor

    def factors_of(self, node: Node) -> Factors | None:
        """Return the factors of a node of values that all replicas share; else None."""
        if node not in self._factors:
            self._factors[node] = factors_of(node) if _is_mirrored(node) else None
        return self._factors[node]

    def is_computed_on_shards(self, value: Value) -> bool:
        """Return whether shards of a value are computed of shards, not cut from the full value."""
        if value in self.derived:
            return value not in self.terms or self.is_scattered(value)
        definition = self.program.of[value]
        if definition.kind is not Kind.COMPUTED:
            return definition.kind in _PASSED_IN and value in self.dimension
        is_there = value in self.full  # of which each replica takes its own shard
        return not is_there and self.factor(value) is not None and _is_cheap(definition.node)


def is_stored(node: Node, result: Value, placed: Placement) -> bool:
    """Return whether a node gathers shards that are there."""
    rules = placed.rules
    return (
        node.op is ALL_GATHER
        and placed.dimension.get(result) == node.params["axis"]
        and (node.params["group_size"], num_copies_of(node.params))
        == (rules.count, rules.num_copies)
    )


def is_reduced(node: Node | None) -> bool:
    """Return whether a node reduces over all replicas as a reduce_scatter does."""
    return (
        node is not None
        and node.op is ALL_REDUCE
        and num_copies_of(node.params) == 1
        and node.params["reducer"] in ("sum", "mean")
        and node.operands[0].type.distribution is not MIRRORED
    )


def placement_of(
    graph: Graph,
    stages: Iterable[Iterable[tuple[Value, int]]],
    rules: Rules,
    wanted: AbstractSet[Value] = frozenset(),
    in_shards: AbstractSet[Value] = frozenset(),
    without: AbstractSet[Value] = frozenset(),
) -> Placement:
    """Return the forms of a program's values.

    The reduced values `without` are needed in full, whatever takes them.
    """
    program = definitions(graph)
    dimension = shard_dimensions(program, stages, rules.count)
    placed = Placement(graph, program, rules, dimension, wanted=wanted, in_shards=in_shards)
    _derive(placed, without)
    let_in: set[Value] = set()
    roots: set[Value] = set()
    while True:
        _position(placed, let_in, roots)
        more = _let_in(placed) - let_in
        if not more:
            return placed
        let_in |= more


def _derive(placed: Placement, without: AbstractSet[Value]) -> None:
    """Find what can be computed on shards: in order, until the carries of loops change nothing."""
    count = -1
    while count != len(placed.derived):
        count = len(placed.derived)
        for value, definition in placed.program.of.items():
            if value in placed.derived or value in without:
                continue
            if _is_derived(value, definition, placed):
                placed.derived[value] = None


def _is_derived(value: Value, definition: Definition, placed: Placement) -> bool:
    if definition.kind is Kind.COMPUTED:
        assert definition.node is not None
        return _is_computed(value, definition.node, placed)
    dimension = placed.dimension.get(value)
    if dimension is None:
        return False
    if definition.kind is Kind.INPUT:
        return value in placed.in_shards
    if not _is_taken_by_all(definition):
        return False
    return any(
        placed.is_derived(parent) and placed.dimension[parent] + definition.shift == dimension  # type: ignore[index]
        for parent in definition.parents
    )


def _is_computed(value: Value, node: Node, placed: Placement) -> bool:
    """Return whether a node can be applied to shards; note a result that is a sum over them."""
    if value in placed.dimension and (is_stored(node, value, placed) or is_reduced(node)):
        return True
    along = [placed.derived_along(operand) for operand in node.operands]
    if all(dimension is None for dimension in along):
        return False
    factors = placed.factors_of(node)
    if factors is None:
        return False
    held = {
        dimensions[dimension]
        for dimensions, dimension in zip(factors.operands, along, strict=True)
        if dimension is not None
    }
    found = placed.factor(value)
    if found is not None and found[1] in held:
        return True
    if len(held) != 1 or len(node.results) > 1:
        return False
    (factor,) = held
    if factor is None or factor not in factors.summed:
        return False
    if not divides(node, factors, factor, placed.rules.count):
        return False
    if factors.summed[factor] == "sum" and not _may_be_added_up(value, placed):
        return False
    placed.terms[value] = factors, factor
    return True


def _may_be_added_up(value: Value, placed: Placement) -> bool:
    """Return whether a sum may be the sum of what shards give, each rounded to its dtype."""
    dtype = numpy_dtype(value.type.dtype)
    is_narrow_float = dtype.kind not in "biu" and dtype.itemsize < 4
    return placed.rules.reorders and not is_narrow_float


def _is_mirrored(node: Node) -> bool:
    values = (*node.operands, *node.results)
    return all(value.type.distribution is MIRRORED for value in values)


def _is_cheap(node: Node | None) -> bool:
    row = None if node is None else row_of(node)
    return row is not None and row.is_cheap


def _is_taken_by_all(definition: Definition) -> bool:
    """Return whether all replicas run what a value passes: it may come to hold a collective."""
    node = definition.node
    if node is None or node.op is WHILE:
        return False
    choice = choice_of(node)
    return choice is None or choice.type.distribution is MIRRORED


def _position(placed: Placement, let_in: AbstractSet[Value], roots: set[Value]) -> None:
    """Find what is needed in which form, and what is gathered, until they agree.

    What is asked for in full, the `roots`, depends on what is gathered.
    """
    while True:
        region = _region(roots, placed, let_in)
        gathered = _cut(region, roots, placed)
        _Asking(placed, gathered, region).run()
        asked = {value for value in placed.full if value in placed.derived and value not in region}
        roots &= placed.full  # others were asked for before more was let in
        if not asked:
            return
        roots |= asked


def _region(
    roots: AbstractSet[Value], placed: Placement, let_in: AbstractSet[Value]
) -> dict[Value, tuple[Value, ...]]:
    """Return the derived values of which the roots may be computed in full, and of which each is.

    One without such operands has to be gathered.
    """
    region: dict[Value, tuple[Value, ...]] = {}
    pending = list(roots)
    while pending:
        value = pending.pop()
        if value not in region:
            region[value] = tuple(_full_of(value, placed, let_in))
            pending += region[value]
    return region


def _full_of(value: Value, placed: Placement, let_in: AbstractSet[Value]) -> Iterator[Value]:
    """Yield the derived values of which a value is computed, if it is computed in full."""
    definition = placed.program.of[value]
    node = definition.node
    if definition.kind is Kind.COMPUTED:
        assert node is not None
        if not is_reduced(node):
            for operand in dict.fromkeys(node.operands):
                if type(operand) is Value and operand in placed.derived:
                    yield operand
    elif _is_let_in(value, definition, placed, let_in):
        for operand in definition.parents:
            if type(operand) is Value and operand in placed.derived:
                yield operand


def _is_let_in(
    value: Value, definition: Definition, placed: Placement, let_in: AbstractSet[Value]
) -> bool:
    """Return whether an input of a nested graph may be gathered outside."""
    if definition.kind is Kind.SLICE and (
        value.type.bytes < placed.rules.smallest or definition.times == 1
    ):
        return True
    return value in let_in or definition.kind is Kind.BRANCH_INPUT


def _cut(
    region: Mapping[Value, tuple[Value, ...]], roots: AbstractSet[Value], placed: Placement
) -> set[Value]:
    """Return the values of the fewest bytes to gather, so that all roots are there in full."""
    gathered: set[Value] = set()
    for values in _components(region):
        if len(values) == 1:
            gathered |= values
            continue
        costs = {value: _bytes_sent(value, placed) for value in values}
        made_of = {value: region[value] for value in values}
        found = minimum_cut(values & roots, made_of, costs)
        gathered |= {_before_moves(value, region, placed) for value in found}
    return gathered


def _bytes_sent(value: Value, placed: Placement) -> int:
    """Return about how many bytes each replica sends to make a value full."""
    definition = placed.program.of[value]
    is_sum = value in placed.terms or (
        definition.kind is Kind.COMPUTED
        and definition.node is not None
        and is_reduced(definition.node)
    )
    once = value.type.bytes * (2 if is_sum and value not in placed.shards else 1)
    return max(1, once * definition.times)


def _before_moves(
    value: Value, region: Mapping[Value, tuple[Value, ...]], placed: Placement
) -> Value:
    """Return what a value only has the elements of in other places: that is gathered as well."""
    while len(region[value]) == 1:
        definition, (operand,) = placed.program.of[value], region[value]
        row = None if definition.node is None else row_of(definition.node)
        is_move = definition.kind is Kind.COMPUTED and row is not None and row.only_moves
        if not (is_move or definition.kind is Kind.BEHIND_BARRIER):
            break
        if operand.type.bytes != value.type.bytes:
            break
        value = operand
    return value


def _components(region: Mapping[Value, tuple[Value, ...]]) -> Iterator[set[Value]]:
    """Yield the values that have to do with each other."""
    beside: dict[Value, list[Value]] = {value: list(made_of) for value, made_of in region.items()}
    for value, made_of in region.items():
        for operand in made_of:
            beside[operand].append(value)
    seen: set[Value] = set()
    for value in region:
        if value in seen:
            continue
        found, pending = {value}, [value]
        while pending:
            for other in beside[pending.pop()]:
                if other not in found:
                    found.add(other)
                    pending.append(other)
        seen |= found
        yield found


def _is_without_barrier(value: Value, placed: Placement) -> bool:
    is_behind = placed.program.of[value].kind is Kind.BEHIND_BARRIER
    return is_behind and not placed.needs_barrier(value)


def _is_there_in_full(operand: Operand, placed: Placement) -> bool:
    """Return whether a derived value is full anyway, or made at little cost of what is."""
    while type(operand) is Value and operand not in placed.full:
        definition = placed.program.of[operand]
        made_of = [parent for parent in definition.parents if placed.is_derived(parent)]
        is_computed = definition.kind is Kind.COMPUTED and _is_cheap(definition.node)
        if not is_computed or len(made_of) != 1:
            return False
        (operand,) = made_of
    return True


def _let_in(placed: Placement) -> set[Value]:
    """Return what loops take, and barriers pass, that is gathered in front of them.

    What is gathered there anyway is, and of the constants of a loop those that it says, or the
    smallest.
    """
    found = {value for value in placed.gathered if _is_without_barrier(value, placed)}
    for node in walk(placed.graph):
        if node.op is not SCAN:
            continue
        scan = Scan(node)
        for operand, value in (*scan.constants, *scan.scanned):
            if value in placed.gathered and _is_there_in_full(operand, placed):
                found.add(value)
        values = [value for _, value in scan.constants if value in placed.gathered]
        told = node.params.get("gather")
        if told is not None:
            found.update(values if told == "once" else ())
            continue
        held = 0
        for value in sorted(values, key=lambda value: value.type.bytes):
            held += value.type.bytes
            if held > placed.rules.most_bytes:
                break
            found.add(value)
    return found


class _Asking:
    """Goes from the outputs backwards, and asks for values in full or in shards."""

    def __init__(
        self,
        placed: Placement,
        gathered: AbstractSet[Value],
        region: Mapping[Value, tuple[Value, ...]],
    ) -> None:
        self.placed, self.region = placed, region
        placed.full, placed.shards, placed.gathered = set(), set(), gathered
        placed.because = {}
        self.pending: list[tuple[Value, bool]] = []
        self.nodes: set[Node] = set()

    def run(self) -> None:
        """Fill in the forms of all values."""
        graph = self.placed.graph
        for output in graph.outputs[: len(graph.assigned)]:
            if type(output) is Value and output in self.placed.wanted:
                self._ask_for_shards(output, self.placed.dimension[output])
            else:
                self._ask_for_full(output, "it is stored unsharded")
        for output in graph.outputs[len(graph.assigned) :]:
            self._ask_for_full(output, "the function returns it")
        self._ask_for_effects(self.placed.graph)
        while self.pending:
            value, is_full = self.pending.pop()
            (self._full if is_full else self._shards)(value)

    def _ask_for_effects(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.op.has_effect:
                self._ask_all(node.operands, node)
            elif has_effect(node):
                self._pass(node)
                for nested in node.graphs:
                    self._ask_for_effects(nested)

    def _ask_all(self, operands: Iterable[Operand], because: Node | str) -> None:
        for operand in operands:
            self._ask_for_full(operand, because)

    def _ask_for_full(self, operand: Operand, because: Node | str) -> None:
        if type(operand) is Value and operand not in self.placed.full:
            self.placed.full.add(operand)
            self.pending.append((operand, True))
            if operand in self.placed.derived:
                self.placed.because[operand] = because

    def _ask_for_shards(self, operand: Operand, dimension: int, because: Node | str = "") -> None:
        """Ask for the shards along a dimension; along another than its own, of the full value."""
        if type(operand) is not Value:
            return
        if self.placed.dimension.get(operand) != dimension:
            self._ask_for_full(operand, because)
        elif operand not in self.placed.shards:
            self.placed.shards.add(operand)
            self.pending.append((operand, False))

    def _pass(self, node: Node) -> None:
        """Ask for all that a loop, a branch or a barrier returns or carries."""
        if node in self.nodes:
            return
        self.nodes.add(node)
        if (choice := choice_of(node)) is not None:
            self._ask_for_full(choice, node)
        carried = [carry.value for carry in Scan(node).carries] if node.op is SCAN else ()
        results = () if node.op.name in BARRIERS else node.results
        for value in (*results, *carried):
            self._ask_in_its_form(value, node)
        if node.op is WHILE:
            self._ask_all((*node.operands, *node.graphs[1].outputs), node)

    def _ask_in_its_form(self, value: Value, because: Node) -> None:
        if value in self.placed.derived:
            self._ask_for_shards(value, self.placed.dimension[value], because)
        else:
            self._ask_for_full(value, because)

    def _full(self, value: Value) -> None:
        placed, definition = self.placed, self.placed.program.of[value]
        node, because = definition.node, self._because(value)
        if node is not None and definition.kind is not Kind.COMPUTED:
            self._pass(node)
        if value in placed.gathered:
            self._make_full_of_shards(value)
        elif value in placed.derived and value not in self.region:
            pass  # it becomes a root
        elif definition.kind is Kind.COMPUTED:
            assert node is not None
            self._operands_of(node, because)
        else:
            self._ask_all(definition.parents, because)

    def _because(self, value: Value) -> Node | str:
        """Return what to say needs all of what a full value is computed of."""
        node = self.placed.program.of[value].node
        return self.placed.because.get(value, node or "")

    def _operands_of(self, node: Node, because: Node | str) -> None:
        if node.op is OWN_SLICE:
            operand, axis = node.operands[0], cast(int, node.params["axis"])
            self._ask_for_shards(operand, axis, because)
            return
        self._ask_all(node.operands, because)
        for nested in node.graphs:
            self._ask_all(nested.outputs, because)

    def _make_full_of_shards(self, value: Value) -> None:
        placed, node = self.placed, self.placed.program.of[value].node
        if value in placed.terms:
            self._on_shards(node, *placed.terms[value])
        elif is_reduced(node):
            assert node is not None
            self._ask_all(node.operands, node)
        else:
            self._ask_for_shards(value, placed.dimension[value])

    def _shards(self, value: Value) -> None:
        placed, definition = self.placed, self.placed.program.of[value]
        node = definition.node
        if node is not None and definition.kind is not Kind.COMPUTED:
            self._pass(node)
        if value in placed.in_shards:
            pass
        elif not placed.is_computed_on_shards(value):
            self._ask_for_full(value, "")
        elif value in placed.terms:
            self._on_shards(node, *placed.terms[value])
        elif definition.kind is not Kind.COMPUTED:
            for parent in definition.parents:
                self._ask_for_shards(parent, placed.dimension[value] - definition.shift)
        elif (found := placed.factor(value)) is None:  # a collective, whose operand is local
            assert node is not None
            self._ask_all(node.operands, node)
        else:
            self._on_shards(node, *found)

    def _on_shards(self, node: Node | None, factors: Factors, factor: int) -> None:
        assert node is not None
        for operand, dimensions in zip(node.operands, factors.operands, strict=True):
            if factor in dimensions:
                self._ask_for_shards(operand, dimensions.index(factor), node)
            else:
                self._ask_for_full(operand, node)
