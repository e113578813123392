"""The part that one process holds of an array that is sharded over several processes.

Replicas are numbered process by process, so a process holds consecutive shards. The shards of a
process make up a span: a range of indices along the sharded dimension. Several groups of replicas
may hold the same shards; only one process writes a shard to a file. If replicas have devices of
several processes, the cores may shard another dimension, too: a process then reads the span around
its shards, and writes shards that are full along that dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: numpy dtypes, values of numpy and JAX

import jax
import numpy as np
from jax.sharding import Sharding

Part: TypeAlias = tuple[slice, ...]
"""An index with a start and a stop for each dimension."""


@dataclass(frozen=True, slots=True)
class Span:
    """The indices from `start` to before `stop` along `dimension`, and all along other dimensions.

    >>> np.arange(6).reshape(2, 3)[Span(1, 0, 2).index]
    array([[0, 1],
           [3, 4]])
    """

    dimension: int
    start: int
    stop: int

    @property
    def index(self) -> tuple[slice, ...]:
        """Return the index with which an array is indexed to get the span."""
        return (*[slice(None)] * self.dimension, slice(self.start, self.stop))

    def shape_in(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the span in an array of this shape.

        >>> Span(1, 0, 2).shape_in((2, 3))
        (2, 2)
        """
        after = shape[self.dimension + 1 :]
        return (*shape[: self.dimension], self.stop - self.start, *after)

    def shared_with(self, other: Span) -> Span | None:
        """Return the span that two spans along one dimension have in common; None if it is empty.

        >>> Span(0, 0, 4).shared_with(Span(0, 3, 8))
        Span(dimension=0, start=3, stop=4)
        """
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        return Span(self.dimension, start, stop) if start < stop else None

    def within(self, other: Span) -> Span:
        """Return this span with its indices counted from the start of the span `other`.

        >>> Span(0, 3, 4).within(Span(0, 3, 8))
        Span(dimension=0, start=0, stop=1)
        """
        return Span(self.dimension, self.start - other.start, self.stop - other.start)


def is_held_here(sharding: Sharding, shape: tuple[int, ...]) -> bool:
    """Return whether this process's devices together hold all of an array."""

    def bounds(indices: Iterable[Any]) -> set[Any]:  # before Python 3.12 slices are not hashable
        pairs = (zip(index, shape, strict=True) for index in indices)
        return {tuple(part.indices(size) for part, size in pair) for pair in pairs}

    here = bounds(sharding.addressable_devices_indices_map(shape).values())
    return here == bounds(sharding.devices_indices_map(shape).values())


def held_span(sharding: Sharding, shape: tuple[int, ...], dimension: int) -> Span:
    """Return the span around the shards that this process's devices hold, along a dimension."""
    indices = sharding.addressable_devices_indices_map(shape).values()
    spans = [_span_at(index, dimension, shape) for index in indices if index is not None]
    start, stop = min(span.start for span in spans), max(span.stop for span in spans)
    return Span(dimension, start, stop)


def span_to_write(array: jax.Array, dimension: int) -> Span | None:
    """Return the span that this process writes to a file, so that each shard is written once.

    Return None if other processes hold the same shards and write these shards.
    """
    firsts = (shard for shard in array.addressable_shards if shard.replica_id == 0)
    return _union((shard.index[dimension] for shard in firsts), array.shape, dimension)


def shards_to_write(array: jax.Array) -> Iterator[tuple[Part, np.ndarray[Any, Any]]]:
    """Yield, for each shard that this process writes to a file, its index and a copy on the host.

    The index is the place of the shard in the array. Each shard is written by one process.
    """
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            yield with_bounds(shard.index, array.shape), np.array(shard.data)


def with_bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Part:
    """Return an index with explicit bounds; dimensions that the index leaves out are taken in full.

    >>> with_bounds((slice(1, None),), (3, 4))
    (slice(1, 3, None), slice(0, 4, None))
    """
    full = (*index, *[slice(None)] * (len(shape) - len(index)))
    return tuple(slice(*each.indices(size)[:2]) for each, size in zip(full, shape, strict=True))


def _union(slices: Iterable[slice], shape: tuple[int, ...], dimension: int) -> Span | None:
    bounds = sorted({part.indices(shape[dimension])[:2] for part in slices})
    if not bounds:
        return None
    starts, stops = zip(*bounds, strict=True)
    assert starts[1:] == stops[:-1], f"a process holds slices with others between them: {bounds}"
    return Span(dimension, starts[0], stops[-1])


def host_copy(array: jax.Array) -> np.ndarray[Any, Any]:
    """Return a copy in the memory of the host, without a copy on the devices.

    The shards of the array on this process's devices must make up the full array.
    """
    shards = array.addressable_shards
    first = shards[0].data
    if first.shape == array.shape:
        # On CPU NumPy gets a view of the buffer itself, which the next step may donate.
        is_view = first.platform() == "cpu"
        return np.array(first) if is_view else np.asarray(first)
    full = np.empty(array.shape, array.dtype)
    for shard in shards:
        full[shard.index] = np.asarray(shard.data)
    return full


def copy_of_span(array: jax.Array, span: Span) -> np.ndarray[Any, Any]:
    """Return a copy of a span in the memory of the host, without a copy on the devices."""
    copy = np.empty(span.shape_in(array.shape), array.dtype)
    for shard in array.addressable_shards:
        if span.shared_with(_span_at(shard.index, span.dimension, array.shape)):
            copy[_within(span, shard.index, array.shape)] = np.asarray(shard.data)
    return copy


def _span_at(index: tuple[slice, ...], dimension: int, shape: tuple[int, ...]) -> Span:
    """Return the span of an index along a dimension."""
    return Span(dimension, *index[dimension].indices(shape[dimension])[:2])


def _within(span: Span, index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return an index of the array as an index of a span of the array."""
    along = _span_at(index, span.dimension, shape).within(span)
    before, after = index[: span.dimension], index[span.dimension + 1 :]
    return (*before, slice(along.start, along.stop), *after)


def array_of_span(values: Any, span: Span, shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
    """Return an array from the span that this process's devices hold.

    Every process gives its own span. The values are copied, so that no other array shares the
    array's memory.
    """

    def part(index: tuple[slice, ...]) -> Any:
        return values[_within(span, index, shape)]

    return _joined(part, shape, sharding, is_in_memory(values))


def array_of_full(value: Any, sharding: Sharding) -> jax.Array:
    """Return an array whose shards on this process's devices are taken from the full value."""
    return _joined(lambda index: value[index], value.shape, sharding, is_in_memory(value))


def is_in_memory(value: Any) -> bool:
    """Return whether a value is an array in memory; a value in a file is read into new memory."""
    return isinstance(value, np.ndarray | np.generic | jax.Array)


def _joined(
    part: Callable[[Any], Any], shape: tuple[int, ...], sharding: Sharding, is_shared: bool
) -> jax.Array:
    copies = [
        _copy_on(device, part(index), is_shared)
        for device, index in sharding.addressable_devices_indices_map(shape).items()
    ]
    return jax.make_array_from_single_device_arrays(shape, sharding, copies)


def _copy_on(device: jax.Device, part: Any, is_shared: bool) -> jax.Array:
    """Return a part on a device. Copy a part whose memory is shared with other arrays."""
    if isinstance(part, jax.Array):
        return jax.device_put(part, device, may_alias=False)
    if not is_shared:  # wait for each part, so that the host holds one part at a time
        return jax.block_until_ready(jax.device_put(part, device))
    # On CPU a device may use a host array's memory as its own, even with an option against it.
    return jax.device_put(np.array(part), device)
