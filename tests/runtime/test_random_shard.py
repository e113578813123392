"""Random bits in slices, against those of JAX in full."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir.op_parameters import RandomBits
from graphdist.runtime.random_shard import element_numbers, random_shard
from tests.state.sharded_models import strategy_of


def sliced_bits(shape: tuple[int, ...], width: int, axis: int, count: int) -> Any:
    """Return random bits made in so many slices, one by one."""
    params = RandomBits(axis, shape, width, group_size=count)
    length, key = shape[axis] // count, jax.random.key(3)
    starts = [jnp.int32(number * length) for number in range(count)]
    shards = [random_shard(key, params, start, length) for start in starts]
    return np.concatenate(shards, axis)


@pytest.mark.long
@pytest.mark.parametrize(("shape", "axis"), [((4, 8), 0), ((8, 3), 0), ((2, 4, 4), 2), ((8,), 0)])
@pytest.mark.parametrize("width", [8, 16, 32])
def test_bits_are_those_of_jax(shape: tuple[int, ...], axis: int, width: int) -> None:
    expected = jax.random.bits(jax.random.key(3), shape, f"uint{width}")
    np.testing.assert_array_equal(sliced_bits(shape, width, axis, 4), expected)


@pytest.mark.long
def test_wide_bits_are_those_of_jax() -> None:
    with jax.enable_x64(True):
        expected = jax.random.bits(jax.random.key(3), (4, 8), "uint64")
        np.testing.assert_array_equal(sliced_bits((4, 8), 64, 1, 4), expected)


@pytest.mark.long
@given(
    st.lists(st.integers(1, 2**20), min_size=1, max_size=4).filter(lambda s: prod(s) < 2**64),
    st.data(),
)
def test_numbers_of_elements_have_64_bits(shape: list[int], data: st.DataObject) -> None:
    for axis, size in enumerate(shape):
        start = data.draw(st.integers(0, size - 1))
        length = min(2, size - start)
        sliced = [length if i == axis else min(size, 2) for i, size in enumerate(shape)]
        halves = element_numbers(tuple(shape), tuple(sliced), axis, jnp.int32(start))
        high, low = (np.asarray(half, np.uint64) for half in halves)
        first = [start if i == axis else 0 for i in range(len(shape))]
        expected = [
            sum(
                (begin + i) * prod(shape[d + 1 :])
                for d, (begin, i) in enumerate(zip(first, at, strict=True))
            )
            for at in np.ndindex(*sliced)
        ]
        assert (high << np.uint64(32) | low).ravel().tolist() == expected


INITIALIZERS: dict[str, Any] = {
    "normal": lambda key: jax.random.normal(key, (256, 128)),
    "uniform": lambda key: jax.random.uniform(key, (256, 128), minval=-0.1),
    "lecun": lambda key: jax.nn.initializers.lecun_normal()(key, (256, 128)),
    "glorot": lambda key: jax.nn.initializers.glorot_uniform()(key, (256, 128), jnp.bfloat16),
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.3, (256, 128)).astype(jnp.float32),
    "old key": lambda key: jax.random.normal(jax.random.key_data(key), (256, 128)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(INITIALIZERS))
def test_initializing_functions_make_slices(name: str) -> None:
    make, key = INITIALIZERS[name], jax.random.key(0)
    shape = jax.eval_shape(make, key)
    with strategy_of(4, shard_parameters=True).scope():
        w = gd.Variable(shape, name="w")
    initialize = gd.function(lambda key: w.assign(make(key), read_value=False))
    compiled = initialize.trace(key).lower().compile()
    # In full, the key's hashes alone are four arrays of four bytes an element.
    assert compiled.memory.temp_bytes < 2 * 4 * 256 * 128
    initialize(key)
    # Fused operations round less often.
    np.testing.assert_allclose(np.asarray(w, "f"), np.asarray(make(key), "f"), atol=1e-6)


def test_bits_that_are_used_in_full_too() -> None:
    with strategy_of(2, shard_parameters=True).scope():
        w = gd.Variable(jnp.zeros((256, 128)), name="w")

    @gd.function
    def fill(key: Any) -> Any:
        values = jax.random.normal(key, (256, 128))
        w.assign(values)
        return values[3:5]

    key = jax.random.key(5)
    rows = fill(key)
    np.testing.assert_array_equal(rows, np.asarray(w)[3:5])
    np.testing.assert_allclose(w, jax.random.normal(key, (256, 128)), rtol=1e-5, atol=1e-6)


def test_other_generators_are_carried_out_in_full() -> None:
    with strategy_of(2, shard_parameters=True).scope():
        w = gd.Variable(jnp.zeros((256, 128)), name="w")
    key = jax.random.key(5, impl="rbg")
    gd.function(lambda key: w.assign(jax.random.uniform(key, (256, 128)), read_value=False))(key)
    np.testing.assert_array_equal(w, jax.random.uniform(key, (256, 128)))
