"""The buffers of a strategy's variables, in one list.

A step reads the buffers of all its variables and replaces those of the ones it assigns. Kept in one
list, both are one call each when the variables were made together, instead of one attribute access
a variable: measured with 100 variables, 4 us a step in place of 12.

A strategy with a parameter device keeps the buffers there. Its steps get copies on the devices they
compute on, and what they return is brought back, each array whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from threading import RLock
from typing import (  # Any: a released place holds None, which no reader ever sees
    Any,
    ClassVar,
    TypeAlias,
)
from weakref import WeakSet

import jax
from jax.sharding import Sharding

from graphdist.ir.errors import GraphdistError

Reader: TypeAlias = Callable[[list[Any]], Sequence[jax.Array]]
Writer: TypeAlias = Callable[[list[Any], Sequence[jax.Array]], None]


class RuntimeFailure(GraphdistError, RuntimeError):
    """A step that failed on the devices, or a buffer that is no longer there."""


class _HoldsBuffers(dict[type, bool]):
    def __missing__(self, kind: type) -> bool:
        self[kind] = issubclass(kind, jax.Array) and not issubclass(kind, jax.core.Tracer)
        return self[kind]


HOLDS_BUFFERS = _HoldsBuffers()
"""By type, whether its values are arrays in memory, not traced ones.

At every step: `isinstance` with JAX's types runs Python code of theirs, a lookup does not.
"""


class BufferStore:
    """Buffers by place.

    There is one lock for all stores, since a step may take variables of several: it is held from
    the reading of buffers for a step to the writing of what it gave. Nobody waits for a device
    while holding it, unless a step has failed: one may call back code that reads a variable.

    >>> store = BufferStore()
    >>> place = store.add(jax.numpy.ones(2))
    >>> store.buffers[place]
    Array([1., 1.], dtype=float32)
    """

    lock: ClassVar = RLock()

    def __init__(self) -> None:
        """Start empty."""
        self.buffers: list[Any] = []
        self.layout = 0
        """Another number whenever a buffer is laid out anew, which programs compiled before see."""
        self.writers: WeakSet[Any] = WeakSet()
        """The programs that assign some of the buffers; who looks for one knows what they are."""
        self._released: list[int] = []

    def add(self, buffer: jax.Array) -> int:
        """Keep a buffer and return its place."""
        if self._released:
            place = self._released.pop()
            self.buffers[place] = buffer
            return place
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def release(self, place: int) -> None:
        """Let go of the buffer at a place, which may be given to another."""
        self.buffers[place] = None
        self._released.append(place)


class BorrowedBuffers:
    """Buffers of several strategies as one list, for a step that computes on one's devices.

    What is read are copies there; what is written goes back to where the buffer was.
    """

    def __init__(
        self, owners: Sequence[tuple[BufferStore, int]], shardings: Sequence[Sharding]
    ) -> None:
        """Borrow the buffers at these places of their stores."""
        self.buffers: Any = self
        self.lock = BufferStore.lock
        self._owners, self._shardings = owners, shardings
        self._stores = tuple(dict.fromkeys(store for store, _ in owners))

    @property
    def layout(self) -> int:
        """Return another number whenever an owner lays a buffer out anew."""
        return sum(store.layout for store in self._stores)

    def __getitem__(self, places: int | slice) -> Any:
        if isinstance(places, slice):
            return [self[place] for place in range(places.start, places.stop)]
        store, place = self._owners[places]
        return jax.device_put(store.buffers[place], self._shardings[places], may_alias=False)

    def __setitem__(self, places: int | slice, arrays: Any) -> None:
        if isinstance(places, slice):
            for place, array in zip(range(places.start, places.stop), arrays, strict=True):
                self[place] = array
            return
        store, place = self._owners[places]
        store.buffers[place] = jax.device_put(arrays, store.buffers[place].sharding)


def is_lost(buffer: jax.Array) -> bool:
    """Return whether a buffer holds no value: it was donated, or the step that makes it failed."""
    try:
        return bool(buffer.is_deleted() or buffer.block_until_ready() is None)
    except Exception:
        return True


def reader(places: Sequence[int]) -> Reader:
    """Return what takes the buffers at these places out of a list.

    >>> reader([2, 0])(["a", "b", "c"])
    ('c', 'a')
    """
    if _is_run(places):
        return itemgetter(slice(places[0], places[0] + len(places)))
    if len(places) > 1:
        return itemgetter(*places)
    return lambda buffers: ()


def writer(places: Sequence[int]) -> Writer:
    """Return what puts the first of some arrays at these places of a list; the rest it leaves.

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
        for place, array in zip(places, arrays):  # noqa: B905 - results follow the state
            buffers[place] = array

    return write


def moving_in(read: Reader, shardings: Sequence[Sharding]) -> Reader:
    """Return a reader that puts what it reads where a step computes, in arrays of their own.

    The step may donate them: what lies on the parameter device stays, also if the step fails.
    """

    def read_and_move(buffers: list[Any]) -> Sequence[jax.Array]:
        arrays: Sequence[jax.Array] = jax.device_put(
            list(read(buffers)), list(shardings), may_alias=False
        )
        return arrays

    return read_and_move


def moving_out(write: Writer, count: int, home: Sharding) -> Writer:
    """Return a writer that brings the first `count` arrays home before it writes them."""

    def move_and_write(buffers: list[Any], arrays: Sequence[jax.Array]) -> None:
        write(buffers, jax.device_put(list(arrays[:count]), home))

    return move_and_write


def _is_run(places: Sequence[int]) -> bool:
    return bool(places) and list(places) == list(range(places[0], places[0] + len(places)))
