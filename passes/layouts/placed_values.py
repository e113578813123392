"""The data of a placement: which values a program has sharded, and which unsharded.

`PlacedValues` is what the analysis finds (`sharding_analysis.py`) and the pass applies
(`place_conversions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeGuard

from graphdist.ir.definitions import Definitions, ValueKind
from graphdist.ir.factors import Factors
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.mesh import MeshShape
from graphdist.ir.operation_table import divides, factors_of, row_of
from graphdist.ir.ops import ALL_REDUCE, is_over_all
from graphdist.ir.types import MIRRORED

PASSED_IN = frozenset({ValueKind.CONSTANT, ValueKind.SLICE, ValueKind.BRANCH_INPUT})
"""The inputs that a nested graph may take both sharded and unsharded."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The options that decide where values are gathered.

    Values are sharded over the replicas of each group of `mesh`. A slice of a scanned operand that
    has at least `smallest` bytes is gathered in the loop. Smaller slices, and constants of a loop
    of up to `most_bytes` in total, may be gathered in front of the loop. Sums are computed on
    shards only with `reorders`, since sums over shards change the order of additions.
    """

    mesh: MeshShape
    smallest: int = 0
    most_bytes: int = 0
    reorders: bool = True


@dataclass
class PlacedValues:
    """Which values a program has sharded, and which unsharded.

    `dimension` has the dimension along which each value may be sharded. The `derived` values can be
    computed on shards; `terms` are derived sums over shards, with their factors and the summed
    factor. A value may be computed `sharded`, `unsharded` or both; `gathered` are the unsharded
    values that are gathered from their shards. The outputs `wanted` are asked for sharded. The
    inputs `sharded_inputs` are stored sharded unless a node needs them unsharded; `of_inputs` are
    derived values that depend on such inputs alone. `because` has the node or the reason that asks
    for a derived value unsharded.
    """

    graph: Graph
    program: Definitions
    rules: Rules
    dimension: Mapping[Operand, int]
    derived: dict[Value, None] = field(default_factory=dict)
    terms: dict[Value, tuple[Factors, int]] = field(default_factory=dict)
    wanted: AbstractSet[Value] = frozenset()
    sharded_inputs: AbstractSet[Value] = frozenset()
    unsharded: set[Value] = field(default_factory=set)
    sharded: set[Value] = field(default_factory=set)
    gathered: AbstractSet[Value] = frozenset()
    because: dict[Value, Node | str] = field(default_factory=dict)
    of_inputs: set[Value] = field(default_factory=set)
    _factors: dict[Node, Factors | None] = field(default_factory=dict)

    def is_derived(self, operand: Operand) -> TypeGuard[Value]:
        """Return whether a value can be computed on shards."""
        return type(operand) is Value and operand in self.derived

    def needs_barrier(self, value: Value) -> bool:
        """Return whether the shards of a value behind a barrier have to pass the barrier.

        They need not pass it if no value computed from the same shards is gathered in front of the
        barrier. Then the compiler has no other gather with which it could merge the gather behind
        the barrier, and the gather may start early.
        """
        of = self.program.of

        def computed_of(value: Value) -> Iterable[Operand]:
            return of[value].parents if of[value].kind is ValueKind.COMPUTED else ()

        (operand,) = of[value].parents
        made_of = self.spread((operand,) if type(operand) is Value else (), computed_of)
        return not self.gathered.isdisjoint(self.spread(made_of, self.results_of))

    def spread(
        self, starts: Iterable[Value], following: Callable[[Value], Iterable[Operand]]
    ) -> set[Value]:
        """Return `starts`, and all derived values that are reached from them by `following`."""
        pending = list(starts)
        found = set(pending)
        while pending:
            for other in following(pending.pop()):
                if self.is_derived(other) and other not in found:
                    found.add(other)
                    pending.append(other)
        return found

    def results_of(self, value: Value) -> Iterator[Operand]:
        """Yield the results of the nodes that compute with a value."""
        return (result for node in self.program.nodes.get(value, ()) for result in node.results)

    def is_scattered(self, value: Value) -> bool:
        """Return whether a reduce_scatter makes the shards of a sum over shards.

        There is no reduce_scatter if there are several groups of replicas: each group has the sum,
        and a reduce_scatter would add the sums of all groups. Nor is there one if the operands are
        unsharded in any case, because the sum is then computed from them without sending.
        """
        factors, factor = self.terms[value]
        is_sum = factors.summed[factor] == "sum"
        derived = filter(self.is_derived, self.program.of[value].parents)
        is_there = value in self.unsharded or self.unsharded.issuperset(derived)
        return is_sum and self.rules.mesh.num_groups == 1 and not is_there

    def derived_along(self, operand: Operand) -> int | None:
        """Return the dimension along which a derived value is sharded; None for other operands."""
        return self.dimension.get(operand) if self.is_derived(operand) else None

    def forms(self, value: Value) -> Iterator[int | None]:
        """Yield the forms in which a nested graph takes an input: None, or a dimension."""
        if value in self.unsharded and value not in self.gathered:
            yield None
        if value in self.sharded:
            yield self.dimension[value]

    def factor(self, value: Value) -> tuple[Factors, int] | None:
        """Return the factors of the node that computes a value, and the sharded factor."""
        definition = self.program.of[value]
        node, dimension = definition.node, self.dimension.get(value)
        if definition.kind is not ValueKind.COMPUTED or node is None or dimension is None:
            return None
        factors = self.factors_of(node)
        if factors is None:
            return None
        factor = factors.results[node.results.index(value)][dimension]
        if factor is None or not self.divides(node, factors, factor):
            return None
        return factors, factor

    def divides(self, node: Node, factors: Factors, factor: int) -> bool:
        """Return whether all dimensions of a node that have the factor can be sharded."""
        return divides(node, factors, factor, self.rules.mesh.group_size)

    def factors_of(self, node: Node) -> Factors | None:
        """Return the factors of a node whose operands and results are mirrored; else None."""
        if node not in self._factors:
            self._factors[node] = factors_of(node) if takes_mirrored(node) else None
        return self._factors[node]

    def is_computed_on_shards(self, value: Value) -> bool:
        """Return whether shards of a value are computed on shards, not cut from the full value."""
        if value in self.derived:
            return value not in self.terms or self.is_scattered(value)
        definition = self.program.of[value]
        if definition.kind is not ValueKind.COMPUTED:
            return definition.kind in PASSED_IN and value in self.dimension
        is_there = value in self.unsharded  # each replica takes its shard of it
        return not is_there and self.factor(value) is not None and is_cheap(definition.node)


def is_full_reduction(node: Node | None) -> TypeGuard[Node]:
    """Return whether a node reduces over all replicas as a reduce_scatter does."""
    return (
        node is not None
        and node.op is ALL_REDUCE
        and is_over_all(node)
        and node.params["reducer"] in ("sum", "mean")
        and node.operands[0].type.layout is not MIRRORED
    )


def operands_on_shards(
    node: Node, factors: Factors, factor: int
) -> Iterator[tuple[Operand, int | None]]:
    """Yield the operands of a node that is applied to shards, with their sharded dimensions.

    The dimension is None for an unsharded operand.
    """
    for operand, dimensions in zip(node.operands, factors.operands, strict=True):
        yield operand, Factors.dimension(dimensions, factor)


def takes_mirrored(node: Node) -> bool:
    """Return whether all operands and results of a node are mirrored."""
    values = (*node.operands, *node.results)
    return all(value.type.layout is MIRRORED for value in values)


def is_cheap(node: Node | None) -> bool:
    """Return whether a node costs about as much as reading its operands."""
    row = None if node is None else row_of(node)
    return row is not None and row.is_cheap


def text_of(because: Node | str) -> str:
    """Return why a value is unsharded; `because` is the node that takes it, or the text itself."""
    if isinstance(because, str):
        return because
    return f"{because.op.name} at {because.source} needs the full value"
