"""Elements of per-worker iterators in functions: each is used once, in order, and none is lost."""

from __future__ import annotations

from typing import Any  # Any: elements and results

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.parameter_server.input import FunctionOfElements, WorkerIterator
from graphdist.parameter_server.strategy import VariablesApart


def numbers(count: int) -> WorkerIterator:
    return WorkerIterator([np.float32(number) for number in range(count)])


@gd.function
def take(iterator: Any, x: Any) -> Any:
    return jnp.stack([next(iterator) for _ in range(x.shape[0])])


def taken(step: FunctionOfElements, iterator: WorkerIterator, count: int) -> list[float]:
    found: list[float] = step((iterator, np.zeros(count, np.float32)), {}).tolist()
    return found


def test_calls_of_several_shapes_skip_no_element() -> None:
    step, iterator = FunctionOfElements(take), numbers(12)
    found = [taken(step, iterator, count) for count in (1, 3, 1, 1, 3, 1, 2)]
    assert found == [[0], [1, 2, 3], [4], [5], [6, 7, 8], [9], [10, 11]]
    with pytest.raises(gd.OutOfRangeError):
        taken(step, iterator, 1)


def test_the_last_elements_are_there_for_a_call_that_needs_few() -> None:
    step, iterator = FunctionOfElements(take), numbers(4)
    assert taken(step, iterator, 3) == [0, 1, 2]
    assert taken(step, iterator, 1) == [3]


def test_a_function_may_ask_for_as_many_as_an_element_says() -> None:
    @gd.function
    def rows(iterator: Any) -> Any:
        return sum(next(iterator).sum() for _ in range(next(iterator).shape[0]))

    sizes = (2, 1, 1, 1, 5, 3, 1, 1, 1)
    iterator = WorkerIterator([np.ones(size, np.float32) for size in sizes])
    step = FunctionOfElements(rows)
    assert [float(step((iterator,), {})) for _ in range(3)] == [2, 5, 3]


def test_iterators_are_taken_from_apart_and_a_new_one_needs_no_other_trace() -> None:
    traces = 0

    @gd.function
    def both(first: Any, second: Any) -> Any:
        nonlocal traces
        traces += 1
        return next(first), next(second) + next(second)

    step = FunctionOfElements(both)
    for turn in range(3):
        first, second = numbers(9), numbers(9)
        found = [step((first, second), {}) for _ in range(3)]
        assert [tuple(map(float, pair)) for pair in found] == [(0, 1), (1, 5), (2, 9)]
        if turn == 0:
            at_first = traces
    assert traces == at_first


def test_elements_stay_for_a_call_that_has_not_run() -> None:
    is_apart = True

    @gd.function
    def apart(iterator: Any) -> Any:
        element = next(iterator)
        if is_apart:
            raise VariablesApart([])
        return element

    step, iterator = FunctionOfElements(apart), numbers(3)
    for _ in range(2):
        with pytest.raises(VariablesApart):
            step((iterator,), {})
    is_apart = False
    assert [float(step((iterator,), {})) for _ in range(3)] == [0, 1, 2]


def test_a_trace_has_the_elements_as_its_input() -> None:
    traced = FunctionOfElements(take).trace((numbers(2), jax.ShapeDtypeStruct((2,), "float32")), {})
    assert len(traced.graph.inputs) == 3
    assert len(traced.graph.outputs) == 1
