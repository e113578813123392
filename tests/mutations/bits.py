"""Bits flipped in bytes."""

from __future__ import annotations

from random import Random


def flipped(data: bytes, random: Random) -> bytes:
    """Return data with one to four bits flipped."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)
