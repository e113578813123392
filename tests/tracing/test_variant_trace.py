"""The trace of one replica variant: what is inlined, where it is cut, what is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: arrays, tracers and equations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphdist.tracing.control_flow import CALLS
from graphdist.tracing.slots import Slot
from graphdist.tracing.synchronization_points import split_at_points
from graphdist.tracing.variant_trace import VariantTrace, needed, run_equations, variant_trace
from tests.tracing.traces import Float32, graph_of, total


def traced(
    fn: Callable[..., Any], *arguments: Any, constants: dict[Any, Any] | None = None
) -> VariantTrace:
    """Return the trace of a function of these arrays, taken apart."""
    closed = jax.make_jaxpr(fn)(*arguments)
    slots = [Slot(array, np.shape(array)) for array in arguments]
    return variant_trace(closed, slots, {} if constants is None else constants)


def names(equations: list[Any]) -> list[str]:
    return [equation.primitive.name for equation in equations]


X = np.array([1, 2, 3], np.float32)


def test_nested_jit_is_inlined() -> None:
    twice = jax.jit(lambda x: jax.jit(lambda y: y * 2.0)(x))
    trace = traced(lambda x: twice(x) + twice(x + 1.0), X)
    assert sorted(names(trace.equations)) == ["add", "add", "mul", "mul"]


def test_each_time_a_function_is_called_its_values_are_others() -> None:
    double = jax.jit(lambda x: x * 2.0)
    trace = traced(lambda x, y: [double(x), double(y)], X, X + 1)
    results = [variable for equation in trace.equations for variable in equation.outvars]
    assert len(set(results)) == 2
    inputs = {atom: slot.value() for atom, slot in trace.slots.items()}
    template = jax.make_jaxpr(lambda: ())().jaxpr
    given = run_equations(trace.equations, inputs, trace.returned, template)
    assert np.asarray(given).tolist() == [[2, 4, 6], [4, 6, 8]]


def test_an_argument_or_a_literal_that_is_returned_through_a_call() -> None:
    trace = traced(lambda x: jax.jit(lambda y: (y, 7.0))(x), X)
    array, number = trace.returned
    assert trace.equations == []
    assert trace.slots[array].array is X
    assert number.val == 7.0


def test_a_call_with_rules_of_its_own_stays_unless_a_collective_is_inside() -> None:
    @jax.custom_jvp
    def local(x: Any) -> Any:
        return x * 2.0

    @jax.custom_jvp
    def collective(x: Any) -> Any:
        return total(x * 2.0)

    local.defjvp(lambda x, t: (local(*x), t[0]))
    collective.defjvp(lambda x, t: (collective(*x), t[0]))
    assert names(traced(local, X).equations) == ["custom_jvp_call"]
    assert names(traced(collective, X).equations) == ["mul", "all_reduce"]
    (checkpoint,) = traced(jax.checkpoint(lambda x: x * 2.0), X).equations
    assert checkpoint.primitive.name in CALLS
    assert names(traced(jax.checkpoint(lambda x: total(x)), X).equations) == ["all_reduce"]


def test_a_loop_with_a_collective_inside_is_one_equation_where_the_trace_is_cut() -> None:
    def fn(x: Any) -> Any:
        y = lax.fori_loop(0, 3, lambda i, y: y + 1.0, x)
        z = lax.fori_loop(0, 3, lambda i, y: total(y), y * 2.0)
        return z - 1.0

    segments = split_at_points(traced(fn, X).equations)
    assert [names(equations) for equations, _ in segments] == [["scan", "mul"], ["sub"]]
    assert [point and point.primitive.name for _, point in segments] == ["scan", None]


def test_a_loop_that_only_reads_a_variable_is_a_point_too() -> None:
    v = Float32("v")
    found: list[Any] = []

    def fn(x: Any) -> Any:
        loop = lambda y: lax.fori_loop(0, 2, lambda i, z: z + v.read(), y)  # noqa: E731
        closed = jax.make_jaxpr(loop)(x)
        trace = variant_trace(closed, [Slot(x, ())], {})
        found.extend(
            point and point.primitive.name for _, point in split_at_points(trace.equations)
        )
        return x

    graph_of(fn, ())
    assert found == ["scan", None], "a switch takes no refs"


def test_equal_constants_of_two_variants_are_one_object_unless_they_are_large() -> None:
    known: dict[Any, Any] = {}

    def constants(array: Any) -> list[Any]:
        trace = traced(lambda x: x + array, jnp.zeros(array.shape), constants=known)
        return [slot.array for slot in trace.slots.values()][1:]

    small, large = np.arange(4, dtype=np.float32), np.zeros(1 << 15, np.float32)
    (first,), (second,) = constants(small), constants(small.copy())
    assert first is second
    (first,), (second,) = constants(small), constants(-small)
    assert first is not second
    zeros = np.zeros(4, np.float32)
    (first,), (second,) = constants(zeros), constants(zeros.astype(np.int32))
    assert first is not second
    (first,), (second,) = (
        constants(np.array([0.0, 1], np.float32)),
        constants(np.array([-0.0, 1], np.float32)),
    )
    assert first is not second, "their bits differ"
    (first,), (second,) = constants(large), constants(large.copy())
    assert first is not second


def test_what_nobody_needs_is_left_out_unless_it_has_an_effect() -> None:
    def fn(x: Any) -> Any:
        unused = jnp.sin(x)
        jax.debug.print("{}", x * 3.0)
        return x * 2.0, unused

    trace = traced(fn, X)
    kept = needed(trace.equations, trace.returned[:1])
    assert [bool(equation.effects) for equation in kept] == [False, True, False]
