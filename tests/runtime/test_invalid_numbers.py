"""`jax_debug_nans` and `jax_debug_infs`: which node, on which replica, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.runtime.buffers import BufferStore
from graphdist.runtime.invalid_numbers import NumberCheck

ROWS = np.array([[1, 2], [3, 4], [5, 6], [7, -8]], "f")


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def refused(call: Callable[[], Any]) -> gd.errors.InvalidNumberError:
    with pytest.raises(FloatingPointError) as caught:
        call()
    assert isinstance(caught.value, gd.errors.InvalidNumberError)
    return caught.value


def line_of(error: gd.GraphdistError) -> str:
    assert error.source is not None
    assert error.source.frame is not None
    return error.source.frame.text


@pytest.mark.long
@pytest.mark.parametrize("is_disabled", [False, True])
def test_the_node_the_replica_and_the_line(strategy: gd.Strategy, is_disabled: bool) -> None:
    with strategy.scope():
        w = gd.Variable(jnp.ones(2), name="w")
        count = gd.Variable(
            0.0,
            synchronization=gd.VariableSynchronization.ON_READ,
            aggregation=gd.VariableAggregation.SUM,
        )
    batch, sound = strategy.experimental_distribute_dataset([ROWS, abs(ROWS)])

    def replica_fn(x: jax.Array) -> jax.Array:
        count.assign_add(1.0)
        logarithm = jnp.log(x)
        w.assign(gd.get_replica_context().all_reduce("MEAN", logarithm.sum(0)))
        return jnp.exp(x)

    step = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))
    step(sound)
    before = w.read_value().tolist()
    with jax.debug_nans(True), jax.disable_jit(is_disabled):
        step(sound)
        error = refused(lambda: step(batch))
    assert error.what == "jax.log gives nan at [1, 1] on replica 1 of 2, of -8.0"
    assert line_of(error) == "logarithm = jnp.log(x)"
    assert "jax.log(%x)" in error.node
    assert w.read_value().tolist() == before
    assert count.read_value() == 4
    step(batch)
    assert np.isnan(w.read_value()).tolist() == [False, True]


def test_in_a_loop_the_node_inside(strategy: gd.Strategy) -> None:
    def body(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = jnp.sqrt(carry - x)
        return carry, x

    step = gd.function(lambda x: jax.lax.scan(body, jnp.float32(9), x)[0])
    with jax.debug_nans(True):
        error = refused(lambda: step(jnp.float32([0, 0, 2, 1])))
    assert error.what.startswith("jax.sqrt gives nan, of -")
    assert line_of(error) == "carry = jnp.sqrt(carry - x)"


def test_what_is_not_used_is_not_refused() -> None:
    step = gd.function(lambda x: jnp.where(x > 0, jnp.log(x), 0))
    with jax.debug_nans(True), jax.debug_infs(True):
        assert step(jnp.float32([-1, 0, 1])).tolist() == [0, 0, 0]


def test_of_two_the_one_that_is_used() -> None:
    @gd.function
    def step(x: jax.Array) -> jax.Array:
        unused = jnp.where(x > 9, jnp.log(x), 0)
        return unused + jnp.sqrt(x)

    with jax.debug_nans(True):
        error = refused(lambda: step(jnp.float32([4, -4])))
    assert error.what == "jax.sqrt gives nan at [1], of -4.0"


def test_what_was_given_is_named(strategy: gd.Strategy) -> None:
    with strategy.scope():
        variables = [gd.Variable(jnp.ones(2), name=f"v{i}") for i in range(5)]
    step = gd.function(lambda x: [one.assign_add(x, read_value=False) for one in variables])
    step(jnp.ones(2))  # now they lie in one buffer
    given = np.array([0, np.nan], "f")
    with jax.debug_nans(True):
        error = refused(lambda: step(given))
        assert error.what == "argument 'x' holds nan before the step at [1]"
    variables[3].assign(jnp.float32([0, np.nan]))
    with jax.debug_nans(True):
        error = refused(lambda: step(jnp.ones(2)))
    assert error.what == "variable 'v3' holds nan before the step at [1]"
    assert [one.read_value().tolist() for one in variables[:2]] == [[2, 2], [2, 2]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64"])
def test_infinity(dtype: str) -> None:
    divide = gd.function(lambda x: jnp.ones((), dtype) / x)
    with jax.debug_nans(True):
        if dtype != "complex64":
            divide(jnp.zeros((), dtype))
    with jax.debug_infs(True), jax.debug_nans(True):
        error = refused(lambda: divide(jnp.zeros((), dtype)))
    assert error.what.startswith("jax.div gives ")
    assert "jax.debug_nans and jax.debug_infs" in error.hint


def test_a_constant_and_a_result_that_is_an_argument() -> None:
    with jax.debug_nans(True):
        error = refused(lambda: gd.function(lambda x: (x, np.float32(np.nan)))(1.0))
        assert error.what == "result 1 is nan after the step: the program says so"
        error = refused(lambda: gd.function(lambda x: x)(np.float32(np.nan)))
        assert error.what == "argument 'x' holds nan before the step"
    assert np.isnan(gd.function(lambda x: x)(np.float32(np.nan)))


def test_a_program_made_before_is_checked_too() -> None:
    w = gd.Variable(1.0, name="w")
    step = gd.function(lambda x: w.assign(w / x))
    step(1.0)
    jax.config.update("jax_debug_nans", True)
    try:
        error = refused(lambda: step(float("nan")))
    finally:
        jax.config.update("jax_debug_nans", False)
    assert error.what == "argument 'x' holds nan before the step"
    assert float(w) == 1


def test_code_that_is_called_back_finds_the_lock_free(strategy: gd.Strategy) -> None:
    with strategy.scope():
        w = gd.Variable(jnp.ones(2), name="w")
    seen = []

    def note() -> None:
        with BufferStore.lock:
            seen.append(True)

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: jax.Array) -> jax.Array:
            jax.debug.callback(note)
            w.assign(gd.get_replica_context().all_reduce("SUM", x))
            return x

        return strategy.run(replica_fn, args=(x,))

    x = jnp.ones(2)
    with jax.debug_nans(True):
        step(x)
        step(x)
    with jax.disable_jit():
        step(x)
    jax.effects_barrier()
    assert seen == [True] * 6
    assert w.read_value().tolist() == [2, 2]


ELSEWHERE = [
    lambda: gd.CentralStorageStrategy(["cpu:0", "cpu:1"]),
    lambda: gd.OneDeviceStrategy("cpu:1"),
]
"""Strategies of which a step takes copies of some variables."""


@pytest.mark.parametrize("make", ELSEWHERE)
def test_variables_that_lie_elsewhere_are_not_lost(make: Callable[[], gd.Strategy]) -> None:
    strategy, plain = make(), gd.Variable(2.0, name="plain")
    with strategy.scope():
        w = gd.Variable(jnp.ones(2), name="w")

    @gd.function
    def step(x: Any) -> None:
        w.assign(jnp.log(x))
        plain.assign_add(1.0)

    with jax.debug_nans(True), strategy.scope():
        step(jnp.ones(2))
        refused(lambda: step(-jnp.ones(2)))
        assert (w.read_value().tolist(), float(plain)) == ([0, 0], 3)
        step(jnp.ones(2))
    assert float(plain) == 4


@pytest.mark.parametrize("make", [lambda: gd.MirroredStrategy(["cpu:0", "cpu:1"]), *ELSEWHERE])
def test_what_another_thread_has_written_meanwhile_stays(
    make: Callable[[], gd.Strategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, plain = make(), gd.Variable(2.0, name="plain")
    with strategy.scope():
        w = gd.Variable(jnp.ones(2), name="w")

    @gd.function
    def step(x: Any) -> None:
        w.assign(jnp.log(x))
        plain.assign_add(1.0)

    check = NumberCheck.error

    def check_late(*given: Any) -> Any:
        thread = threading.Thread(target=lambda: w.assign(jnp.full(2, 5.0)))
        thread.start()
        thread.join()
        return check(*given)

    monkeypatch.setattr(NumberCheck, "error", check_late)
    with jax.debug_nans(True), strategy.scope():
        refused(lambda: step(-jnp.ones(2)))
    assert (w.read_value().tolist(), float(plain)) == ([5, 5], 2)


def test_outside_of_functions(strategy: gd.Strategy) -> None:
    own = strategy.experimental_distribute_values_from_function(
        lambda context: np.float32(context.replica_id_in_sync_group)
    )
    with jax.debug_nans(True):
        error = refused(lambda: strategy.run(lambda x: x / x, args=(own,)))
    assert error.what == "jax.div gives nan on replica 0 of 2, of 0.0 and 0.0"
