"""The links between the members of a group, and the seconds of collectives, counted by hand."""

from __future__ import annotations

from itertools import product

import pytest

from graphdist.ir.collective_bytes import Exchange
from graphdist.runtime.targets.routes import collective_seconds_at_peak, route_of
from graphdist.runtime.targets.topologies import find_topology


def _seconds(topology: str, kind: str, size: int) -> float:
    found = find_topology(topology)
    return collective_seconds_at_peak(found, Exchange(kind, size, range(found.num_devices)))


def test_a_ring_by_hand() -> None:
    size = 10**9
    inside = 2 * size * 7 / 8 / 450e9
    assert _seconds("h100:1x8", "all_reduce", size) == pytest.approx(inside)
    network = 2 * (size / 8) * 1 / 2 / 50e9
    assert _seconds("h100:2x8", "all_reduce", size) == pytest.approx(inside + network)
    assert _seconds("v5e:1x1", "all_gather", size) == 0
    assert _seconds("v5e:1x1", "collective_permute", size) == 0
    assert _seconds("h100:1x8", "collective_permute", size) == pytest.approx(size / 450e9)
    exchanged = size * 7 / 8 / 450e9
    assert _seconds("h100:1x8", "all_to_all", size) == pytest.approx(exchanged)


def test_rings_of_groups_by_hand() -> None:
    hosts, size = find_topology("h100:4x8"), 10**9
    of_hosts = Exchange("all_gather", size, range(8))
    assert collective_seconds_at_peak(hosts, of_hosts) == pytest.approx(size * 7 / 450e9)
    of_half_hosts = Exchange("all_gather", size, range(4))
    assert collective_seconds_at_peak(hosts, of_half_hosts) == pytest.approx(size * 3 / 450e9)
    across_hosts = Exchange("all_reduce", size, range(0, 32, 8))
    assert collective_seconds_at_peak(hosts, across_hosts) == pytest.approx(2 * size * 3 / 4 / 50e9)
    # Groups of 4: two of them on each of 4 hosts.
    inside, network = 2 * size / 2 / 450e9, 2 * (size / 2) * 3 / 4 / 50e9
    across_both = Exchange("all_reduce", size, range(0, 32, 4))
    assert collective_seconds_at_peak(hosts, across_both) == pytest.approx(inside + network)


