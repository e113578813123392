"""The builder. It makes all nodes and runs their type rules, so no ill-typed node exists."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from graphdist.ir.graph import Graph, Node, Op, Operand, Operands, Params, TypedOp, Value
from graphdist.ir.operation_table import layouts_on_shards, partial_of
from graphdist.ir.source import Source
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type, is_partial, join

_NO_PARAMS: Params = {}


class Builder:
    """Collects the nodes of one graph, in order.

    `origin` names the pass that is building, and becomes the origin of each new node.

    >>> from graphdist.ir.op_parameters import Scaling
    >>> from graphdist.ir.ops import SCALE
    >>> from graphdist.ir.source import UNKNOWN
    >>> builder = Builder("double")
    >>> x = Value(Type("f32", (2,)))
    >>> (y,) = builder.add(SCALE, (x,), Scaling(2), at=UNKNOWN)
    >>> y.type
    Type(dtype='f32', shape=(2,), layout=None)
    """

    def __init__(self, origin: str = "") -> None:
        """Start with no nodes."""
        self.origin = origin
        self.nodes: list[Node] = []

    def add(
        self,
        op: Op,
        operands: Sequence[Operand],
        params: Params = _NO_PARAMS,
        graphs: tuple[Graph, ...] = (),
        *,
        at: Source | Node,
        types: Sequence[Type] | None = None,
        hint: str = "",
    ) -> tuple[Value, ...]:
        """Append a node and return its results.

        Our operations accept any mapping that has their parameters. For a JAX operation `types`
        states dtypes and shapes of the results. The layouts of the results follow from the
        operands. `at` is the user's line, or a node that the new node replaces. The new node gets
        the line and the hint of the replaced node. Raises `TypeRuleError` if operands or parameters
        do not fit the operation.
        """
        operands = tuple(operands)
        if isinstance(at, Node):
            hint = hint or (at.results[0].hint if at.results else "")
            at = at.source
        if isinstance(op, TypedOp) and type(params) is not op.parameters:
            params = op.parameters.read(params, op.name)
        results = tuple(Value(t, hint) for t in _result_types(op, operands, params, graphs, types))
        self.nodes.append(Node(op, operands, params, graphs, results, at, self.origin))
        return results

    def keep(self, node: Node, operands: Operands, graphs: tuple[Graph, ...]) -> tuple[Value, ...]:
        """Append `node` with these operands and graphs, or `node` itself if it has them already.

        A new node keeps the source, the origin and the hints of `node`. If no type changes, the new
        node also keeps the results, so that the nodes which use these results can stay.
        """
        if (
            operands is node.operands or are_same(operands, node.operands)
        ) and graphs == node.graphs:
            self.nodes.append(node)
            return node.results
        op = node.op
        declared = None if op.rule else [value.type for value in node.results]
        types = _result_types(op, operands, node.params, graphs, declared)
        results = node.results
        if [value.type for value in results] != list(types):
            results = tuple(
                Value(type, value.hint) for type, value in zip(types, results, strict=True)
            )
        self.nodes.append(
            Node(op, operands, node.params, graphs, results, node.source, node.origin)
        )
        return results

    def again(
        self,
        node: Node,
        operands: Sequence[Operand],
        types: Sequence[Type] | None = None,
        **changed: object,
    ) -> tuple[Value, ...]:
        """Append a copy of `node` with other operands and with some parameters changed.

        For a JAX operation `types` states dtypes and shapes of the results; None states those of
        the results of `node`.
        """
        if node.op.rule:
            types = None
        elif types is None:
            types = [value.type for value in node.results]
        params = {**node.params, **changed} if changed else node.params
        return self.add(node.op, operands, params, node.graphs, at=node, types=types)


def are_same(operands: Operands, others: Operands) -> bool:
    """Return whether both tuples hold the same objects. `==` would not tell 0.0 from -0.0."""
    if operands is others:
        return True
    return len(operands) == len(others) and all(map(operator.is_, operands, others))


def _result_types(
    op: Op,
    operands: Operands,
    params: Params,
    graphs: tuple[Graph, ...],
    declared: Sequence[Type] | None,
) -> Sequence[Type]:
    if op.rule is not None:
        return op.rule([operand.type for operand in operands], params, graphs)
    if declared is None:
        raise TypeError(f"{op.name} has no type rule: state the types of its results")
    if op.is_identity:
        return [
            type.with_layout(operand.type.layout)
            for type, operand in zip(declared, operands, strict=True)
        ]
    of_operands = [operand.type.layout for operand in operands]
    layout = join(of_operands)
    if op.varies and layout is not None:
        layout = PER_REPLICA
    elif layout is PER_REPLICA and not all(held in (MIRRORED, PER_REPLICA) for held in of_operands):
        node = Node(op, operands, params, (), tuple(map(Value, declared)))
        if not any(map(is_partial, of_operands)):
            return list(map(Type.with_layout, declared, layouts_on_shards(node)))
        layout = partial_of(node)
    return [type.with_layout(layout) for type in declared]
