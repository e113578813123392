"""Initial values of variables in slices: made and placed slice by slice, with the same bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.ir.types import sharded
from tests.state.sharded_models import (
    FULL,
    SHAPE,
    bytes_on_one_device,
    cut_variable,
    numbers,
    strategy_of,
)


def test_host_arrays_are_placed_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[int] = []
    put = jax.device_put

    def recorded(value: Any, *args: Any, **options: Any) -> Any:
        placed.append(value.nbytes)
        return put(value, *args, **options)

    monkeypatch.setattr(jax, "device_put", recorded)
    value = numbers()
    w = cut_variable(value)
    assert placed == [FULL // 4] * 4
    other = numbers(1)
    w.assign(other)
    assert placed == [FULL // 4] * 8
    kept = other.copy()
    value[:], other[:] = 0, 0  # the caller's memory is the caller's
    np.testing.assert_array_equal(w, kept)


@pytest.mark.parametrize("dtype", ["f2", "f8", "i4", "i8", "?"])
def test_host_arrays_have_the_dtype_that_jax_gives_them(dtype: str) -> None:
    value = (10 * numbers()).astype(dtype)
    with strategy_of(4).scope():
        expected = gd.Variable(value)
        as_float = gd.Variable(value, dtype=jnp.bfloat16)
    for given, same in ((None, expected), (jnp.bfloat16, as_float)):
        w = cut_variable(value, dtype=given)
        assert (w.dtype, w.storage.sharded_along) == (same.dtype, 0)
        np.testing.assert_array_equal(np.asarray(w), np.asarray(same))


@pytest.mark.parametrize("place", ["one device", "mirrored", "in slices", "other slices"])
def test_arrays_of_jax_are_cut_and_not_shared(place: str) -> None:
    strategy = strategy_of(4, shard_parameters=True)
    devices = strategy.devices
    homes = {
        "one device": jax.devices()[6],
        "mirrored": devices.mirrored,
        "in slices": devices.sharding(sharded(0)),
        "other slices": strategy_of(2).devices.sharding(sharded(1)),
    }
    value = jax.device_put(numbers(), homes[place])
    with strategy.scope():
        w = gd.Variable(value, name="w")
    add = gd.function(lambda: w.assign(w + 1, read_value=False))
    for _ in range(3):
        add()
    assert bytes_on_one_device(w) == FULL // 4
    np.testing.assert_array_equal(value, numbers())
    np.testing.assert_array_equal(w, numbers() + 1 + 1 + 1)


KEY = jax.random.key(7)
FUNCTIONS = {
    "normal": lambda: 0.02 * jax.random.normal(KEY, SHAPE),
    "truncated": lambda: jax.random.truncated_normal(KEY, -2.0, 2.0, SHAPE) / 3.0 + 0.1,
    "bfloat16": lambda: jax.random.uniform(KEY, SHAPE, jnp.bfloat16),
    "transposed": lambda: jax.random.normal(KEY, SHAPE[::-1]).T,
    "variance": lambda: jax.nn.initializers.lecun_normal()(KEY, SHAPE),
    "orthogonal": lambda: jax.nn.initializers.orthogonal()(KEY, (128, 128)),
    "zeros": lambda: jnp.zeros(SHAPE),
    "numpy": lambda: numbers(3),
    "numpy of jax": lambda: np.asarray(jax.random.normal(KEY, SHAPE)) * 2,
    "scalar": lambda: 2.5,
}


@pytest.mark.long
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_make_the_same_bits(name: str) -> None:
    w = cut_variable(FUNCTIONS[name])
    with strategy_of(4).scope():
        same = gd.Variable(FUNCTIONS[name])
    assert w.storage.sharded_along == (None if name == "scalar" else 0)
    np.testing.assert_array_equal(np.asarray(w), np.asarray(same))


def test_no_operation_of_a_function_needs_the_full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphdist.state import initial_values as made

    needed: list[int] = []
    compiled = made._compiled

    def measured(*args: Any) -> Any:
        executable = compiled(*args)
        memory = executable.memory_analysis()
        needed.append(memory.temp_size_in_bytes + memory.output_size_in_bytes)
        return executable

    monkeypatch.setattr(made, "_compiled", measured)
    shape = (1024, 1024)
    w = cut_variable(lambda: 0.02 * jax.random.normal(KEY, shape) + 1.0, replicas=8)
    assert len(needed) > 2
    assert max(needed) < 5 * 4 * 1024 * 1024 // 8, needed
    assert bytes_on_one_device(w) == 4 * 1024 * 1024 // 8


def test_layers_made_alike_are_compiled_once() -> None:
    from graphdist.state.initial_values import _compiled

    keys = jax.random.split(KEY, 4)
    strategy = strategy_of(4, shard_parameters=True)
    counts = []
    for key in keys:
        with strategy.scope():
            gd.Variable(lambda key=key: 0.5 * jax.random.normal(key, SHAPE))
        counts.append(_compiled.cache_info().misses)
    assert len(set(counts[1:])) == 1


def test_functions_are_called_once_or_raise_their_own_error() -> None:
    calls: list[int] = []

    def make(value: Any) -> Any:
        calls.append(1)
        return value()

    cut_variable(lambda: make(lambda: jnp.ones(SHAPE)))
    cut_variable(lambda: make(numbers))
    assert len(calls) == 2
    with pytest.raises(ZeroDivisionError):
        cut_variable(lambda: 1 / 0)
    with pytest.raises(gd.ArgumentTypeError, match="'w' is made from a object"):
        cut_variable(lambda: object())
    with pytest.raises(gd.ArgumentTypeError, match="'w' is made from a ndarray"):
        cut_variable(np.full(SHAPE, None))


def test_a_function_that_keeps_a_key_is_refused() -> None:
    class Keys:
        def __init__(self) -> None:
            self.key = jax.random.key(0)

        def next(self) -> Any:
            self.key, key = jax.random.split(self.key)
            return key

    keys = Keys()
    cut_variable(lambda: jax.random.normal(keys.next(), SHAPE))
    with pytest.raises(gd.ArgumentError, match="variable 'w' is made by a function that keeps"):
        cut_variable(lambda: jax.random.normal(keys.next(), SHAPE))


def test_nothing_is_compiled_where_jax_is_set_so() -> None:
    with jax.disable_jit():
        w = cut_variable(FUNCTIONS["zeros"])
    assert bytes_on_one_device(w) == FULL // 4


def test_made_in_a_function_or_from_another_variable() -> None:
    strategy = strategy_of(4, shard_parameters=True)
    made: list[gd.Variable] = []

    @gd.function
    def step() -> Any:
        if not made:
            made.append(gd.Variable(lambda: jax.random.normal(KEY, SHAPE)))
        return made[0].read_value().sum()

    with strategy.scope():
        total = step()
        twice = gd.Variable(lambda: made[0] * 2)
    assert float(total) == pytest.approx(np.asarray(made[0]).sum(), abs=1e-3)
    assert made[0].storage.sharded_along == twice.storage.sharded_along == 0
    np.testing.assert_array_equal(twice, 2 * np.asarray(made[0]))


@pytest.mark.parametrize("options", [{"shard_parameters": True}, {}], ids=["in slices", "in full"])
def test_shapes_and_a_function_that_initializes(options: dict[str, Any]) -> None:
    strategy = strategy_of(4, **options)
    shapes = jax.eval_shape(lambda: {"w": jnp.zeros(SHAPE), "b": jnp.zeros(3)})
    with strategy.scope():
        params = gd.variables(shapes)
    initialize = gd.function(
        lambda key: gd.assign(params, {"w": jax.random.normal(key, SHAPE), "b": jnp.ones(3)})
    )
    total = gd.function(lambda: params["w"].read_value().sum() + params["b"].read_value().sum())
    with pytest.raises(gd.RuntimeFailure, match="declared by its shape"):
        total()
    initialize(KEY)
    along = 0 if options else None
    assert params["w"].storage.sharded_along == along
    np.testing.assert_allclose(params["w"], jax.random.normal(KEY, SHAPE), rtol=1e-6)
    initialize(KEY)
    assert np.isfinite(float(total()))
