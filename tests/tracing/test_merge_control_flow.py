"""Loops and branches of replica variants that hold collectives or assignments, merged to one.

Padding of arguments is nan, which would reach every result that it could reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: arrays and tracers

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from graphdist.ir.types import PER_REPLICA
from graphdist.tracing.trace_in_progress import TraceError
from tests.tracing.traces import Float32, count, merged, total


def test_a_scan_carries_values_of_each_variants_shape() -> None:
    def fn(x: Any) -> list[Any]:
        def step(carry: Any, y: Any) -> tuple[Any, Any]:
            carry = carry + total(jnp.sum(carry)) * y
            return carry, carry * 10.0

        return list(lax.scan(step, x, jnp.float32([1, 2])))

    variants = merged([fn, fn], [(1,), (2,)])
    assert count(variants.graph, "scan") == 1
    assert count(variants.graph, "all_reduce") == 1
    one, other = variants.run([[1], [2, 3]])[0]
    # 6 are added to each; the sum is then 24, of which twice is added.
    assert one == [[55], [[70], [550]]]
    assert other == [[56, 57], [[80, 90], [560, 570]]]


def test_a_scan_over_what_differs_in_shape_but_not_in_length() -> None:
    def fn(x: Any) -> list[Any]:
        return [lax.scan(lambda c, row: (c + total(jnp.sum(row)), row * c), jnp.float32(0), x)[1]]

    results, _ = merged([fn, fn], [(2, 1), (2, 2)]).run([[[1], [2]], [[3, 4], [5, 6]]])
    assert results == [[[[0], [16]]], [[[0, 0], [40, 48]]]]


def test_a_loop_reads_and_assigns_a_variable_of_each_replica() -> None:
    v = Float32("v", layout=PER_REPLICA)

    def fn(x: Any) -> list[Any]:
        def step(i: Any, y: Any) -> Any:
            v.assign(v.read() + jnp.sum(y))
            return y * 2.0

        return [lax.fori_loop(0, 3, step, x)]

    results, state = merged([fn, fn], [(1,), (2,)]).run([[1], [1, 2]], v=[0, 100])
    assert results == [[[8]], [[8, 16]]]
    assert state["v"] == [7, 121]


def test_a_while_loop_that_all_leave_together() -> None:
    def fn(x: Any) -> list[Any]:
        def goes_on(carry: Any) -> Any:
            return carry[0] < 20.0

        def body(carry: Any) -> Any:
            return total(jnp.sum(carry[1])), carry[1] * 2.0

        return list(lax.while_loop(goes_on, body, (jnp.float32(0), x)))

    results, _ = merged([fn, fn], [(1,), (3,)]).run([[1], [1, 1, 1]])
    assert results == [[32, [16]], [32, [16, 16, 16]]]


def test_branches_on_what_is_the_same_on_all_replicas() -> None:
    def fn(x: Any) -> list[Any]:
        sum_of_all = total(jnp.sum(x))
        return [lax.cond(sum_of_all > 0, lambda: x + total(x[0]), lambda: -x)]

    variants = merged([fn, fn], [(1,), (2,)])
    assert variants.run([[1], [2, 3]])[0] == [[[4]], [[5, 6]]]
    assert variants.run([[-1], [-2, -3]])[0] == [[[1]], [[2, 3]]]


def test_what_variants_compute_before_a_loop_in_it_and_after() -> None:
    def fn(scale: float) -> Callable[[Any], list[Any]]:
        def replica(x: Any) -> list[Any]:
            before = x * scale
            after = lax.fori_loop(0, 2, lambda i, y: y + total(jnp.sum(before)), before)
            return [after - before, jnp.sum(after)]

        return replica

    results, _ = merged([fn(1), fn(10)], [(1,), (2,)]).run([[1], [2, 3]])
    assert results == [[[102], 103], [[102, 102], 254]]


def test_a_loop_in_a_loop() -> None:
    def fn(x: Any) -> list[Any]:
        inner = lambda i, y: y + total(jnp.sum(y))  # noqa: E731
        return [lax.fori_loop(0, 2, lambda i, y: lax.fori_loop(0, 2, inner, y), x)]

    variants = merged([fn, fn], [(1,), (1,)])
    assert count(variants.graph, "all_reduce") == 1
    assert variants.run([[1], [2]])[0] == [[[121]], [[122]]]


def test_a_loop_without_a_collective_is_each_variants_own() -> None:
    def fn(turns: int) -> Callable[[Any], list[Any]]:
        return lambda x: [total(jnp.sum(lax.fori_loop(0, turns, lambda i, y: y * 2.0, x)))]

    results, _ = merged([fn(1), fn(3)], [(1,), (2,)]).run([[1], [1, 1]])
    assert results == [[18], [18]]


def of_turns(turns: int) -> Callable[[Any], list[Any]]:
    return lambda x: [lax.fori_loop(0, turns, lambda i, y: y + total(jnp.sum(y)), x)]


def backwards(x: Any) -> list[Any]:
    return [lax.scan(lambda c, y: (c, total(y)), 0.0, x, reverse=True)[1]]


def forwards(x: Any) -> list[Any]:
    return [lax.scan(lambda c, y: (c, total(y)), 0.0, x)[1]]


def of_floats(x: Any) -> list[Any]:
    return [lax.scan(lambda c, _: (c + total(1.0), None), jnp.float32(0), None, 2)[0]]


def of_integers(x: Any) -> list[Any]:
    return [lax.scan(lambda c, _: (c + 1, total(1.0)), jnp.int32(0), None, 2)[1][0]]


def other_collective(x: Any) -> list[Any]:
    return [lax.fori_loop(0, 2, lambda i, y: y + total(jnp.sum(y) * 2.0).astype(y.dtype), x)]


def no_collective_in_the_second(x: Any) -> list[Any]:
    return [lax.cond(x[0] > 0, lambda: total(x), lambda: x)]


def two_in_the_first(x: Any) -> list[Any]:
    return [lax.cond(x[0] > 0, lambda: total(total(x)), lambda: x)]


def in_a_linear_solve(scale: float) -> Callable[[Any], list[Any]]:
    def fn(x: Any) -> list[Any]:
        matvec = lambda y: total(y) * scale  # noqa: E731
        return [lax.custom_linear_solve(matvec, x, lambda _, b: b, symmetric=True)]

    return fn


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (of_turns(2), of_turns(3), "execute different loops or branches"),
        (backwards, forwards, "execute different loops or branches"),
        (of_floats, of_integers, "disagree|to scan, and|different loops"),
        (no_collective_in_the_second, two_in_the_first, "that another replica does not execute"),
        (
            in_a_linear_solve(1),
            in_a_linear_solve(2),
            "inside custom_linear_solve is reached by 2 replica variants",
        ),
    ],
)
def test_variants_that_do_not_loop_alike_are_refused(
    first: Callable[[Any], Any], second: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        merged([first, second], [(2,), (2,)])


def test_a_gradient_through_a_loop_of_variants() -> None:
    def fn(x: Any) -> list[Any]:
        def loss(y: Any) -> Any:
            step = lambda c, _: (c * total(jnp.sum(y)), None)  # noqa: E731
            return lax.scan(step, jnp.float32(1), None, length=2)[0]

        return [jax.grad(loss)(x)]

    results, _ = merged([fn, fn], [(1,), (2,)]).run([[1], [2, 3]])
    # Each replica's loss is the square of the sum, 6: its derivative is 12, of two losses 24.
    assert results == [[[24]], [[24, 24]]]
