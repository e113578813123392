"""Topologies: accelerators in a shape, present or not.

A topology is written `chip:shape`: "v5e:16x16" is 256 TPU chips in a torus of 16 by 16, "h100:8x8"
is 8 hosts with 8 GPUs each.

Replicas are numbered slice by slice. Within a slice, replicas have the compiler's order, in which
the chips of a host, and the cores of a chip, are consecutive.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from math import prod

from graphdist.ir.errors import GraphdistError
from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.targets.chips import CHIPS, Chip


class DeviceError(GraphdistError, ValueError):
    """Devices that do not exist, are named twice, or come too late to be configured."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Chips in a shape: one slice, or several slices of the same shape.

    >>> str(Topology(CHIPS["v5e"], (16, 16), num_slices=2))
    '2 slices of v5e:16x16'
    """

    chip: Chip
    shape: tuple[int, ...]
    num_slices: int = 1

    @property
    def name(self) -> str:
        """Return the name of one slice, such as "v5e:16x16"."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def num_chips(self) -> int:
        """Return the number of chips in all slices."""
        return prod(self.shape) * self.num_slices

    @property
    def num_devices(self) -> int:
        """Return the number of devices that JAX shows: chips, or the cores of chips."""
        return self.num_chips * self.chip.devices

    @property
    def num_nearby(self) -> int:
        """Return the number of devices in one slice of TPUs, or in one host with GPUs.

        These devices reach each other without the network.
        """
        hosts = self.num_slices if self.chip.platform == "tpu" else self.shape[0]
        return self.num_devices // hosts

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Return for each dimension of a TPU slice whether its rows are closed to rings.

        In two dimensions this depends on each side alone. In three, optical switches link the faces
        of cubes, so that either all dimensions are closed or none is.

        >>> find_topology("v5e:8x16").wraps, find_topology("v5p:2x4x4").wraps
        ((False, True), (False, False, False))
        """
        if self.chip.closes_at is None:
            return (False,) * len(self.shape)
        closed = int(self.chip.closes_at)
        if self.chip.dimensions == 2:
            return tuple(size == closed for size in self.shape)
        return (all(size % closed == 0 for size in self.shape),) * 3

    def coordinates(self, chip: int) -> tuple[int, ...]:
        """Return the coordinates of a chip of a slice in the torus.

        The compiler numbers the chips host by host. A host has 2 x 2 chips. Within a host, and from
        host to host, the numbers grow along the first dimension first.

        >>> [find_topology("v5e:4x4").coordinates(chip) for chip in (0, 1, 2, 4, 8)]
        [(0, 0), (1, 0), (0, 1), (2, 0), (0, 2)]
        """
        first, second, *rest = self.shape
        near = (min(first, 2), min(second, 2))
        hosts = (-(-first // near[0]), -(-second // near[1]))
        steps = [*enumerate(near), *enumerate(hosts), *((2, size) for size in rest)]
        found, scale = [0] * len(self.shape), [1] * len(self.shape)
        for dimension, size in steps:
            chip, index = divmod(chip, size)
            found[dimension] += index * scale[dimension]
            scale[dimension] *= size
        return tuple(found)

    def __str__(self) -> str:
        return self.name if self.num_slices == 1 else f"{self.num_slices} slices of {self.name}"


_SHAPE = re.compile(r"\d{1,5}(?:x\d{1,5}){0,2}")
_NAME = re.compile(rf"([a-z0-9]+):({_SHAPE.pattern})")


def find_topology(name: str, num_slices: int = 1, at: Source = UNKNOWN) -> Topology:
    """Return the topology with this name. Raise `DeviceError`, with `at` as the user's line.

    >>> find_topology("v5p:4x4x4").num_chips
    64
    """

    def refused(what: str, hint: str = "") -> DeviceError:
        return DeviceError(what, source=at, hint=hint)

    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None or match[1] not in CHIPS:
        raise refused(f"unknown topology {name!r}", nearest_topologies(name))
    chip, shape = CHIPS[match[1]], tuple(map(int, match[2].split("x")))
    if len(shape) != chip.dimensions:
        what = f"{len(shape)} dimensions, a topology of {chip.name} has {chip.dimensions}"
        raise refused(f"topology {name!r} has {what}", nearest_topologies(name))
    if not 1 <= prod(shape) <= chip.largest:
        what = f"{prod(shape)} chips; {chip.name} has 1 to {chip.largest}"
        raise refused(f"topology {name!r} has {what}", nearest_topologies(name))
    if isinstance(num_slices, bool) or not isinstance(num_slices, int) or num_slices < 1:
        raise refused(f"num_slices is {num_slices!r}: there must be at least 1")
    if num_slices > 1 and chip.platform != "tpu":
        in_shape = f"{chip.name}:{num_slices * shape[0]}x{shape[1]}"
        raise refused(
            f"num_slices is {num_slices} of {name!r}: slices are of TPUs",
            f"give the hosts in the shape: {in_shape}",
        )
    return Topology(chip, shape, num_slices)


def _has_shape(chip: Chip, shape: str) -> bool:
    sides = [int(side) for side in shape.split("x")] if _SHAPE.fullmatch(shape) else []
    return len(sides) == chip.dimensions and 1 <= prod(sides) <= chip.largest


def nearest_topologies(name: object) -> str:
    """Return the hint for a name that is no topology: the most similar names of topologies."""
    text = str(name).lower()
    kind, _, shape = text.partition(":")
    known = [example for chip in CHIPS.values() for example in chip.examples]
    chip = CHIPS.get(kind)
    if chip is not None:
        near = list(chip.examples)
    else:
        chips = [CHIPS[each] for each in difflib.get_close_matches(kind, CHIPS, 3, 0.5)]
        same = [f"{each.name}:{shape}" for each in chips if _has_shape(each, shape)]
        near = list(dict.fromkeys([*same, *difflib.get_close_matches(text, known, 3, 0.5)]))[:3]
    start = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{start}graphdist-compile --list-topologies prints the table"
