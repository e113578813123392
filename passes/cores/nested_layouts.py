"""The layouts over cores of what goes into the body of a loop or branch, and of what comes out.

The carries of a loop have one layout before and behind each iteration. One that begins in full is
sharded if the body returns shards of it. One that begins with zeros, or with terms, has terms if
the body does nothing but add terms to it; they are reduced once, behind the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphdist.ir.analyses import producer_of
from graphdist.ir.graph import Graph, Value
from graphdist.ir.loops import Carry
from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.types import MIRRORED, Layout, is_partial, partial
from graphdist.passes.cores.core_values import CoreValues


@dataclass(frozen=True)
class NestedBody:
    """A nested graph, and its values on one core."""

    graph: Graph
    inputs: tuple[Value, ...]
    values: CoreValues

    def gathered_outside(
        self, layouts: Sequence[Layout], constants: Sequence[Value]
    ) -> list[Layout]:
        """Return the layouts of constants of a loop, full where each iteration would gather one."""
        return [
            MIRRORED if self.values.is_gathered(value) else layout
            for layout, value in zip(layouts, constants, strict=True)
        ]

    def with_terms_of_sums(
        self, layouts: Sequence[Layout], carries: Sequence[Carry]
    ) -> list[Layout]:
        """Return the layouts of carries, with terms only where they do nothing but add up terms."""
        return [
            MIRRORED if is_partial(layout) and not self._is_sum(carry) else layout
            for layout, carry in zip(layouts, carries, strict=True)
        ]

    def _is_sum(self, carry: Carry) -> bool:
        """Return whether a carry has terms in all iterations, and nothing reads their sum."""
        both, values = (carry.value, carry.following), self.values
        return all(
            values.layout(each) == partial("sum") and not values.is_converted(each) for each in both
        )

    def returning(self, layouts: Sequence[Layout]) -> Graph:
        """Return the new nested graph, whose outputs have these layouts."""
        outputs = tuple(
            self.values.now(output, layout, line_of_outputs(self.graph))
            for output, layout in zip(self.graph.outputs, layouts, strict=True)
        )
        nodes = tuple(self.values.builder.nodes)
        return self.graph.replace(inputs=self.inputs, nodes=nodes, outputs=outputs)


def may_add_up(carry: Carry, body: Graph) -> bool:
    """Return whether a carry is of numbers, and iterations do more with it than to move them."""
    operand = carry.following
    while operand is not carry.value:
        node = producer_of(operand, body)
        values = [each for each in node.operands if type(each) is Value] if node else []
        if len(values) != 1:
            return carry.value.type.dtype != "bool"
        (operand,) = values
    return False


def without_terms(layout: Layout) -> Layout:
    """Return the layout of a value whose terms are reduced."""
    return MIRRORED if is_partial(layout) else layout


def of_slice(layout: Layout) -> Layout:
    """Return the layout of a slice of a scanned operand; terms and shards of slices are joined."""
    if layout.dimension is None or layout.dimension == 0:
        return MIRRORED
    return layout.along(layout.dimension - 1)


def of_stack(layout: Layout) -> Layout:
    """Return the layout of the stack of what the iterations return in a layout."""
    return layout if layout.dimension is None else layout.along(layout.dimension + 1)


def joined_carries(carries: Sequence[Layout], following: Sequence[Layout]) -> list[Layout]:
    """Return the layouts of carries, sharded where the body returns shards of a full carry."""
    return [
        after if before is MIRRORED and after.dimension is not None else before
        for before, after in zip(carries, following, strict=True)
    ]


def in_all_branches(found: Sequence[Layout]) -> Layout:
    """Return the layout of a result of a `cond`: sharded if no branch returns another layout."""
    shards = {layout for layout in found if layout.dimension is not None}
    others = {layout for layout in found if layout is not MIRRORED} - shards
    return shards.pop() if len(shards) == 1 and not others else MIRRORED


def line_of_outputs(graph: Graph) -> Source:
    """Return the line at which the outputs of a graph are converted."""
    return graph.nodes[-1].source if graph.nodes else UNKNOWN
