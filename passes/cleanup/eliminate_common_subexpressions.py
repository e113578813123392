"""Compute once equal operations on the same operands with equal parameters.

The first node stays, with its source line. Equal collectives are merged too: all replicas run the
same graph. Reads of a variable are merged up to its next assignment.

Before:  %a = jax.sin(%x)   %b = jax.sin(%x)   %c = jax.add(%a, %b)
After:   %a = jax.sin(%x)   %c = jax.add(%a, %a)

Left alone: operations with an effect, operations whose result differs between two runs with equal
operands, control flow that contains one of these or state, and operations with parameters that
cannot be compared. Nodes of different nested graphs are not merged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from graphdist.ir.analyses import walk
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Node, Operands, Value
from graphdist.ir.ops import ASSIGN, READ, variable_named_by
from graphdist.ir.rewrite import Answer, rewrite
from graphdist.ir.value_numbering import NOT_REPEATABLE, frozen

NAME = "eliminate_common_subexpressions"

Results: TypeAlias = tuple[Value, ...]


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """Return the graph with every value computed once."""
    seen: dict[Builder, _Seen] = defaultdict(_Seen)  # each graph, nested or not, has a builder

    def rule(node: Node, operands: Operands, builder: Builder) -> Answer:
        return seen[builder].merge(node, operands, builder)

    return rewrite(graph, rule, NAME)


@dataclass(slots=True)
class _Seen:
    """The values that the nodes of one graph have computed so far.

    Most nodes differ from all others in operation or operands. Parameters and the bits of literals
    are compared only for nodes with equal operation and operands.
    """

    first: dict[Hashable, Node] = field(default_factory=dict)
    further: dict[Hashable, dict[Hashable, Results]] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)

    def merge(self, node: Node, operands: Operands, builder: Builder) -> Results | None:
        """Return the results of an equal earlier node; without one, keep and remember this node."""
        key = self._key(node, operands)
        if key is None:
            return None
        if key not in self.first:
            results = builder.keep(node, operands, node.graphs)
            self.first[key] = builder.nodes[-1]
            return results
        others = self.further.get(key)
        if others is None:
            first = self.first[key]
            others = self.further[key] = {_exact(first.params, first.operands): first.results}
        exact = _exact(node.params, operands)
        equal = others.get(exact)
        if equal is not None and [v.type for v in equal] == [v.type for v in node.results]:
            return equal
        results = others[exact] = builder.keep(node, operands, node.graphs)
        return results

    def _key(self, node: Node, operands: Operands) -> Hashable:
        """Return a key that equal nodes share, and few other nodes; None if the node must stay."""
        op = node.op
        if _is_impure(node):
            if op is READ:
                # Reads merge only if no assignment between them can change the value.
                name = variable_named_by(node).name
                return op, name, self.writes.get(name, 0)
            self._written(node)
            return None
        if node.graphs:
            inner = [each for graph in node.graphs for each in walk(graph)]
            if not any(map(_is_impure, inner)):
                return op, node.graphs, operands
            for each in inner:
                self._written(each)  # later nodes may read the variable
            return None
        for operand in operands:
            if type(operand) is not Value:  # a literal, slow to hash
                return (op, *[o if isinstance(o, Value) else o.value for o in operands])
        return op, operands

    def _written(self, node: Node) -> None:
        if node.op is ASSIGN:
            name = variable_named_by(node).name
            self.writes[name] = self.writes.get(name, 0) + 1


def _is_impure(node: Node) -> bool:
    op = node.op
    return op.has_effect or op.varies or op is READ or op.name in NOT_REPEATABLE


def _exact(params: Mapping[str, object], operands: Operands) -> Hashable:
    # In Python 0.0 equals -0.0 and True equals 1, but neither may replace the other.
    literals = [(o.type.dtype, frozen(o.value)) for o in operands if isinstance(o, Literal)]
    return frozen(params), *literals
