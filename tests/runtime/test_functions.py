"""How often functions are compiled, what they keep alive, and what they take from their callers."""

from __future__ import annotations

import gc
import warnings
import weakref
from functools import partial
from typing import Any  # Any: arrays of NumPy and JAX alike

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


ZEROS: list[tuple[Any, Any]] = [
    (0.0, -0.0),
    ((1, (0.0,)), (1, (-0.0,))),
    (complex(0.0, 0.0), complex(0.0, -0.0)),
    (frozenset({0.0}), frozenset({-0.0})),
    (np.float32(0.0), np.float32(-0.0)),
]


@pytest.mark.parametrize("values", ZEROS)
def test_zeros_of_either_sign_are_other_programs(values: tuple[Any, Any]) -> None:
    traced: list[str] = []

    @gd.function(static_argnames="value")
    def step(x: jax.Array, value: Any) -> jax.Array:
        traced.append(repr(value))
        return x

    for value in (*values, *values):
        step(jnp.zeros(()), value=value)
    assert traced == [repr(value) for value in values]


@pytest.mark.parametrize("make", [float, np.float32, lambda text: (1, float(text))])
def test_what_is_no_number_is_one_program(make: Any) -> None:
    traced: list[None] = []

    @gd.function(static_argnames="value")
    def step(x: jax.Array, value: Any) -> jax.Array:
        traced.append(None)
        return x

    for _ in range(3):
        step(jnp.zeros(()), value=make("nan"))
    assert len(traced) == 1


def test_zeros_of_either_sign_where_numbers_are_static(strategy: gd.MirroredStrategy) -> None:
    def inverse(zero: float) -> jax.Array:
        return 1 / jnp.asarray(zero)

    local = strategy.experimental_local_results
    found = [local(strategy.run(inverse, args=(zero,)))[1] for zero in (0.0, -0.0, 0.0)]
    assert [float(value) for value in found] == [np.inf, -np.inf, np.inf]
    spread = gd.PerReplica([0.0, -0.0])
    assert [float(x) for x in local(strategy.run(inverse, args=(spread,)))] == [np.inf, -np.inf]


def test_replicas_that_return_zeros_of_either_sign(strategy: gd.MirroredStrategy) -> None:
    def replica_fn() -> float:
        return -0.0 if gd.get_replica_context().replica_id_in_sync_group else 0.0

    found = strategy.experimental_local_results(strategy.run(replica_fn))
    assert [repr(value) for value in found] == ["0.0", "-0.0"]


@pytest.mark.parametrize("values", [(1, 1.0, True), ((1,), (1.0,), (True,))])
def test_static_arguments_of_other_types_are_other_programs(values: tuple[Any, ...]) -> None:
    @gd.function(static_argnames="n")
    def scale(x: jax.Array, n: Any) -> jax.Array:
        n = n[0] if isinstance(n, tuple) else n
        return x * {int: 10, float: 20.0, bool: 30}[type(n)]

    results = [scale(jnp.int32(1), n=value) for value in values]
    assert [float(result) for result in results] == [10, 20, 30]
    assert [str(result.dtype) for result in results] == ["int32", "float32", "int32"]


def test_a_function_made_anew_for_every_call_is_warned_of(strategy: gd.Strategy) -> None:
    def scale(by: int, x: jax.Array) -> jax.Array:
        return x * by

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for by in range(9):
            strategy.run(partial(scale, by), args=(jnp.ones(()),))
    (warning,) = caught
    assert warning.category is gd.RetraceWarning
    assert "made another function" in str(warning.message)
    assert warning.filename == __file__


def test_a_warning_names_the_line_of_the_call() -> None:
    step = gd.function(lambda x, mode: x + 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for mode in range(8):
            step(1.0, str(mode))
    (warning,) = caught
    assert warning.filename == __file__
    assert "mode was '6', is '7'" in str(warning.message)


@pytest.mark.long
def test_what_a_lambda_holds_goes_with_it(strategy: gd.Strategy) -> None:
    def train() -> weakref.ref[gd.Variable]:
        with strategy.scope():
            w = gd.Variable(0.0)
        strategy.run(lambda: w.assign_add(1.0))
        assert float(w.read_value()) == 1
        return weakref.ref(w)

    gone = [train() for _ in range(3)]
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3
    assert [buffer for buffer in strategy.buffers.buffers if buffer is not None] == []


class Model:
    def __init__(self, start: float) -> None:
        self.weight = gd.Variable(start)
        self.traces = 0

    @gd.function(static_argnames="times")
    def step(self, x: jax.Array, times: int = 1) -> jax.Array:
        self.traces += 1
        return self.weight * x * times


@pytest.mark.long
def test_a_method_is_compiled_for_each_instance_and_goes_with_it() -> None:
    models = [Model(1.0), Model(2.0)]
    assert [float(model.step(jnp.float32(3), times=2)) for model in models] == [6, 12]
    assert [float(model.step(jnp.float32(3), times=2)) for model in models] == [6, 12]
    assert [model.traces for model in models] == [1, 1]
    gone = [weakref.ref(model) for model in models]
    del models
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_numpy_on_the_left_of_a_variable(strategy: gd.Strategy) -> None:
    with strategy.scope():
        w = gd.Variable(np.full(3, 2.0, np.float32))
    ones = np.ones((2, 3), np.float32)
    results = strategy.run(lambda: (ones @ w, np.float32(3) * w, ones - w))
    _, (product, scaled, summed) = strategy.experimental_local_results(results)
    assert product.tolist() == [6, 6]
    assert scaled.tolist() == [6, 6, 6]
    assert summed.tolist() == [[-1, -1, -1]] * 2
    assert isinstance(ones[0] * w, jax.Array)


def test_the_callers_arrays_are_copied(strategy: gd.Strategy) -> None:
    buffer = np.empty((500, 500), np.float32)
    w = None
    for _ in range(20):
        buffer[:] = 1
        with strategy.scope():
            w = gd.Variable(buffer)
        buffer[:] = 5
        assert float(np.max(w.read_value())) == 1
        buffer[:] = 2
        w.assign(buffer)
        buffer[:] = 7
        assert float(np.max(w.read_value())) == 2
    total = gd.function(lambda x: strategy.run(jnp.max, args=(x,)))
    for _ in range(20):
        buffer[:] = 3
        result = total(buffer)
        buffer[:] = 9
        assert float(strategy.experimental_local_results(result)[0]) == 3
