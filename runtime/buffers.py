"""The buffers of a strategy's variables, in one list.

A step reads the buffers of all its variables and replaces the buffers of the variables that it
assigns. With all buffers in one list, the read and the replacement are one call each, if the
variables were made one after the other. For 100 variables the two calls take 4 us per step; an
attribute access per variable would take 12 us.

A strategy with a parameter device keeps the buffers on that device, and a step may use variables of
several strategies. In both cases the step gets copies on the devices that compute, and the new
values are copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from threading import RLock
from typing import Any, ClassVar, TypeAlias  # Any: a released index holds None
from weakref import WeakSet

import jax
from jax.sharding import Sharding


class _HoldsBuffers(dict[type, bool]):
    def __missing__(self, kind: type) -> bool:
        self[kind] = issubclass(kind, jax.Array) and not issubclass(kind, jax.core.Tracer)
        return self[kind]


HOLDS_BUFFERS = _HoldsBuffers()
"""Whether the values of a type are arrays in memory, not tracers; indexed by type.

Every step looks this up: `isinstance` with JAX's types would run Python code of JAX.
"""


class BufferStore:
    """Buffers by index.

    All stores share one lock, because a step may use variables of several strategies. A step holds
    the lock from the read of the old buffers to the write of the new buffers, because between the
    two the old buffers may already be donated. For the same reason, variables are moved, read and
    assigned under the lock. The lock is reentrant, because code that holds the lock calls methods
    that acquire it.

    No thread waits for a device under the lock, unless a step has failed. Otherwise a callback of
    the step that reads a variable in another thread would wait for the lock for ever.

    >>> store = BufferStore()
    >>> place = store.add(jax.numpy.ones(2))
    >>> store.buffers[place]
    Array([1., 1.], dtype=float32)
    """

    lock: ClassVar = RLock()
    version: ClassVar = 0
    """The number of times that a variable of any store was moved to other storage.

    Each step compares this number with the number at its binding.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.buffers: list[Any] = []
        self.writers: WeakSet[Any] = WeakSet()
        """The programs that assign some of the buffers. Errors name the last program."""
        self._released: list[int] = []

    def add(self, buffer: jax.Array) -> int:
        """Keep a buffer and return its index."""
        if self._released:
            place = self._released.pop()
            self.buffers[place] = buffer
            return place
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def release(self, place: int) -> None:
        """Drop the buffer at an index; the index may be used again."""
        self.buffers[place] = None
        self._released.append(place)


Home: TypeAlias = tuple[BufferStore, int]
"""The place of a buffer: its store, and its index in the store."""


def is_donated_or_failed(buffer: jax.Array) -> bool:
    """Wait for a buffer; return whether it was donated, or the step that computes it failed."""
    try:
        return bool(buffer.is_deleted() or buffer.block_until_ready() is None)
    except Exception:
        return True


def reader(places: Sequence[int]) -> Callable[[list[Any]], Sequence[jax.Array]]:
    """Return a function that reads the buffers at these indices of a list.

    >>> reader([2, 0])(["a", "b", "c"])
    ('c', 'a')
    """
    if _is_run(places):
        return itemgetter(slice(places[0], places[0] + len(places)))
    if len(places) > 1:
        return itemgetter(*places)
    return lambda buffers: ()


def writer(places: Sequence[int]) -> Callable[[list[Any], Sequence[jax.Array]], None]:
    """Return a function that writes arrays to these indices of a list, and ignores further arrays.

    >>> buffers = ["a", "b", "c"]
    >>> writer([1, 2])(buffers, ["x", "y", "z"])
    >>> buffers
    ['a', 'x', 'y']
    """
    if _is_run(places):
        start, count = places[0], len(places)
        end = start + count

        def write_run(buffers: list[Any], arrays: Sequence[jax.Array]) -> None:
            buffers[start:end] = arrays[:count]

        return write_run

    def write(buffers: list[Any], arrays: Sequence[jax.Array]) -> None:
        for place, array in zip(places, arrays):  # noqa: B905 - the user's results follow
            buffers[place] = array

    return write


def _is_run(places: Sequence[int]) -> bool:
    return bool(places) and list(places) == list(range(places[0], places[0] + len(places)))


class StateInPlace:
    """The buffers of a step's variables in a store on the step's own devices.

    `read` returns all buffers. `write` replaces the buffers of assigned variables by a step's first
    outputs.
    """

    def __init__(self, store: BufferStore, places: Sequence[int], assigned: Sequence[int]) -> None:
        """Store the indices of all buffers, and the indices of the buffers that are assigned."""
        self.read = partial(reader(places), store.buffers)
        self.write = partial(writer(assigned), store.buffers)


class StateElsewhere:
    """The buffers of a step's variables on other devices than the step's.

    The step may donate the copies that `read` returns. The buffers themselves stay, even if the
    step fails. `write` copies a step's first outputs to the devices of the assigned buffers.
    """

    def __init__(
        self, homes: Sequence[Home], assigned: Sequence[Home], shardings: Sequence[Sharding]
    ) -> None:
        """Store the places of all buffers and of the assigned buffers, and the step's shardings."""
        self._homes, self._assigned, self._shardings = homes, assigned, list(shardings)

    def read(self) -> Sequence[jax.Array]:
        """Return copies of the buffers on the step's devices."""
        held = [store.buffers[place] for store, place in self._homes]
        copies: Sequence[jax.Array] = jax.device_put(held, self._shardings, may_alias=False)
        return copies

    def write(self, outputs: Sequence[jax.Array]) -> None:
        """Replace the assigned buffers by the first outputs of a step."""
        shardings = [store.buffers[place].sharding for store, place in self._assigned]
        arrays = jax.device_put(list(outputs[: len(shardings)]), shardings)
        for (store, place), array in zip(self._assigned, arrays, strict=True):
            store.buffers[place] = array
