"""Which values a program has sharded, which unsharded, and where it converts between the two.

A program says which layouts it wants: a variable that is stored sharded is gathered where it is
read, a gradient is all_reduced, the new value of a variable is sharded where it is stored. This
analysis finds the positions where these conversions send the fewest bytes, and
`place_conversions.py` adds the conversions there.

1. *Derive.* A value is *derived* if it can be computed on shards (`values_on_shards.py`), beginning
   with the shards of stored variables and of reductions that may be reduce_scatters.
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

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import cast

from graphdist.ir.analyses import has_effect
from graphdist.ir.definitions import BARRIERS, ValueKind, definitions
from graphdist.ir.factors import Factors
from graphdist.ir.flow import choice_of
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan
from graphdist.ir.ops import OWN_SLICE, SCAN, WHILE
from graphdist.passes.layouts.gather_positions import (
    carried_unsharded,
    gathered_of,
    let_in,
    region_of,
)
from graphdist.passes.layouts.placed_values import PlacedValues, Rules, is_full_reduction
from graphdist.passes.layouts.sharding_propagation import propagate_sharding
from graphdist.passes.layouts.values_on_shards import find_values_on_shards

__all__ = ["analyze_sharding"]


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
        find_values_on_shards(placed, without | carried)
        _position_in_loops(placed)
        more = carried_unsharded(placed)
        if not more:
            return placed
        carried |= more


def _position_in_loops(placed: PlacedValues) -> None:
    """Find the forms of all values, and the values that are gathered in front of loops."""
    found: set[Value] = set()
    roots: set[Value] = set()
    while True:
        _position(placed, found, roots)
        more = let_in(placed) - found
        if not more:
            return
        found |= more


def _position(placed: PlacedValues, found: AbstractSet[Value], roots: set[Value]) -> None:
    """Find the forms of values and the values to gather, and repeat this until they agree.

    They depend on each other: the values to gather decide which values are asked for unsharded, the
    `roots`.
    """
    while True:
        region = region_of(roots, placed, found)
        gathered = gathered_of(region, roots, placed)
        _Asking(placed, gathered, region).run()
        asked = {
            value for value in placed.unsharded if value in placed.derived and value not in region
        }
        roots &= placed.unsharded  # drops roots of rounds with fewer gathers in front of loops
        if not asked:
            return
        roots |= asked


class _Asking:
    """Walks backwards from the outputs and asks for each value unsharded or sharded."""

    def __init__(
        self,
        placed: PlacedValues,
        gathered: AbstractSet[Value],
        region: Mapping[Value, tuple[Value, ...]],
    ) -> None:
        self.placed, self.region = placed, region
        placed.unsharded, placed.sharded, placed.gathered = set(), set(), gathered
        placed.because = {}
        self.pending: list[tuple[Value, bool]] = []
        self.nodes: set[Node] = set()

    def run(self) -> None:
        """Set the forms of all values in `placed`."""
        graph = self.placed.graph
        for output in graph.outputs[: len(graph.assigned)]:
            if type(output) is Value and output in self.placed.wanted:
                self._ask_for_shards(output, self.placed.dimension[output])
            else:
                self._ask_for_unsharded(output, "it is stored unsharded")
        for output in graph.outputs[len(graph.assigned) :]:
            self._ask_for_unsharded(output, "the function returns it")
        self._ask_for_effects(self.placed.graph)
        while self.pending:
            value, is_unsharded = self.pending.pop()
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
        for operand in operands:
            self._ask_for_unsharded(operand, because)

    def _ask_for_unsharded(self, operand: Operand, because: Node | str) -> None:
        if type(operand) is Value and operand not in self.placed.unsharded:
            self.placed.unsharded.add(operand)
            self.pending.append((operand, True))
            if operand in self.placed.derived:
                self.placed.because[operand] = because

    def _ask_for_shards(self, operand: Operand, dimension: int, because: Node | str = "") -> None:
        """Ask for shards along `dimension`, or for the full value if its own is another one."""
        if type(operand) is not Value:
            return
        if self.placed.dimension.get(operand) != dimension:
            self._ask_for_unsharded(operand, because)
        elif operand not in self.placed.sharded:
            self.placed.sharded.add(operand)
            self.pending.append((operand, False))

    def _pass(self, node: Node) -> None:
        """Ask for all values that a loop, a branch or a barrier returns or carries."""
        if node in self.nodes:
            return
        self.nodes.add(node)
        if (choice := choice_of(node)) is not None:
            self._ask_for_unsharded(choice, node)
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
            self._ask_for_unsharded(value, because)

    def _unsharded(self, value: Value) -> None:
        placed, definition = self.placed, self.placed.program.of[value]
        node, because = definition.node, self._because(value)
        if node is not None and definition.kind is not ValueKind.COMPUTED:
            self._pass(node)
        if value in placed.gathered:
            self._make_unsharded(value)
        elif value in placed.derived and value not in self.region:
            pass  # `_position` makes it a root
        elif definition.kind is ValueKind.COMPUTED:
            assert node is not None
            self._operands_of(node, because)
        else:
            self._ask_all(definition.parents, because)

    def _because(self, value: Value) -> Node | str:
        """Return the reason, for reports, why the operands of an unsharded value are unsharded."""
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

    def _make_unsharded(self, value: Value) -> None:
        placed, node = self.placed, self.placed.program.of[value].node
        if value in placed.terms:
            self._on_shards(node, *placed.terms[value])
        elif is_full_reduction(node):
            assert node is not None
            self._ask_all(node.operands, node)
        else:
            self._ask_for_shards(value, placed.dimension[value])

    def _sharded(self, value: Value) -> None:
        placed, definition = self.placed, self.placed.program.of[value]
        node = definition.node
        if node is not None and definition.kind is not ValueKind.COMPUTED:
            self._pass(node)
        if value in placed.sharded_inputs:
            pass
        elif not placed.is_computed_on_shards(value):
            self._ask_for_unsharded(value, "")
        elif value in placed.terms:
            self._on_shards(node, *placed.terms[value])
        elif definition.kind is not ValueKind.COMPUTED:
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
                self._ask_for_unsharded(operand, node)
