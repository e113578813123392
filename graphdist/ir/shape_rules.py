"""The type rules of operations that give elements another shape on each replica.

The rules of other operations take from here what dimensions of another length have in common.
"""

from __future__ import annotations

from graphdist.ir.errors import TypeRuleError
from graphdist.ir.factor_rules import dimension_after_reshape
from graphdist.ir.graph import Graphs, Types
from graphdist.ir.op_parameters import Joining, Reshaping, TakingAlong
from graphdist.ir.types import PER_REPLICA, Type, is_integer, join, join_alike


def concatenate_rule(types: Types, params: Joining, graphs: Graphs) -> Types:
    """Return the type of operands that are joined along a dimension."""
    axis, first = params.axis, types[0]
    rest = {(t.dtype, t.shape[:axis], t.shape[axis + 1 :]) for t in types if axis < len(t.shape)}
    if len(rest) != 1 or axis >= len(first.shape):
        raise TypeRuleError(
            f"concatenate along dimension {axis} of {', '.join(map(str, types))}: "
            f"the other dimensions differ"
        )
    length = sum(type.shape[axis] for type in types)
    layout = join_alike(type.layout for type in types)
    if layout is not None and layout.dimension == axis:
        layout = PER_REPLICA  # the shards of several values are joined, not the values
    return (first.resized(axis, length).with_layout(layout),)


def reshape_rule(type: Type, params: Reshaping) -> Types:
    """Return the type of an operand in another shape."""
    result = type.shaped(params.shape)
    if type.layout is not None and type.layout.dimension is not None:
        to = dimension_after_reshape(type.shape, type.layout.dimension, result.shape)
        result = result.with_layout(PER_REPLICA if to is None else type.layout.along(to))
    if result.size != type.size:
        raise TypeRuleError(f"reshape of {type} to {result}: {type.size} is not {result.size}")
    return (result,)


def take_along_rule(types: Types, params: TakingAlong, graphs: Graphs) -> Types:
    """Return the type of the elements that are taken: as many as there are indices."""
    if len(types) != 2:
        raise TypeRuleError(f"take_along takes 2 operands, not {len(types)}")
    value, indices = types
    axis = params.axis
    shapes = [(*type.shape[:axis], *type.shape[axis + 1 :]) for type in types]
    are_alike = len(value.shape) == len(indices.shape) and shapes[0] == shapes[1]
    if not 0 <= axis < len(value.shape) or not are_alike or not is_integer(indices.dtype):
        raise TypeRuleError(f"take_along of {value} at {indices} along dimension {axis}")
    return (value.shaped(indices.shape).with_layout(join((value.layout, indices.layout))),)


def part_length(type: Type, axis: int, count: int, name: str, holders: str) -> int:
    """Return the length of dimension `axis` in one of `count` equal parts of a value.

    Raises `TypeRuleError`, with the operation's `name` and who holds the parts, if there are none.

    >>> part_length(Type("f32", (8, 3)), 0, 4, "own_slice", "replicas")
    2
    """
    if not 0 <= axis < len(type.shape) or type.shape[axis] % count:
        raise TypeRuleError(
            f"{name} of {type} along dimension {axis} over {count} {holders}: the dimension does "
            "not divide"
        )
    return type.shape[axis] // count


def of_length(type: Type, axis: int, length: int) -> Type:
    """Return a type with another length of a dimension; per replica if it is sharded along it."""
    resized = type.resized(axis, length)
    return resized.with_layout(PER_REPLICA) if type.sharded_along == axis else resized