@pytest.mark.parametrize(
    ("name", "num_slices"),
    [
        ("v5e:16x16", 1),
        ("v5e:16x16", 2),
        ("v5e:4x4", 3),
        ("v4:2x2x1", 1),
        ("v5p:4x4x4", 4),
        ("tpu7x:4x4x4", 2),
        ("h100:1x8", 1),
        ("h100:8x8", 1),
    ],
)
@pytest.mark.parametrize("share", [1, 2])
def test_an_all_reduce_takes_a_reduce_scatter_and_an_all_gather(
    name: str, num_slices: int, share: int
) -> None:
    topology = find_topology(name, num_slices)
    size = 2**30
    group = topology.num_devices // share
    seconds = [
        collective_seconds_at_peak(topology, Exchange(kind, put_in, range(group)))
        for kind, put_in in (
            ("all_reduce", size),
            ("reduce_scatter", size),
            ("all_gather", size // group),
        )
    ]
    assert seconds[0] == pytest.approx(seconds[1] + seconds[2], rel=1e-6)


def test_the_network_carries_the_slices_of_other_slices_of_chips_once() -> None:
    pod, size = find_topology("v5e:16x16", 2), 10**6
    near, network = 511 - 1, 1
    made = Exchange("all_gather", size, range(512))
    assert collective_seconds_at_peak(pod, made) == pytest.approx(
        near * size / 200e9 + network * size / (25e9 / 8)
    )
    exchanged = size * 255 / 256 / 200e9 + size / 2 / (25e9 / 8)
    made = Exchange("all_to_all", size, range(512))
    assert collective_seconds_at_peak(pod, made) == pytest.approx(exchanged)


@pytest.mark.parametrize(
    ("name", "group", "links"),
    [
        ("v5e:16x16", 256, 4),
        ("v5e:8x16", 128, 3),
        ("v5e:8x8", 64, 2),
        ("v5e:2x2", 4, 2),
        ("v5e:1x2", 2, 1),
        ("v5e:16x16", 4, 2),
        ("v5e:16x16", 2, 1),
        ("v5e:16x16", 32, 3),  # two rows of 16
        ("v6e:4x4", 16, 2),
        ("v5p:4x4x4", 64, 6),
        ("v5p:4x4x4", 16, 4),  # a plane of the cube
        ("v5p:2x4x4", 32, 3),  # no cube of 4 x 4 x 4: the optical switches do not close it
        ("v5p:2x2x1", 4, 2),
        ("tpu7x:4x4x4", 128, 6),
        ("tpu7x:2x2x1", 8, 2),
    ],
)
def test_links_that_carry_a_collective(name: str, group: int, links: int) -> None:
    topology = find_topology(name)
    per_link = topology.chip.interconnect_bandwidth / (2 * topology.chip.dimensions)
    sent = 2 * 10**9 * (group - 1) / group
    made = Exchange("all_reduce", 10**9, range(group))
    expected = sent / (links * per_link / topology.chip.devices)
    assert collective_seconds_at_peak(topology, made) == pytest.approx(expected)


def test_the_devices_of_a_chip_exchange_inside_it() -> None:
    pair = Exchange("all_gather", 10**9, range(2))
    assert collective_seconds_at_peak(find_topology("tpu7x:2x2x1"), pair) == pytest.approx(
        1e9 / 300e9
    )


@pytest.mark.parametrize(
    ("name", "num_slices", "members", "route", "gigabytes"),
    [
        # 16 apart in a torus of hosts of 2 x 2 chips: every 2nd row, and 2 chips of each.
        ("v5e:16x16", 1, range(0, 256, 16), "links x/8 y/2", 50 * (2 / 8 + 2 / 2)),
        ("v5e:16x16", 4, range(0, 256, 16), "links x/8 y/2", 50 * (2 / 8 + 2 / 2)),
        ("v5e:16x16", 4, range(256, 512), "links x y", 200),
        ("v5e:16x16", 4, range(0, 1024, 256), "network", 200),
        ("v5e:16x16", 4, range(1024), "links x y and network", 200),
        ("v5e:4x4", 1, range(0, 16, 4), "links x/2 y/2", 50 * (1 / 2 + 1 / 2)),
        ("v5e:4x4", 1, range(0, 4, 2), "links y", 50),
        ("v5p:4x4x4", 1, range(0, 64, 16), "links z", 200),
        ("tpu7x:4x4x4", 1, range(0, 128, 2), "links x y z", 300),
        ("h100:4x8", 1, range(0, 32, 8), "network", 450),
        ("h100:4x8", 1, range(8), "", 450),
    ],
)
def test_the_route_between_members(
    name: str, num_slices: int, members: range, route: str, gigabytes: float
) -> None:
    found = route_of(find_topology(name, num_slices), members)
    assert str(found) == route
    assert found.bandwidth == pytest.approx(gigabytes * 1e9)


@pytest.mark.parametrize("name", ["v5e:16x16", "v5e:1x2", "v5p:2x4x4", "v5p:4x4x8", "v4:2x2x1"])
def test_each_chip_has_coordinates_of_its_own(name: str) -> None:
    topology = find_topology(name)
    found = {topology.coordinates(chip) for chip in range(topology.num_chips)}
    assert found == set(product(*map(range, topology.shape)))


def test_a_permutation_goes_over_one_link_of_each_chip() -> None:
    chips = find_topology("v5p:4x4x4")
    sent = Exchange("collective_permute", 10**9, range(chips.num_devices))
    assert collective_seconds_at_peak(chips, sent) == pytest.approx(10**9 / 100e9)
