"""The part of an array in slices that a process holds; here one process holds all of it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from graphdist.runtime.spans import (
    Span,
    array_of_full,
    array_of_span,
    copy_of_span,
    held_span,
    is_held_here,
    span_to_write,
)

SHAPE = (4, 8, 2)


def sharding_along(dimension: int | None, groups: int = 1) -> NamedSharding:
    """Return a sharding over four devices, in groups that each hold all slices."""
    devices = np.array(jax.devices()[:4]).reshape(groups, 4 // groups)
    mesh = Mesh(devices, ("group", "slice"), axis_types=(AxisType.Auto,) * 2)
    spec = () if dimension is None else (*[None] * dimension, "slice")
    return NamedSharding(mesh, PartitionSpec(*spec))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dimension", [0, 1])
def test_a_process_that_has_all_devices_holds_and_writes_all(dimension: int, groups: int) -> None:
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    sharding = sharding_along(dimension, groups)
    full = Span(dimension, 0, SHAPE[dimension])
    assert is_held_here(sharding, SHAPE)
    assert held_span(sharding, SHAPE, dimension) == full
    array = array_of_span(values, full, SHAPE, sharding)
    assert array.sharding == sharding
    assert span_to_write(array, dimension) == full
    np.testing.assert_array_equal(copy_of_span(array, full), values)
    np.testing.assert_array_equal(array, values)


def test_shards_of_cores_are_taken_from_the_span_around_them() -> None:
    """Cores shard one dimension, and the replicas another or the same."""
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    mesh = Mesh(devices, ("replica", "core"), axis_types=(AxisType.Auto,) * 2)
    for spec in (PartitionSpec("core", "replica"), PartitionSpec(("core", "replica"))):
        sharding = NamedSharding(mesh, spec)
        for dimension in (0, 1):
            span = held_span(sharding, SHAPE, dimension)
            array = array_of_span(values[span.index], span, SHAPE, sharding)
            np.testing.assert_array_equal(array, values)
            np.testing.assert_array_equal(copy_of_span(array, span), values)


@given(st.data())
def test_what_spans_share_is_in_both(data: Any) -> None:
    size = 9
    bounds = st.tuples(*[st.integers(0, size - 1)] * 2).map(sorted)
    first, second = (Span(0, low, high + 1) for low, high in (data.draw(bounds) for _ in range(2)))
    indices = np.arange(size)
    both = sorted({*indices[first.index]} & {*indices[second.index]})
    shared = first.shared_with(second)
    assert (shared is None) == (not both)
    if shared is not None:
        assert indices[shared.index].tolist() == both
        assert indices[first.index][shared.within(first).index].tolist() == both
        assert indices[shared.index].shape == shared.shape_in((size,))


@pytest.mark.parametrize("dimension", [None, 0, 1])
@pytest.mark.parametrize("is_on_device", [False, True])
def test_nobody_else_holds_the_memory(dimension: int | None, is_on_device: bool) -> None:
    room = np.zeros(2**16, np.uint8)  # its memory may be one that devices take as their own
    start = -room.ctypes.data % 64
    values: Any = room[start : start + 256].view(np.float32).reshape(SHAPE)
    given = jax.device_put(values, jax.devices()[0]) if is_on_device else values
    array = array_of_full(given, sharding_along(dimension))
    pointers = {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}
    assert len(pointers) == 4
    taken = given.unsafe_buffer_pointer() if is_on_device else values.ctypes.data
    assert not [pointer for pointer in pointers if taken <= pointer < taken + 256]
    if not is_on_device:
        values[:] = 1
        assert not np.asarray(array).any()
