"""Steps and parts of values: their types, and what the interpreter and a device make of them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
import pytest

from graphdist.ir import ops
from graphdist.ir.arrays import Array
from graphdist.ir.builder import Builder
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graph, Op, Params, Stage, Value
from graphdist.ir.interpreter import interpret
from graphdist.ir.op_parameters import Joining, TakingAlong, TakingPart
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, Type, dtype_name, sharded
from graphdist.runtime.bind_primitive import evaluate_jax_node
from graphdist.runtime.emit import emit

NUMBER = Type("i32", (), MIRRORED)
NUMBERS = (0, 1, 2, 7, -1, -9)


def result_type(op: Op, types: Sequence[Type], params: Params) -> str:
    (result,) = Builder().add(op, [Value(type) for type in types], params, at=UNKNOWN)
    return str(result.type)


@pytest.mark.parametrize(
    ("layout", "axis", "part", "joined"),
    [
        (MIRRORED, 1, "f32[6,2] mirrored", "f32[2,18] mirrored"),
        (PER_REPLICA, 0, "f32[3,4] per_replica", "f32[12,3] per_replica"),
        (
            sharded(0, "member"),
            1,
            "f32[6,2] sharded(0) over member",
            "f32[2,18] sharded(0) over member",
        ),
        (sharded(0), 0, "f32[3,4] per_replica", "f32[12,3] per_replica"),
    ],
    ids=str,
)
def test_a_part_of_a_slice(layout: Layout, axis: int, part: str, joined: str) -> None:
    value = Type("f32", (6, 4), layout)
    assert result_type(ops.TAKE_PART, [value, NUMBER], TakingPart(axis, 2)) == part
    along = layout.dimension
    of_stack = layout if along is None else layout.along(along + 1)
    stack = Type("f32", (6, 2, 3), of_stack)
    assert result_type(ops.JOIN_PARTS, [stack], Joining(axis)) == joined


def test_a_number_that_differs() -> None:
    types = [Type("f32", (6, 4), MIRRORED), NUMBER.with_layout(PER_REPLICA)]
    taken = result_type(ops.TAKE_PART, types, TakingPart(0, 3))
    assert taken == "f32[2,4] per_replica"


@pytest.mark.parametrize(
    ("op", "types", "params", "message"),
    [
        (ops.TAKE_STEP, [NUMBER, NUMBER], {}, "is no stack"),
        (ops.TAKE_STEP, [Type("f32", (2,))], {}, "not 1 operands"),
        (ops.TAKE_PART, [Type("f32", (6,))] * 2, TakingPart(0, 2), r"not at an i32\[\]"),
        (ops.TAKE_PART, [Type("f32", (6,)), NUMBER], TakingPart(0, 4), "0 over 4 parts"),
        (ops.TAKE_PART, [Type("f32", (6,)), NUMBER], TakingPart(1, 2), "1 over 2 parts"),
        (ops.TAKE_ALONG, [Type("f32", (6,))], TakingAlong(0), "2 operands, not 1"),
        (ops.TAKE_ALONG, [Type("f32", (6, 2)), NUMBER], TakingAlong(0), "along dimension 0"),
        (ops.TAKE_ALONG, [Type("f32", (6,))] * 2, TakingAlong(0), "along dimension 0"),
        (ops.TAKE_ALONG, [Type("f32", (6,)), Type("i32", (2,))], TakingAlong(1), "dimension 1"),
        (ops.JOIN_PARTS, [Type("f32", (6, 2))], Joining(1), "along dimension 1 of 1"),
        (ops.JOIN_PARTS, [Type("f32", ())], Joining(0), "along dimension 0 of 0"),
    ],
)
def test_refused(op: Op, types: list[Type], params: Params, message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        result_type(op, types, params)


def both(op: Op, params: Params, *arrays: Array) -> Array:
    """Return what the interpreter makes of arrays; a device makes the same."""
    inputs = tuple(Value(Type(dtype_name(array.dtype), array.shape, MIRRORED)) for array in arrays)
    builder = Builder()
    outputs = builder.add(op, inputs, params, at=UNKNOWN)
    graph = Graph("f", Stage.SPMD, 1, inputs, tuple(builder.nodes), outputs)
    ((expected,),) = interpret(graph, [[array] for array in arrays], evaluate_jax_node).outputs
    (given,) = jax.jit(lambda *operands: emit(graph, operands))(*arrays)
    assert expected.shape == outputs[0].type.shape
    np.testing.assert_array_equal(np.asarray(given), expected)
    return expected


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_elements_taken_along_a_dimension(dtype: type[np.generic]) -> None:
    value = np.arange(12).reshape(2, 6).astype(dtype)
    places = np.asarray([[0, 5, 2], [3, 3, 1]], np.int32)
    taken = both(ops.TAKE_ALONG, TakingAlong(1), value, places)
    assert taken.tolist() == [[0, 5, 2], [9, 9, 7]]
    added = both(ops.TAKE_ALONG, TakingAlong(1, 2, 100), value, places)
    assert added.tolist() == [[0, 205, 102], [109, 109, 7]]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_parts_joined_are_the_value(axis: int) -> None:
    value = np.arange(6 * 12 * 3, dtype=np.float32).reshape(6, 12, 3)
    params = {"axis": axis, "count": 3}
    parts = [both(ops.TAKE_PART, params, value, np.asarray(number, np.int32)) for number in NUMBERS]
    wanted = np.split(value, 3, axis)
    for number, part in zip(NUMBERS, parts, strict=True):
        np.testing.assert_array_equal(part, wanted[min(max(number, 0), 2)])
    joined = both(ops.JOIN_PARTS, Joining(axis), np.stack(parts[:3]))
    np.testing.assert_array_equal(joined, value)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_or_last_step_for_numbers_out_of_range(number: int) -> None:
    stack = np.arange(6, dtype=np.float32).reshape(3, 2)
    taken = both(ops.TAKE_STEP, {}, stack, np.asarray(number, np.int32))
    np.testing.assert_array_equal(taken, stack[min(max(number, 0), 2)])
