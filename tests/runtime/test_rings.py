"""The order of the devices of a replica: each is beside the next, the last beside the first."""

from __future__ import annotations

from itertools import product

import pytest

from graphdist.runtime.rings import ring


@pytest.mark.parametrize(
    "sides", [(2, 2, 1), (4, 2, 1), (2, 4), (2, 2, 2), (4, 4, 1), (3, 2, 1), (4, 2, 2)]
)
def test_neighbours_in_a_ring_are_neighbours_in_the_block(sides: tuple[int, ...]) -> None:
    places = list(product(*map(range, sides)))
    found = ring(places)
    assert found is not None
    assert sorted(found) == places
    for here, there in zip(found, [*found[1:], found[0]], strict=True):
        assert sum(abs(a - b) for a, b in zip(here, there, strict=True)) == 1


@pytest.mark.parametrize(
    "places",
    [
        [(0, 0), (1, 0), (2, 0)],
        [(0, 0), (0, 2), (2, 0), (2, 2)],
        [(0, 0), (0, 0), (1, 0), (1, 0)],
        [(0, 0), (1, 0), (1, 1)],
        [()] * 4,
    ],
    ids=["a line", "gaps", "two devices of a chip", "no block", "no places"],
)
def test_other_devices_keep_their_order(places: list[tuple[int, ...]]) -> None:
    assert ring(places) is None
