"""The slice of a replica where its start is computed by many operations in a row."""

from __future__ import annotations

import pytest

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Operand, Stage, Value
from graphdist.ir.ops import ALL_GATHER, REPLICA_ID
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import PER_REPLICA, Type
from graphdist.passes.lowering.own_slices import own_slices
from graphdist.tracing.jax_ops import resolve

MANY = 3000
NUMBER = Type("i32", ())


def multiplied(builder: Builder, operand: Operand, factor: int) -> Operand:
    factors = (operand, Literal.of(factor, NUMBER))
    params = {"out_dtype": None}
    return builder.add(resolve("jax.mul"), factors, params, at=UNKNOWN, types=[NUMBER])[0]


def if_not_negative(builder: Builder, operand: Operand) -> Operand:
    """Return the index as NumPy counts: from the end if it is negative."""
    zero, length = Literal.of(0, NUMBER), Literal.of(8, NUMBER)
    types = [Type("bool", ())]
    (test,) = builder.add(resolve("jax.lt"), (operand, zero), at=UNKNOWN, types=types)
    (around,) = builder.add(resolve("jax.add"), (operand, length), at=UNKNOWN, types=[NUMBER])
    cases = (test, operand, around)
    return builder.add(resolve("jax.select_n"), cases, at=UNKNOWN, types=[NUMBER])[0]


def graph_of(factors: list[int | None]) -> Graph:
    """Return a slice of a gathered value from the replica's number times the factors on."""
    builder = Builder()
    x = Value(Type("f32", (4,), PER_REPLICA))
    (gathered,) = builder.add(ALL_GATHER, (x,), {"axis": 0, "group_size": 2}, at=UNKNOWN)
    start: Operand
    (start,) = builder.add(REPLICA_ID, (), {"group_size": 2}, at=UNKNOWN)
    for factor in factors:
        if factor is None:
            start = if_not_negative(builder, start)
        else:
            start = multiplied(builder, start, factor)
    operands, params = (gathered, start), {"slice_sizes": (4,)}
    types = [Type("f32", (4,))]
    (mine,) = builder.add(resolve("jax.dynamic_slice"), operands, params, at=UNKNOWN, types=types)
    return Graph("f", Stage.SPMD, 2, (x,), tuple(builder.nodes), (mine,), (), (True,))


@pytest.mark.parametrize(
    ("factors", "is_own"),
    [
        ([1] * MANY + [4], True),
        ([4] + [None] * MANY, True),
        ([1] * MANY + [2], False),
        ([-2, -2], True),
        ([-2, None, -2], False),
        ([None, -2, -2, None], True),
    ],
    ids=["multiplied", "checked", "half", "twice negative", "negative between", "checked around"],
)
def test_the_start_may_be_computed_in_many_steps(factors: list[int | None], is_own: bool) -> None:
    graph = graph_of(factors)
    after = own_slices(graph)
    assert (after.outputs[0] is graph.inputs[0]) == is_own
    assert (after is graph) != is_own
