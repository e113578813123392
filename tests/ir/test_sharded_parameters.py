"""The rule by which variables are sharded from their creation."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdist.ir.sharded_parameters import LARGEST_UNSHARDED, smallest_sharded, stored_dimension

SHAPES = st.lists(st.integers(0, 4096), max_size=4).map(tuple)


@given(SHAPES, st.integers(1, 64))
def test_slices_are_equal_and_the_rest_is_small_or_odd(
    shape: tuple[int, ...], num_replicas: int
) -> None:
    dimension = stored_dimension(shape, num_replicas)
    divides = [size > 0 and size % num_replicas == 0 for size in shape]
    is_large = prod(shape) >= smallest_sharded(num_replicas)
    assert (dimension is not None) == (num_replicas > 1 and is_large and any(divides))
    if dimension is not None:
        assert divides[dimension]
        assert dimension > 0 or len(shape) < 3 or not any(divides[1:])


@pytest.mark.parametrize(
    ("shape", "dimension"),
    [
        ((256, 128), 0),
        ((257, 128), 1),
        ((64, 256, 128), 1),
        ((64, 255, 128), 2),
        ((64, 255, 127), 0),
        ((64, 255, 16, 32, 128), 3),
        ((255, 129), None),
        ((2**15,), 0),
        ((2**15 - 8,), None),
        ((), None),
    ],
    ids=str,
)
def test_shapes(shape: tuple[int, ...], dimension: int | None) -> None:
    assert stored_dimension(shape, 8) == dimension


def test_the_bound_grows_with_the_replicas_up_to_a_limit() -> None:
    assert [smallest_sharded(count) for count in (2, 256, 10**6)] == [
        2**13,
        2**20,
        LARGEST_UNSHARDED,
    ]
