"""What JAX can do, done inside a gd.function and inside a replica function: same results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any  # Any: arguments and results of features

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

import graphdist as gd
from tests.numerics import features_operations, features_programs, features_transformations
from tests.numerics.feature import EXACT, FEATURES, Feature, check_same

assert [features_operations, features_programs, features_transformations]  # they fill the table


@pytest.fixture(scope="module")
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.mark.long
@pytest.mark.parametrize("feature", FEATURES, ids=str)
def test_passes_through(feature: Feature, strategy: gd.Strategy) -> None:
    of_replica = [feature.arguments(replica) for replica in range(2)]
    jitted = jax.jit(feature.call)
    expected = [jitted(*arguments) for arguments in of_replica]
    check_same(expected[0], gd.function(feature.call)(*of_replica[0]), feature.tolerance)
    per_replica = strategy.experimental_distribute_values_from_function(
        lambda context: of_replica[context.replica_id_in_sync_group]
    )
    results = gd.function(lambda *args: strategy.run(feature.call, args))(*per_replica)
    for replica in range(2):
        given = strategy.experimental_local_results((results,))[replica]
        check_same((expected[replica],), given, feature.tolerance)


def test_python_numbers_are_weakly_typed(strategy: gd.Strategy) -> None:
    def scaled(x: jax.Array, number: Any) -> Any:
        return x * number, x.astype(jnp.bfloat16) * number, x.astype(jnp.int8) + 1

    x = jnp.arange(3.0)
    for number in (2, 2.5):
        expected = jax.jit(scaled)(x, number)
        check_same(expected, gd.function(scaled)(x, number), EXACT)
        results = gd.function(lambda *args: strategy.run(scaled, args))(x, number)
        check_same(expected, tuple(result.values[1] for result in results), EXACT)
    assert gd.function(lambda number: number * 1j)(2).dtype == jnp.complex64
    assert gd.function(lambda number: number + 1)(2).dtype == jnp.int32


def written(x: jax.Array) -> None:
    sys.stdout.write(f"called with {x}\n")  # once: `print` would write parts, and two replicas mix


def noisy(x: jax.Array) -> jax.Array:
    def body(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        jax.debug.print("sum {total}", total=total + x)
        return total + x, None

    jax.debug.print("first {}", x[0])
    jax.lax.scan(body, jnp.float32(0), x)
    jax.debug.callback(written, x[1])
    return x * 2


def test_debug_print(strategy: gd.Strategy, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(call: Callable[..., Any], *args: Any) -> list[str]:
        call(*args)
        jax.effects_barrier()
        return sorted(capsys.readouterr().out.splitlines())

    parts = jnp.arange(3.0), jnp.arange(3.0) + 10
    expected = [printed(jax.jit(noisy), part) for part in parts]
    assert len(expected[0]) == 5
    assert printed(gd.function(noisy), parts[0]) == expected[0]
    per_replica = strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )
    replicated = gd.function(lambda x: strategy.run(noisy, (x,)))
    assert printed(replicated, per_replica) == sorted(expected[0] + expected[1])


def test_an_effect_nobody_uses_stays() -> None:
    answers = []

    def on_host(x: Any) -> Any:
        answers.append(float(x))
        return x

    def twice(x: float) -> float:
        for _ in range(2):
            io_callback(on_host, jax.ShapeDtypeStruct((), jnp.float32), x)
        return x

    gd.function(twice)(1.5)
    jax.effects_barrier()
    assert answers == [1.5, 1.5]


def test_a_loop_under_vmap_reads_a_variable_in_condition_and_body(strategy: gd.Strategy) -> None:
    with strategy.scope():
        step = gd.Variable([1.0, 2.0])

    def climbed(rows: jax.Array, read: Callable[[], jax.Array]) -> jax.Array:
        def climb(row: jax.Array) -> jax.Array:
            return jax.lax.while_loop(
                lambda x: x.sum() < 4 * read().sum(), lambda x: x + read(), row
            )

        return jax.vmap(climb)(rows)

    rows = jnp.arange(8.0).reshape(4, 2)
    expected = climbed(rows, lambda: jnp.array([1.0, 2.0]))
    results = gd.function(lambda: strategy.run(lambda: climbed(rows, step.read_value)))()
    for result in strategy.experimental_local_results(results):
        check_same(expected, result, EXACT)


def test_a_write_in_the_condition_of_a_loop_is_refused(strategy: gd.Strategy) -> None:
    with strategy.scope():
        count = gd.Variable(0.0, "count", synchronization=gd.VariableSynchronization.ON_READ)

    def replica_fn() -> Any:
        return jax.lax.while_loop(lambda i: count.assign_add(1.0) < 3, lambda i: i + 1, 0)

    with pytest.raises(gd.TraceError, match="'count' is assigned in the condition"):
        gd.function(lambda: strategy.run(replica_fn))()
