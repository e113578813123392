"""The links over which the members of a group exchange values on a topology.

Members in different slices, or on different hosts with GPUs, reach each other over the network.
Members in one slice of TPUs reach each other along the rows of the torus:

* Along a dimension in which members have different coordinates, each member has two links if the
  members span a closed row, else one.
* All groups exchange at the same time. So if members of a group are n chips apart, n groups share
  the links between them, and each group has 1/n of their bandwidth.
* The devices of one chip reach each other as fast as over all links of the chip.
* A permutation goes over one link of each chip: those that it sends to are taken for neighbours.

The bandwidths along all dimensions add up, as a collective goes along all dimensions at once.
Between slices or hosts, the network carries as few bytes as possible
(`graphdist.ir.collective_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from graphdist.ir.collective_bytes import Exchange
from graphdist.ir.ops import COLLECTIVE_PERMUTE
from graphdist.runtime.targets.topologies import Topology

_DIMENSIONS = "xyz"


class LinkedRow(NamedTuple):
    """The links along a dimension: `links` of each member, shared by `groups` groups."""

    dimension: str
    links: int
    groups: int

    def __str__(self) -> str:
        return self.dimension if self.groups == 1 else f"{self.dimension}/{self.groups}"


class Route(NamedTuple):
    """How the members of a group reach each other.

    They are in `num_slices` slices or hosts. In a slice, `bandwidth` is what each member can send,
    in bytes per second, over the links of `rows`; there are no rows on GPUs and inside a chip.
    """

    num_slices: int
    rows: tuple[LinkedRow, ...]
    bandwidth: float

    def __str__(self) -> str:
        links = f"links {' '.join(map(str, self.rows))}" if self.rows else ""
        network = "network" if self.num_slices > 1 else ""
        return " and ".join(filter(None, (links, network)))


def route_of(topology: Topology, members: Sequence[int]) -> Route:
    """Return the route between the members of a group, given by the indices of their devices.

    >>> from graphdist.runtime.targets.topologies import find_topology
    >>> pods = find_topology("v5e:16x16", num_slices=4)
    >>> for members in (range(256), range(0, 256, 16), range(0, 1024, 256)):
    ...     route = route_of(pods, members)
    ...     print(route, route.bandwidth / 1e9, "GB/s")
    links x y 200.0 GB/s
    links x/8 y/2 62.5 GB/s
    network 200.0 GB/s
    """
    return _route_of(topology, tuple(members))


@lru_cache(maxsize=256)
def _route_of(topology: Topology, members: tuple[int, ...]) -> Route:
    chip, nearby = topology.chip, topology.num_nearby
    num_slices = len({member // nearby for member in members})
    first = members[0] // nearby
    near = [member % nearby for member in members if member // nearby == first]
    rows = tuple(_rows(topology, near)) if chip.platform == "tpu" else ()
    links = sum(row.links / row.groups for row in rows) or chip.links
    return Route(num_slices, rows, chip.link * links / chip.devices)


def collective_seconds_at_peak(topology: Topology, made: Exchange) -> float:
    """Return the seconds that an exchange takes at the published bandwidths.

    >>> from graphdist.runtime.targets.topologies import find_topology
    >>> made = Exchange("all_reduce", 2**30, range(4))
    >>> round(collective_seconds_at_peak(find_topology("v5e:2x2"), made) * 1e3, 2)
    16.11
    """
    chip, route = topology.chip, route_of(topology, made.members)
    near, far = made.bytes_sent_over(route.num_slices)
    is_permutation = made.kind == COLLECTIVE_PERMUTE.name and chip.platform == "tpu"
    bandwidth = min(chip.link, route.bandwidth) if is_permutation else route.bandwidth
    return near / bandwidth + far * chip.devices / chip.network


def _rows(topology: Topology, members: Sequence[int]) -> Iterator[LinkedRow]:
    """Yield the rows of a slice that its members are in."""
    coordinates = [topology.coordinates(member // topology.chip.devices) for member in members]
    sides = zip(zip(*coordinates, strict=True), topology.shape, topology.wraps, strict=True)
    for dimension, (taken, side, is_closed) in zip(_DIMENSIONS, sides, strict=False):
        places = sorted(set(taken))
        if len(places) > 1:
            apart = max((places[-1] - places[0]) // (len(places) - 1), 1)
            spans = len(places) * apart == side
            yield LinkedRow(dimension, 2 if is_closed and spans else 1, apart)
