"""Type rules of control flow and of stacks.

Nested graphs are ordinary graphs whose inputs already have layouts. The rules check that the
operands fit these inputs, and make the types of the results from the types of the nested outputs.

* `scan(consts.., carry.., xs..)` runs its body `length` times on slices of `xs` along dimension 0.
  The body takes (consts, carry, x) and returns (carry, y); the loop stacks the ys.
* `while(cond_consts.., body_consts.., carry..)` has the graphs (condition, body). If replicas may
  disagree on the condition, they may run different numbers of iterations, so that every result is
  per replica.
* `cond(index, operands..)` runs one of its branches. If the index is per replica, so is every
  result.

A stack holds the values of a loop's iterations along dimension 0. A part is one of several equal
parts of a value along any dimension: a loop over parts takes one part in each iteration, and the
stack of its results is joined after the loop. `take_step`, `take_part` and `join_parts` keep the
layout, with one exception: a value sharded along the dimension of the parts becomes per replica,
since a part of a shard is not a shard of a part.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graph, Graphs, Types
from graphdist.ir.loops import returned_parts, scan_parts, type_of_slice, while_parts
from graphdist.ir.op_parameters import Branching, Joining, Looping, Scanning, TakingPart
from graphdist.ir.parameters import Parameters
from graphdist.ir.shape_rules import of_length, part_length
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, Type, is_partial, join_alike


def _outputs(graph: Graph) -> tuple[Type, ...]:
    return tuple(output.type for output in graph.outputs)


def check_fits(name: str, operands: Sequence[Type], inputs: Sequence[Type]) -> None:
    """Raise `TypeRuleError` if the operands do not fit the inputs of a nested graph."""
    if len(operands) != len(inputs):
        raise TypeRuleError(
            f"{name}: {len(operands)} operands for {len(inputs)} inputs of its body"
        )
    for position, (operand, wanted) in enumerate(zip(operands, inputs, strict=True)):
        # A mirrored operand fits a per-replica input, since per-replica values may be equal.
        agree = operand.layout is MIRRORED and not is_partial(wanted.layout)
        agree = agree or wanted.layout in (operand.layout, PER_REPLICA, None)
        if not agree or (operand.dtype, operand.shape) != (wanted.dtype, wanted.shape):
            raise TypeRuleError(f"{name}: operand {position} is {operand}, its body takes {wanted}")


def _stacked(type: Type, length: int) -> Type:
    layout = type.layout
    if layout is not None and layout.dimension is not None:
        layout = layout.along(layout.dimension + 1)
    return Type(type.dtype, (length, *type.shape), layout)


def scan_rule(operands: Types, params: Scanning, graphs: Graphs) -> Types:
    """Return the types of the last carry and of the stacked ys."""
    (body,) = graphs
    length = params.length
    constants, first, scanned = scan_parts(params, operands)
    for type in scanned:
        if not type.shape or type.shape[0] != length:
            raise TypeRuleError(f"scan of {length} steps over {type}")
    inputs = [value.type for value in body.inputs]
    check_fits("scan", (*constants, *first, *map(type_of_slice, scanned)), inputs)
    following, stacked = returned_parts(params, _outputs(body))
    check_fits("scan carry", following, scan_parts(params, inputs)[1])
    # Without any iteration the loop returns the first carry, whatever the body does.
    return (*(following if length else first), *(_stacked(type, length) for type in stacked))


def while_rule(operands: Types, params: Looping, graphs: Graphs) -> Types:
    """Return the types of the last carry."""
    condition, body = graphs
    of_condition, of_body, first = while_parts(params, operands)
    tested = [value.type for value in condition.inputs]
    check_fits("while condition", (*of_condition, *first), tested)
    inputs = [value.type for value in body.inputs]
    carried = inputs[len(of_body) :]
    check_fits("while", (*of_body, *first), inputs)
    check_fits("while carry", _outputs(body), carried)
    (predicate,) = _outputs(condition)
    if (predicate.dtype, predicate.shape) != ("bool", ()):
        raise TypeRuleError(f"while: the condition is {predicate}, not bool[]")
    return tuple(_at_least(predicate.layout, type) for type in carried)


def cond_rule(operands: Types, params: Branching, graphs: Graphs) -> Types:
    """Return the join of the branches' output types."""
    index, *rest = operands
    if (index.dtype, index.shape) != ("i32", ()):
        raise TypeRuleError(f"cond: the index is {index}, not i32[]")
    if not graphs:
        raise TypeRuleError("cond: there are no branches")
    for branch in graphs:
        check_fits("cond", rest, [value.type for value in branch.inputs])
    results = []
    for position, types in enumerate(zip(*map(_outputs, graphs), strict=True)):
        if len({(type.dtype, type.shape) for type in types}) != 1:
            raise TypeRuleError(
                f"cond: result {position} is {' or '.join(map(str, types))}, by branch"
            )
        chosen = join_alike(type.layout for type in types)
        results.append(_at_least(index.layout, types[0].with_layout(chosen)))
    return tuple(results)


def _at_least(layout: Layout | None, type: Type) -> Type:
    """Return `type` as the type of a result that a predicate or index with `layout` chooses.

    The result is per replica unless `layout` is mirrored. It has no layout if `layout` is None.
    """
    if layout is MIRRORED or type.layout is None:
        return type
    return type.with_layout(None if layout is None else PER_REPLICA)


def take_step_rule(types: Types, params: Parameters, graphs: Graphs) -> Types:
    """Return the type of a stack's slice at an index."""
    stack, step = _value_and_number(types, "take_step", "stack")
    if not stack.shape:
        raise TypeRuleError(f"take_step of {stack}, which is no stack")
    return (_at_least(step.layout, type_of_slice(stack)),)


def take_part_rule(types: Types, params: TakingPart, graphs: Graphs) -> Types:
    """Return the type of a value's part at an index."""
    type, number = _value_and_number(types, "take_part", "value")
    length = part_length(type, params.axis, params.count, "take_part", "parts")
    return (_at_least(number.layout, of_length(type, params.axis, length)),)


def join_parts_rule(types: Types, params: Joining, graphs: Graphs) -> Types:
    """Return the type of the value into which stacked parts are joined."""
    (stack,), axis = types, params.axis
    if not 0 <= axis < len(stack.shape) - 1:
        raise TypeRuleError(
            f"join_parts of {stack} along dimension {axis} of {max(len(stack.shape) - 1, 0)}"
        )
    part = type_of_slice(stack)
    return (of_length(part, axis, stack.shape[0] * part.shape[axis]),)


def _value_and_number(types: Types, name: str, what: str) -> tuple[Type, Type]:
    if len(types) != 2:
        raise TypeRuleError(f"{name} takes a {what} and a number, not {len(types)} operands")
    value, number = types
    if (number.dtype, number.shape) != ("i32", ()):
        raise TypeRuleError(f"{name} of {value} at {number}, not at an i32[]")
    return value, number
