"""The part that one process holds of an array that is sharded over several processes.

Replicas are numbered process by process, so a process holds consecutive shards. Together these are
a span: a range of indices along the sharded dimension. Several groups of replicas may hold the same
shards; only one process writes a shard to a file.
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
    """The indices from `start` to before `stop` along `dimension`, all along other dimensions.

    >>> np.arange(6).reshape(2, 3)[Span(1, 0, 2).index]
    array([[0, 1],
           [3, 4]])
    """

    dimension: int
    start: int
    stop: int

    @property
    def index(self) -> tuple[slice, ...]:
        """Return the index that takes the span out of an array."""
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
    here = _parts(sharding.addressable_devices_indices_map(shape).values(), shape)
    return here == _parts(sharding.devices_indices_map(shape).values(), shape)


def _parts(indices: Iterable[Any], shape: tuple[int, ...]) -> set[tuple[Any, ...]]:
    """Return the distinct indices, as bounds: before Python 3.12 slices are not hashable."""
    return {
        tuple(part.indices(size) for part, size in zip(index, shape, strict=True))
        for index in indices
    }


def held_span(sharding: Sharding, shape: tuple[int, ...], dimension: int) -> Span:
    """Return the span that this process's devices hold of an array sharded along a dimension."""
    indices = sharding.addressable_devices_indices_map(shape).values()
    span = _union((index[dimension] for index in indices if index is not None), shape, dimension)
    assert span is not None
    return span


def span_to_write(array: jax.Array, dimension: int) -> Span | None:
    """Return the span that this process writes to a file, so that each shard is written once.

    Return None if other processes hold the same shards and write them.
    """
    firsts = (shard for shard in array.addressable_shards if shard.replica_id == 0)
    return _union((shard.index[dimension] for shard in firsts), array.shape, dimension)


def shards_to_write(array: jax.Array) -> Iterator[tuple[Part, np.ndarray[Any, Any]]]:
    """Yield a copy in the memory of the host of each shard that this process writes to a file.

    Each comes with its index in the array; each shard is written by one process.
    """
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            yield with_bounds(shard.index, array.shape), np.array(shard.data)


def with_bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> Part:
    """Return an index with all bounds; dimensions that the index leaves out are taken in full.

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
        start, stop, _ = shard.index[span.dimension].indices(array.shape[span.dimension])
        if span.shared_with(held := Span(span.dimension, start, stop)):
            copy[held.within(span).index] = np.asarray(shard.data)
    return copy


def array_of_span(values: Any, span: Span, shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
    """Return an array from the span that this process's devices hold.

    Every process gives its own span. The values are copied: nothing else uses the array's memory.
    """

    def part(index: tuple[slice, ...]) -> Any:
        start, stop, _ = index[span.dimension].indices(shape[span.dimension])
        return values[Span(span.dimension, start, stop).within(span).index]

    return _joined(part, shape, sharding, is_in_memory(values))


def array_of_full(value: Any, sharding: Sharding) -> jax.Array:
    """Return an array whose shards on this process's devices are taken from the full value."""
    return _joined(lambda index: value[index], value.shape, sharding, is_in_memory(value))


def is_in_memory(value: Any) -> bool:
    """Return whether a value is an array; what is read from a file has memory of its own."""
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
    """Return a part on a device; if others share its memory, a copy of it."""
    if isinstance(part, jax.Array):
        return jax.device_put(part, device, may_alias=False)
    if not is_shared:  # one after the other, so that the host holds one
        return jax.block_until_ready(jax.device_put(part, device))
    # On CPU a device may use a host array's memory as its own, even with an option against it.
    return jax.device_put(np.array(part), device)
