"""Which values a program has sharded, which unsharded, and where it converts between the two.

A program says which layouts it wants: a variable that is stored sharded is gathered where it is
read, a gradient is all_reduced, the new value of a variable is sharded where it is stored. This
analysis finds the positions where these conversions send the fewest bytes, and
`place_conversions.py` adds the conversions there.

1. *Derive.* A value is *derived* if it can be computed on shards. The first shards are those of
   variables that are stored sharded, and of reductions that may be reduce_scatters. Each operation
   that the table allows (`graphdist.ir.operation_table`) is applied to the shards of its operands,
   and loops and branches take and return shards. A sum along the sharded dimension gives a *term*
   on each replica, and an all_reduce adds up the terms.
2. *Ask.* From the outputs backwards each value is asked for sharded or unsharded. An operation that
   cannot run on shards asks for its operands unsharded.
3. *Position.* Between the shards and the values that are asked for unsharded a minimum cut finds
   the values with the fewest bytes, and these are gathered (`gather_positions.py`). The values
   computed from them are unsharded. A gather in a loop counts once per iteration.

Layouts are propagated over the factors of operations as in Xu et al. 2021, "GSPMD: General and
Scalable Parallelization for ML Computation Graphs". Updates are sharded as in Xu et al. 2020,
"Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training".
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from graphdist.ir.analyses import has_effect
from graphdist.ir.definitions import BARRIERS, Definition, ValueKind, definitions
from graphdist.ir.flow import choice_of, diverges
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan
from graphdist.ir.ops import ALL_GATHER, OWN_SLICE, SCAN, WHILE
from graphdist.ir.types import numpy_dtype
from graphdist.passes.layouts.gather_positions import (
    Region,
    carried_unsharded,
    gathered_of,
    let_in,
    region_of,
)
from graphdist.passes.layouts.placed_values import (
    PlacedValues,
    Rules,
    is_cheap,
    is_full_reduction,
    operands_on_shards,
)
from graphdist.passes.layouts.sharding_propagation import propagate_sharding


def analyze_sharding(
    graph: Graph,
    stages: Iterable[Iterable[tuple[Value, int]]],
    rules: Rules,
    wanted: AbstractSet[Value] = frozenset(),
    sharded_inputs: AbstractSet[Value] = frozenset(),
    without: AbstractSet[Value] = frozenset(),
) -> PlacedValues:
    """Return which values of a program are sharded and which unsharded.

    The results of the reductions `without` stay unsharded.
    """
    program = definitions(graph)
    dimension = propagate_sharding(program, stages, rules.mesh.group_size)
    carried: set[Value] = set()
    while True:
        placed = PlacedValues(
            graph, program, rules, dimension, wanted=wanted, sharded_inputs=sharded_inputs
        )
        if not dimension:
            return placed
        _derive(placed, without | carried)
        _position(placed)
        more = carried_unsharded(placed)
        if not more:
            return placed
        carried |= more


def _derive(placed: PlacedValues, without: AbstractSet[Value]) -> None:
    """Find the values that can be computed on shards; repeat until no carry of a loop changes."""
    count = -1
    while count != len(placed.derived):
        count = len(placed.derived)
        for value, definition in placed.program.of.items():
            if value in placed.derived or value in without:
                continue
            if _is_derived(value, definition, placed):
                placed.derived[value] = None
                if _is_of_inputs(definition, placed):
                    placed.of_inputs.add(value)


def _is_derived(value: Value, definition: Definition, placed: PlacedValues) -> bool:
    node, dimension = definition.node, placed.dimension.get(value)
    if definition.kind is ValueKind.COMPUTED:
        assert node is not None
        return _is_computed(value, node, placed)
    if definition.kind is ValueKind.INPUT:
        return dimension is not None and value in placed.sharded_inputs
    # A branch that not all replicas run may have no collectives.
    if dimension is None or node is None or node.op is WHILE or diverges(node):
        return False
    parents = filter(placed.is_derived, definition.parents)
    return any(placed.dimension[parent] + definition.shift == dimension for parent in parents)


def _is_of_inputs(definition: Definition, placed: PlacedValues) -> bool:
    """Return whether a derived value depends on `placed.sharded_inputs` alone."""
    if definition.kind in (ValueKind.CARRY, ValueKind.LAST):
        return False
    derived = set(filter(placed.is_derived, definition.parents))
    is_input = definition.kind is ValueKind.INPUT
    return is_input or (bool(derived) and derived <= placed.of_inputs)


def _is_computed(value: Value, node: Node, placed: PlacedValues) -> bool:
    """Return whether a node can be applied to shards.

    A result that is a sum over shards is added to `placed.terms`.
    """
    if value in placed.dimension and (_gathers(node, placed) or is_full_reduction(node)):
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
        # A product of operands sharded along different factors would gather one of the operands.
        return len(held) == 1 or is_cheap(node)
    if len(held) != 1 or len(node.results) > 1:
        return False
    (factor,) = held
    reducer = None if factor is None else factors.summed.get(factor)
    if factor is None or reducer is None or not placed.divides(node, factors, factor):
        return False
    if reducer == "sum" and not _may_be_added_up(value, placed):
        return False
    placed.terms[value] = factors, factor
    return True


def _gathers(node: Node, placed: PlacedValues) -> bool:
    """Return whether a node gathers shards along the dimension of its result in `placed`."""
    if node.op is not ALL_GATHER:
        return False
    params = ALL_GATHER.of(node)
    return placed.dimension[node.results[0]] == params.axis and params.mesh == placed.rules.mesh


def _may_be_added_up(value: Value, placed: PlacedValues) -> bool:
    """Return whether a sum may be computed as the sum of partial sums, rounded to its dtype."""
    dtype = numpy_dtype(value.type.dtype)
    is_narrow_float = dtype.kind not in "biu" and dtype.itemsize < 4
    return placed.rules.reorders and not is_narrow_float


def _position(placed: PlacedValues) -> None:
    """Set the forms of values and the values to gather, and repeat this until they agree.

    The values to gather decide which values are asked for unsharded, the `roots`, and the roots
    decide which values to gather. When both agree, more values may be gathered in front of loops.
    """
    in_front: set[Value] = set()
    roots: set[Value] = set()
    while True:
        region = region_of(roots, placed, in_front)
        placed.gathered = gathered_of(region, roots, placed)
        _Asking(placed, region).run()
        asked = {
            value for value in placed.unsharded if value in placed.derived and value not in region
        }
        roots &= placed.unsharded  # drops roots of rounds with fewer gathers in front of loops
        roots |= asked
        if not asked:
            more = let_in(placed) - in_front
            if not more:
                return
            in_front |= more


class _Asking:
    """Walks backwards from the outputs and asks for each value unsharded or sharded."""

    def __init__(self, placed: PlacedValues, region: Region) -> None:
        self.placed, self.region = placed, region
        placed.unsharded, placed.sharded, placed.because = set(), set(), {}
        self.pending: list[tuple[Value, bool]] = []
        """The values that are asked for, and whether unsharded."""
        self.passed: set[Node] = set()

    def run(self) -> None:
        """Set the forms of all values in `placed`."""
        graph = self.placed.graph
        for output in graph.outputs[: len(graph.assigned)]:
            dimension = self.placed.dimension[output] if output in self.placed.wanted else None
            self._ask(output, dimension, "it is stored unsharded")
        self._ask_all(graph.outputs[len(graph.assigned) :], "the function returns it")
        self._ask_for_effects(graph)
        while self.pending:
            value, is_unsharded = self.pending.pop()
            definition = self.placed.program.of[value]
            if definition.node is not None and definition.kind is not ValueKind.COMPUTED:
                self._pass(definition.node)
            (self._unsharded if is_unsharded else self._sharded)(value)

    def _ask_for_effects(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.op.has_effect:
                self._ask_all(node.operands, node)
            elif has_effect(node):
                self._pass(node)
                for nested in node.graphs:
                    self._ask_for_effects(nested)

    def _ask_all(self, operands: Iterable[Operand], because: Node | str) -> None:
        """Ask for operands unsharded."""
        for operand in operands:
            self._ask(operand, None, because)

    def _ask(self, operand: Operand, dimension: int | None, because: Node | str = "") -> None:
        """Ask for an operand's shards along `dimension`; None asks for the full value.

        The full value is asked for, too, if the operand is sharded along another dimension.
        """
        placed = self.placed
        if type(operand) is not Value:
            return
        is_unsharded = dimension is None or placed.dimension.get(operand) != dimension
        asked = placed.unsharded if is_unsharded else placed.sharded
        if operand not in asked:
            asked.add(operand)
            self.pending.append((operand, is_unsharded))
            if is_unsharded and operand in placed.derived:
                placed.because[operand] = because

    def _pass(self, node: Node) -> None:
        """Ask for all values that a loop, a branch or a barrier returns or carries."""
        if node in self.passed:
            return
        self.passed.add(node)
        if (choice := choice_of(node)) is not None:
            self._ask(choice, None, node)
        carried = [carry.value for carry in Scan(node).carries] if node.op is SCAN else ()
        results = () if node.op.name in BARRIERS else node.results
        for value in (*results, *carried):
            self._ask(value, self.placed.derived_along(value), node)
        if node.op is WHILE:
            self._ask_all((*node.operands, *node.graphs[1].outputs), node)

    def _unsharded(self, value: Value) -> None:
        """Ask for the operands from which a value is made unsharded."""
        placed, definition = self.placed, self.placed.program.of[value]
        node = definition.node
        because = placed.because.get(value, node or "")  # of the values that `value` is made of
        if value in placed.gathered:
            if is_full_reduction(node):
                self._ask_all(definition.parents, node)
            elif value not in placed.terms:
                self._ask(value, placed.dimension[value])
            else:
                self._on_shards(value)
        elif value in placed.derived and value not in self.region:
            pass  # `_position` makes it a root
        elif node is not None and node.op is OWN_SLICE:
            self._ask(node.operands[0], OWN_SLICE.of(node).axis, because)
        else:
            self._ask_all(definition.parents, because)
            if node is not None and definition.kind is ValueKind.COMPUTED:
                for nested in node.graphs:
                    self._ask_all(nested.outputs, because)

    def _sharded(self, value: Value) -> None:
        """Ask for the operands from which the shards of a value are made."""
        placed, definition = self.placed, self.placed.program.of[value]
        if value in placed.sharded_inputs:
            return
        if not placed.is_computed_on_shards(value):
            self._ask(value, None)
        elif definition.kind is ValueKind.COMPUTED:
            self._on_shards(value)
        else:
            for parent in definition.parents:
                self._ask(parent, placed.dimension[value] - definition.shift)

    def _on_shards(self, value: Value) -> None:
        """Ask for the operands of the node that computes a value on shards."""
        node = self.placed.program.of[value].node
        assert node is not None
        found = self.placed.terms.get(value) or self.placed.factor(value)
        if found is None:  # a collective, whose operand is local
            self._ask_all(node.operands, node)
        else:
            for operand, dimension in operands_on_shards(node, *found):
                self._ask(operand, dimension, node)
