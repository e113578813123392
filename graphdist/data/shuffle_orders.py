"""The random orders in which iterations over a shuffled dataset see its elements.

Random numbers come from Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", 2011), which scrambles a counter by ten rounds of multiplication under a key. The first of the
two 64-bit seeds is the key, the second is the upper half of the counter. The generator of a dataset
is seeded with tf.data's default seed and the user's seed. Numbers 2n and 2n + 1 of that generator
seed the generator of order n.

Each iteration counts its own orders. Its first order comes after all orders that the previous
iteration has taken by then (at least one), and an iteration that begins later does not change it.
So an iteration's position is its first order and the number of elements it has returned. Where a
pipeline contains one shuffle n times, each occurrence takes every n-th order.

A prefetching thread may have taken orders of which nobody has seen an element. How many depends on
timing, so they do not count: see `ShuffleOrders.ahead`.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

_FIRST_SEED = 87654321  # TensorFlow's default
_SEEDS = 2**31 - 1  # the seeds that TensorFlow tells apart
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10
_COUNTERS_AT_ONCE = 64
_NUMBERS_PER_COUNTER = 4


def philox(seed: int, seed2: int, start: int = 0) -> Iterator[int]:
    """Yield the 32-bit numbers of a generator with these seeds, from index `start` on, for ever.

    >>> from itertools import islice
    >>> list(islice(philox(0, 0), 6))[4:] == list(islice(philox(0, 0, start=4), 2))
    True
    >>> list(islice(philox(0, 0), 2))
    [1713891541, 3781805453]
    """
    counter, inside = divmod(start, _NUMBERS_PER_COUNTER)
    return islice(_philox(seed, seed2, counter), inside, None)


def _philox(seed: int, seed2: int, counter: int) -> Iterator[int]:
    for start in itertools.count(counter, _COUNTERS_AT_ONCE):
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


@dataclass
class ShuffleOrders:
    """The orders that one iteration takes of a shuffled dataset."""

    seed: int
    reshuffles: bool
    first: int
    step: int
    taken: int = 0
    """How many orders the iteration has taken."""

    def next(self) -> Iterator[int]:
        """Take the next order; return the numbers that draw its elements."""
        if not self.reshuffles:
            return philox(_FIRST_SEED, self.seed)
        order = self.first + self.step * self.taken
        self.taken += 1
        return philox(*islice(philox(_FIRST_SEED, self.seed, start=2 * order), 2))

    def ahead(self) -> ShuffleOrders:
        """Return a copy for a thread that makes elements ahead of their use.

        With each element the thread reports how many orders it has taken. When the caller asks for
        the element, `taken` of the original is set to that number. So a saved position does not
        depend on timing.
        """
        return replace(self)


class ShuffleSeed:
    """The seed of one shuffled dataset, and the orders that its iterations have taken."""

    def __init__(self, seed: int | None, reshuffles: bool) -> None:
        """Take the user's seed; None draws a random one."""
        self.is_random, self.reshuffles = seed is None, reshuffles
        self.value = (secrets.randbelow(_SEEDS) if seed is None else int(seed)) % _SEEDS
        self._first = 0
        self._last: list[ShuffleOrders] = []  # the orders of the iteration begun last
        self._lock = threading.Lock()

    def begin(self, times: int) -> list[ShuffleOrders]:
        """Return the orders of a new iteration, in which the shuffle occurs `times` times."""
        with self._lock:  # iterators may start on several threads
            return self._begun(self._taken(), times)

    def resume(self, seed: int, first: int, times: int) -> list[ShuffleOrders]:
        """Return the orders of an iteration that began with this seed and first order.

        The orders of the next iteration follow these, as they did when the position was saved.
        """
        with self._lock:
            self.value = seed
            return self._begun(first, times)

    def _begun(self, first: int, times: int) -> list[ShuffleOrders]:
        self._first = first
        self._last = [
            ShuffleOrders(self.value, self.reshuffles, first + index, times)
            for index in range(times)
        ]
        return list(self._last)

    def _taken(self) -> int:
        if not self._last or not self.reshuffles:
            return self._first
        return self._first + len(self._last) * max(1, *(orders.taken for orders in self._last))
