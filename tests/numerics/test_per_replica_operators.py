"""Arithmetic of per-replica values: what NumPy gives for each replica's component."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

Operator = Callable[..., Any]

FLOATS = [np.array([1, 2], np.float32), np.array([3, 5], np.float32)]
INTEGERS = [np.array([6, 9], np.int32), np.array([12, 7], np.int32)]
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv]
ARITHMETIC += [operator.mod, operator.pow]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge]
OF_BITS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]


@pytest.fixture
def strategy() -> gd.Strategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def distributed(strategy: gd.Strategy, components: list[Any]) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: components[context.replica_id_in_sync_group]
    )


def check(strategy: gd.Strategy, given: Any, expected: list[Any]) -> None:
    parts = strategy.experimental_local_results(given)
    assert isinstance(given, gd.PerReplica)
    for part, one in zip(parts, expected, strict=True):
        np.testing.assert_allclose(part, one, rtol=1e-6)


def in_a_function(operation: Operator) -> Operator:
    return gd.function(lambda *operands: operation(*operands))


@pytest.mark.long
@pytest.mark.parametrize("place", [lambda operation: operation, in_a_function])
@pytest.mark.parametrize("operation", [*ARITHMETIC, *COMPARISONS], ids=lambda one: one.__name__)
def test_with_numbers_arrays_and_each_other(
    operation: Operator, place: Callable[[Operator], Operator], strategy: gd.Strategy
) -> None:
    x = distributed(strategy, FLOATS)
    apply = place(operation)
    check(strategy, apply(x, 2.5), [operation(one, np.float32(2.5)) for one in FLOATS])
    check(strategy, apply(2.5, x), [operation(np.float32(2.5), one) for one in FLOATS])
    check(strategy, apply(x, x), [operation(one, one) for one in FLOATS])
    for array in (np.array([2, 3], np.float32), jnp.array([2, 3], np.float32)):
        host = np.asarray(array)
        check(strategy, apply(x, array), [operation(one, host) for one in FLOATS])
        check(strategy, apply(array, x), [operation(host, one) for one in FLOATS])


@pytest.mark.parametrize("operation", OF_BITS, ids=lambda one: one.__name__)
def test_bits(operation: Operator, strategy: gd.Strategy) -> None:
    x = distributed(strategy, INTEGERS)
    check(strategy, operation(x, 2), [operation(one, 2) for one in INTEGERS])
    check(strategy, operation(2, x), [operation(2, one) for one in INTEGERS])


@pytest.mark.parametrize(
    "operation",
    [operator.neg, operator.pos, operator.abs, operator.invert],
    ids=lambda one: one.__name__,
)
def test_of_one_operand(operation: Operator, strategy: gd.Strategy) -> None:
    x = distributed(strategy, [-one for one in INTEGERS])
    check(strategy, operation(x), [operation(-one) for one in INTEGERS])
    check(strategy, gd.function(operation)(x), [operation(-one) for one in INTEGERS])


def test_products_of_matrices(strategy: gd.Strategy) -> None:
    x, matrix = distributed(strategy, FLOATS), np.array([[1, 2], [3, 4]], np.float32)
    check(strategy, x @ matrix, [one @ matrix for one in FLOATS])
    check(strategy, matrix @ x, [matrix @ one for one in FLOATS])


def test_with_variables_and_mirrored_values(strategy: gd.Strategy) -> None:
    with strategy.scope():
        w = gd.Variable(np.array([2, 3], np.float32), name="w")
        own = gd.Variable(
            np.array([1, 1], np.float32),
            synchronization=gd.VariableSynchronization.ON_READ,
            aggregation=gd.VariableAggregation.SUM,
        )
    x = distributed(strategy, FLOATS)
    check(strategy, x * w, [one * np.array([2, 3], np.float32) for one in FLOATS])
    check(strategy, w * x, [one * np.array([2, 3], np.float32) for one in FLOATS])
    check(strategy, x + own, [one + 1 for one in FLOATS])
    w.assign([1.0, 1.0])
    check(strategy, x * w, FLOATS)
    mirrored = gd.Mirrored(jnp.array([2, 2], np.float32), 2)
    check(strategy, x * mirrored, [one * 2 for one in FLOATS])


def test_a_number_keeps_the_dtype_as_in_jax(strategy: gd.Strategy) -> None:
    x = distributed(strategy, [np.array([1, 2], np.int8), np.array([3, 4], np.int8)])
    assert [part.dtype for part in (x * 2).values] == [np.int8, np.int8]
    assert [part.dtype for part in (x * 2.5).values] == [np.float32, np.float32]
    assert [part.dtype for part in (x * np.int32(2)).values] == [np.int32, np.int32]


def test_replicas_of_unequal_shapes(strategy: gd.Strategy) -> None:
    (x,) = strategy.experimental_distribute_dataset([np.arange(1, 4, dtype=np.float32)])
    check(strategy, 2 * x + x, [[3, 6], [9]])
    assert float(gd.function(lambda x: strategy.reduce("SUM", x * x, axis=0))(x)) == 14
    with pytest.raises(
        gd.ArgumentTypeError, match=r"^PerReplica \+ jax.Array fails .*\(2,\), \(3,\)"
    ):
        x + jnp.ones(3)


def test_gradients_flow_through(strategy: gd.Strategy) -> None:
    @gd.function
    def gradient(x: Any) -> jax.Array:
        def total(scale: jax.Array) -> jax.Array:
            return strategy.reduce("SUM", scale * x, axis=0)

        return jax.grad(total)(jnp.float32(2))

    assert float(gradient(distributed(strategy, FLOATS))) == 11


def test_in_a_replica_function_it_is_the_own_component(strategy: gd.Strategy) -> None:
    x = distributed(strategy, FLOATS)
    check(strategy, strategy.run(lambda: 2 * x), [one * 2 for one in FLOATS])
    check(strategy, strategy.run(lambda: jnp.ones(2) * x), FLOATS)


def test_values_made_by_hand_take_the_strategy_of_the_scope() -> None:
    by_hand = gd.PerReplica([1.0, 2.0])
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        check(strategy, by_hand + 1, [2, 3])
    on_it = distributed(strategy, [np.float32(1), np.float32(2)])
    check(strategy, by_hand + on_it, [2, 4])


def test_one_replica_gives_an_array() -> None:
    strategy = gd.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        assert float(gd.PerReplica([2.0]) * 3) == 6


def test_numbers_make_no_programs_of_their_own(strategy: gd.Strategy) -> None:
    x = distributed(strategy, FLOATS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total = x
        for number in range(12):
            total += x * float(number)
    check(strategy, total, [one * 67 for one in FLOATS])


def test_equality_is_that_of_objects(strategy: gd.Strategy) -> None:
    x = distributed(strategy, FLOATS)
    assert x == x
    assert (x != x) is False
    assert len({x, x + 0}) == 2
