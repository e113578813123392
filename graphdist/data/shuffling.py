"""Shuffling in the order of tf.data: a program gets the same elements for the same seed.

A buffer is filled from the source; each element given out is drawn from it at random and its place
taken by the oldest, while the next of the source joins at the end. With a buffer as large as the
dataset this is the shuffle of Fisher and Yates.

The numbers are those of Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", 2011), a counter scrambled by ten rounds of multiplication under a key. Of the two 64-bit seeds
the first is the key and the second the upper half of the counter. A dataset's generator is seeded
with tf.data's default and the user's seed; an iteration draws two numbers from it to seed its own,
so that each iteration has another order and a new program has the same ones again.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from graphdist.data.elements import Element
from graphdist.data.sources import Node
from graphdist.data.transformations import OfOne

_FIRST_SEED = 87654321  # of TensorFlow, where no other was set
_SEEDS = 2**31 - 1  # as many as TensorFlow tells apart
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10
_COUNTERS_AT_ONCE = 64


def philox(seed: int, seed2: int) -> Iterator[int]:
    """Yield the 32-bit numbers of a generator with these seeds, for ever.

    >>> from itertools import islice
    >>> list(islice(philox(0, 0), 2))
    [1713891541, 3781805453]
    """
    for start in itertools.count(0, _COUNTERS_AT_ONCE):
        counters = np.arange(start, start + _COUNTERS_AT_ONCE, dtype=np.uint64)
        upper = np.full_like(counters, seed2)
        words = [counters & _MASK, counters >> _HALF, upper & _MASK, upper >> _HALF]
        keys = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
        for _ in range(_ROUNDS):
            low, high = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
            words = [
                (high >> _HALF) ^ words[1] ^ keys[0],
                high & _MASK,
                (low >> _HALF) ^ words[3] ^ keys[1],
                low & _MASK,
            ]
            keys = [(key + step) & _MASK for key, step in zip(keys, _KEY_STEPS, strict=True)]
        yield from np.stack(words, axis=1).ravel().tolist()


class Seeds:
    """The seeds of the iterations over one shuffled dataset."""

    def __init__(self, seed: int | None, reshuffles: bool) -> None:
        """Take the user's seed; None is one that nobody knows."""
        self.is_free, self.reshuffles = seed is None, reshuffles
        own = (secrets.randbelow(_SEEDS) if seed is None else int(seed)) % _SEEDS
        self._reshuffles = reshuffles
        self._lock = threading.Lock()
        self.resume(own, drawn=0)

    def resume(self, seed: int, drawn: int) -> None:
        """Go on as a generator with this seed that has given so many iterations theirs."""
        with self._lock:
            self.seed, self.drawn = seed, drawn
            self._numbers = islice(philox(_FIRST_SEED, seed), 2 * drawn, None)

    def next(self) -> tuple[int, int]:
        """Return the two seeds of the next iteration."""
        if not self._reshuffles:
            return _FIRST_SEED, self.seed
        with self._lock:  # iterators may start on several threads
            self.drawn += 1
            return next(self._numbers), next(self._numbers)


@dataclass(frozen=True, eq=False)
class Shuffle(OfOne):
    """The elements in an order drawn anew for each iteration."""

    buffer_size: int
    seeds: Seeds

    @property
    def unshuffled(self) -> Node:
        """Return the dataset in its own order: looking at it draws no order of an iteration."""
        return self.source

    def __iter__(self) -> Iterator[Element]:
        return shuffled(iter(self.source), self.buffer_size, philox(*self.seeds.next()))


def shuffled(
    elements: Iterator[Element], buffer_size: int, numbers: Iterator[int]
) -> Iterator[Element]:
    """Yield the elements in the order that the numbers draw from a buffer.

    >>> "".join(shuffled(iter("abcdef"), 3, iter([2, 1, 0, 2, 1, 0])))
    'cabfde'
    """
    buffer = deque(islice(elements, buffer_size))
    while buffer:
        place = next(numbers) % len(buffer)
        drawn, buffer[place] = buffer[place], buffer[0]
        buffer.popleft()
        yield drawn
        buffer.extend(islice(elements, 1))
