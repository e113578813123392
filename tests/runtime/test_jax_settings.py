"""JAX's settings decide which program runs, whenever and however they are made."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any  # Any: settings of JAX are of any type

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

OTHER: dict[str, tuple[str, Any]] = {
    "enable_x64": ("jax_enable_x64", True),
    "default_matmul_precision": ("jax_default_matmul_precision", "float32"),
    "threefry_partitionable": ("jax_threefry_partitionable", False),
    "numpy_dtype_promotion": ("jax_numpy_dtype_promotion", "strict"),
    "numpy_rank_promotion": ("jax_numpy_rank_promotion", "raise"),
    "default_prng_impl": ("jax_default_prng_impl", "rbg"),
    "debug_nans": ("jax_debug_nans", True),
    "debug_infs": ("jax_debug_infs", True),
    "gumbel": ("jax_high_dynamic_range_gumbel", True),
}
UNKNOWN_TO_JAX = {"default_prng_impl", "debug_nans", "debug_infs"}
CONTEXT = jax.make_user_context(0)
OTHER_CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    **{name: lambda n=name, v=value: getattr(jax, n)(v)  # type: ignore[misc]
       for name, (_, value) in OTHER.items() if hasattr(jax, name)},
    "disable_jit": jax.disable_jit,
    "user_context": lambda: CONTEXT(1),
    "default_device": lambda: jax.default_device(jax.devices()[1]),
}  # fmt: skip


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def counted() -> tuple[Any, list[Any]]:
    traces: list[Any] = []

    @gd.function
    def square(x: jax.Array) -> jax.Array:
        traces.append(jnp.result_type(float))
        return x @ x

    return square, traces


@pytest.mark.parametrize("name", OTHER_CONTEXTS)
def test_a_context_manager_has_a_program_of_its_own(name: str) -> None:
    square, traces = counted()
    x = jnp.ones((2, 2))
    square(x)
    for _ in range(2):
        with OTHER_CONTEXTS[name]():
            assert square(x).tolist() == [[2, 2], [2, 2]]
            assert len(traces) == 2
        assert square(x).tolist() == [[2, 2], [2, 2]]
        assert len(traces) == 2


@pytest.mark.parametrize("name", OTHER)
def test_what_is_set_for_the_process_counts_as_for_jax(name: str) -> None:
    setting, value = OTHER[name]
    square, traces = counted()
    of_jax: list[Any] = []
    jitted = jax.jit(lambda x: of_jax.append(x) or x @ x)  # type: ignore[func-returns-value]
    x = jnp.ones((2, 2))
    before = jax.config.values[setting]
    for now in (before, value, value, before):
        jax.config.update(setting, now)
        try:
            square(x)
            jitted(x)
        finally:
            jax.config.update(setting, before)
    assert len(traces) == (2 if name in UNKNOWN_TO_JAX else len(of_jax))
    assert len(of_jax) == (1 if name in {*UNKNOWN_TO_JAX, "gumbel"} else 2)


def test_a_thread_has_the_settings_of_its_own() -> None:
    square, _ = counted()
    x = np.ones((2, 2))
    found = {}

    def call() -> None:
        found["thread"] = square(x).dtype

    with jax.enable_x64(True):
        found["here"] = square(x).dtype
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert found == {"here": np.float64, "thread": np.float32}


def test_the_precision_is_that_of_the_call(strategy: gd.Strategy) -> None:
    step = gd.function(lambda x: strategy.run(lambda x: x @ x, args=(x,)))
    x = jnp.ones((2, 2))
    with jax.default_matmul_precision("float32"):
        precise = step.trace(x)
    default = step.trace(x)
    assert "precision=none" in str(default.graph)
    assert "precision=none" not in str(precise.graph)


def test_x64_switched_on_later(strategy: gd.Strategy) -> None:
    third = np.full(3, 1 / 3)

    def copied(x: Any) -> Any:
        return strategy.run(jnp.copy, (x,))

    twice = gd.function(lambda x: strategy.reduce("SUM", strategy.run(jnp.copy, (x,)), axis=None))
    rows = np.arange(4.0).reshape(4, 1) / 3
    batches = strategy.experimental_distribute_dataset([rows])
    total = gd.function(lambda batch: strategy.reduce("SUM", batch, axis=0))
    assert twice(third).dtype == copied(third).values[0].dtype == np.float32
    assert total(next(iter(batches))).dtype == np.float32
    with jax.enable_x64(True):
        assert twice(third).tolist() == (2 * third).tolist()
        assert copied(third).values[0].tolist() == third.tolist()
        assert total(next(iter(batches))).tolist() == rows.sum(0).tolist()
        assert gd.function(lambda x: x * 2)(0.1).dtype == np.float64
        with strategy.scope():
            w = gd.Variable(third)
            mean = gd.metrics.Mean(dtype="float64")
        strategy.run(lambda: w.assign_add(w * 2))
        mean.update_state(third)
        assert w.read_value().tolist() == (third + third * 2).tolist()
        assert mean.result() == third.mean()
    assert twice(third).dtype == np.float32


def test_arrays_of_64_bits_become_32_once_it_is_off(strategy: gd.Strategy) -> None:
    with jax.enable_x64(True):
        array = jnp.full(2, 1 / 3)
        own = strategy.experimental_distribute_values_from_function(
            lambda context: np.float64(context.replica_id_in_sync_group) / 3
        )
    doubled = gd.function(lambda x: x * 2)(array)
    assert (doubled.dtype, doubled.tolist()) == (np.float32, [np.float32(2 / 3)] * 2)
    of_each = strategy.run(lambda x: x * 2, args=(own,))
    assert [float(value) for value in of_each.values] == [0, np.float32(2 / 3)]
    assert strategy.reduce("SUM", own, axis=None).dtype == np.float32


@pytest.mark.parametrize("is_disabled", [False, True])
def test_a_variable_of_64_bits_keeps_them(strategy: gd.Strategy, is_disabled: bool) -> None:
    with jax.enable_x64(True), strategy.scope():
        variables = [gd.Variable(np.full(2, 1 / 3), name=f"v{i}") for i in range(4)]
    step = gd.function(lambda: [one.assign_add(one, read_value=False) for one in variables])
    with jax.disable_jit(is_disabled):
        step()
    assert [one.read_value().tolist() for one in variables] == [[2 / 3, 2 / 3]] * 4
    with pytest.raises(gd.errors.ArgumentError, match=r"float64.*float32") as caught:
        variables[0].assign(np.ones(2))
    assert "jax_enable_x64" in caught.value.hint


def test_stages_mean_what_was_traced(strategy: gd.Strategy) -> None:
    def replica_fn(x: jax.Array) -> Any:
        noise = jax.random.normal(jax.random.key(0), (3,))
        return jax.lax.fori_loop(0, 3, lambda i, total: total * 2 + x.sum() * 0.1, 1.0), noise

    step = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))
    with jax.enable_x64(True), jax.threefry_partitionable(False):
        traced = step.trace(np.ones(2))
        expected = traced.lower().as_text("stablehlo")
    assert "f64" in expected
    assert traced.lower().as_text("stablehlo") == expected


def test_the_warning_names_the_setting() -> None:
    square, _ = counted()
    for size in range(1, 8):
        square(jnp.ones((size, size)))
    with warnings.catch_warnings(record=True) as caught, jax.enable_x64(True):
        warnings.simplefilter("always")
        square(jnp.ones((7, 7), np.float32))
    (warning,) = caught
    assert warning.category is gd.RetraceWarning
    assert re.search("now because jax_enable_x64 was False, is True.", str(warning.message))


@pytest.mark.parametrize("count", [1, 2])
def test_steps_are_traced_under_strict_promotion(count: int) -> None:
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(count)])
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        with strategy.scope():
            w = gd.Variable(jnp.ones(3))
            mean = gd.metrics.Mean()

        def replica_fn(x: jax.Array) -> Any:
            context = gd.get_replica_context()
            w.assign_sub(context.all_reduce("MEAN", x.mean(0)))
            mean.update_state(x)
            return context.all_reduce("MEAN", jnp.arange(3)), context.all_gather(x, axis=0)

        (batch,) = strategy.experimental_distribute_dataset([np.ones((4, 3), np.float32)])
        gd.function(lambda x: strategy.run(replica_fn, args=(x,)))(batch)
        np.testing.assert_allclose(w.read_value(), 0, atol=1e-6)
        np.testing.assert_allclose(mean.result(), 1, rtol=1e-6)
