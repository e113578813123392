"""Type rules of stacks and parts: `take_step`, `take_part` and `join_parts`.

A stack holds the values of a loop's iterations along dimension 0. A part is one of several equal
parts of a value along any dimension: a loop over parts takes one part in each iteration, and the
stack of its results is joined after the loop. All three operations keep the layout, with one
exception: a value sharded along the dimension of the parts becomes per replica, since a part of a
shard is not a shard of a part.
"""

from __future__ import annotations

from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graphs, Types
from graphdist.ir.loops import type_of_slice
from graphdist.ir.op_parameters import Joining, TakingPart
from graphdist.ir.parameters import Parameters
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type


def take_step_rule(types: Types, params: Parameters, graphs: Graphs) -> Types:
    """Return the type of a stack's slice at an index."""
    stack, step = _value_and_number(types, "take_step", "stack")
    if not stack.shape:
        raise TypeRuleError(f"take_step of {stack}, which is no stack")
    return (_at(step, type_of_slice(stack)),)


def take_part_rule(types: Types, params: TakingPart, graphs: Graphs) -> Types:
    """Return the type of a value's part at an index."""
    type, number = _value_and_number(types, "take_part", "value")
    axis, count = params.axis, params.count
    if not 0 <= axis < len(type.shape) or type.shape[axis] % count:
        raise TypeRuleError(
            f"take_part of {type}, of {count} along dimension {axis}: the dimension does not divide"
        )
    return (_at(number, _resized(type, axis, type.shape[axis] // count)),)


def join_parts_rule(types: Types, params: Joining, graphs: Graphs) -> Types:
    """Return the type of the value into which stacked parts are joined."""
    (stack,), axis = types, params.axis
    if not 0 <= axis < len(stack.shape) - 1:
        raise TypeRuleError(
            f"join_parts of {stack} along dimension {axis} of {max(len(stack.shape) - 1, 0)}"
        )
    part = type_of_slice(stack)
    return (_resized(part, axis, stack.shape[0] * part.shape[axis]),)


def _value_and_number(types: Types, name: str, what: str) -> tuple[Type, Type]:
    if len(types) != 2:
        raise TypeRuleError(f"{name} takes a {what} and a number, not {len(types)} operands")
    value, number = types
    if (number.dtype, number.shape) != ("i32", ()):
        raise TypeRuleError(f"{name} of {value} at {number}, not at an i32[]")
    return value, number


def _at(number: Type, taken: Type) -> Type:
    """Return `taken`, the type of a value at an index; per replica unless the index is mirrored."""
    return taken if number.layout is MIRRORED else taken.with_layout(PER_REPLICA)


def _resized(type: Type, axis: int, length: int) -> Type:
    """Return `type` with a new length of dimension `axis`; per replica if sharded along `axis`."""
    resized = type.resized(axis, length)
    return resized.with_layout(PER_REPLICA) if type.sharded_along == axis else resized
