"""The count of steps: its rule, and the numbers in the interpreter and on devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from graphdist.ir import ops
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.interpreter import interpret
from graphdist.ir.op_parameters import CountingSteps
from graphdist.ir.parser import parse
from graphdist.ir.types import Type
from graphdist.runtime.emit import emit

TEXT = """graph f on 1 replica, stage spmd
(%n: i32[] mirrored) {
  %more, %due = count_step(%n) {every=3} : i32[] mirrored, i32[] mirrored
  return %more, %due
}"""


def test_every_third_step_is_due() -> None:
    graph = parse(TEXT)
    run = jax.jit(lambda n: emit(graph, [n]))
    count, due = np.int32(0), []
    for _ in range(7):
        outputs = interpret(graph, [[np.asarray(count)]], lambda node, arrays: []).outputs
        compiled = [int(value) for value in run(count)]
        assert [int(held[0]) for held in outputs] == compiled
        count = np.int32(compiled[0])
        due.append(compiled[1])
    assert due == [0, 0, 1, 0, 0, 1, 0]


def test_a_count_beyond_the_number_is_due() -> None:
    assert [int(value) for value in emit(parse(TEXT), [np.int32(17)])] == [0, 1]


@pytest.mark.parametrize(
    ("types", "every", "said"),
    [
        ([Type("f32", ())], 2, "the count is i32"),
        ([Type("i32", (2,))], 2, "the count is i32"),
        ([Type("i32", ())], 0, "at least 1"),
        ([Type("i32", ()), Type("i32", ())], 2, "takes 1 operand"),
    ],
)
def test_refused(types: list[Type], every: int, said: str) -> None:
    with pytest.raises(TypeRuleError, match=said):
        ops.COUNT_STEP.rule(types, CountingSteps(every), ())
