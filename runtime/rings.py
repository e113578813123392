"""The order of devices in which the cores of a replica are a ring of neighbours.

Devices of TPUs are in the compiler's order, host by host, in which four consecutive chips are a
square: the second and the third of them are not linked. Values that go around a ring of cores
(`products_around_rings`) need links between consecutive cores, and between the last and the first.
So the chips of each replica, a block of the torus, are walked through along one side of the block,
then to and fro through the rest, and back along the first column:

    0 1          0 1 2 3
    3 2          7 6 5 4
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TypeAlias

import jax

Place: TypeAlias = tuple[int, ...]


def in_rings(devices: Sequence[jax.Device], num_cores: int) -> tuple[jax.Device, ...]:
    """Return the devices, of which so many follow each other for each replica, in rings.

    The devices of a replica stay together. They keep their order if they are no block of chips, or
    a block without a ring.
    """
    if num_cores < 3 or len(devices) % num_cores:
        return tuple(devices)
    found = list[jax.Device]()
    for first in range(0, len(devices), num_cores):
        replica = devices[first : first + num_cores]
        places = [tuple(getattr(device, "coords", ())) for device in replica]
        order = ring(places)
        by_place = dict(zip(places, replica, strict=True))
        found += replica if order is None else [by_place[place] for place in order]
    return tuple(found)


def ring(places: Sequence[Place]) -> list[Place] | None:
    """Return the places of a block, each beside the next one, and the last beside the first.

    None if they are no block, or a block without such a ring: a line, or one of odd sides.

    >>> ring([(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)])
    [(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0)]
    >>> ring([(0, 0), (0, 1), (0, 2)]) is None
    True
    """
    sides = [sorted(set(along)) for along in zip(*places, strict=True)]
    is_full = sorted(places) == sorted(product(*sides))
    if not is_full or any(side[-1] - side[0] >= len(side) for side in sides):
        return None
    longest = max(range(len(sides)), key=lambda side: len(sides[side]), default=0)
    columns = sides[longest] if sides else []
    rows = _to_and_fro([side for i, side in enumerate(sides) if i != longest])
    if len(columns) < 2 or len(rows) % 2:
        return None
    walked = [(column, rows[0]) for column in columns]
    for number, row in enumerate(rows[1:], start=1):
        rest = columns[1:]
        walked += [(column, row) for column in (reversed(rest) if number % 2 else rest)]
    walked += [(columns[0], row) for row in reversed(rows[1:])]
    return [(*row[:longest], column, *row[longest:]) for column, row in walked]


def _to_and_fro(sides: Sequence[Sequence[int]]) -> list[Place]:
    """Return the places of a block in which consecutive ones are neighbours.

    >>> _to_and_fro([[0, 1], [0, 1]])
    [(0, 0), (1, 0), (1, 1), (0, 1)]
    """
    found: list[Place] = [()]
    for side in sides:
        found = [
            (*place, at)
            for number, at in enumerate(side)
            for place in (reversed(found) if number % 2 else found)
        ]
    return found
