"""The storage of a variable's value between steps: a protocol, and a class for each form.

* `BufferStorage`: the full value on every replica, a shard on each replica, or each replica's own
  value;
* `PackedStorage`: a piece of a pack, a buffer that several small values share;
* `CopiesStorage`: a copy on each replica of a value that users see as one, for local steps;
* `ServerStorage`, in `graphdist.parameter_server`: the value on a server.

The final graph of a program states the form (`graphdist.ir.variable_storage`). `in_form` and
`packed` move a value from one form to another, in the memory of the devices. Steps donate the
buffers, so every read is a copy. To use a donated buffer again is a segmentation fault.

A storage does not know when another storage replaces it. `StoredValue` knows, and takes the locks.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol  # Any: arrays, or their shapes

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.errors import RuntimeFailure
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout
from graphdist.ir.variable_storage import (
    UNSHARDED,
    StoredElsewhere,
    StoredInCopies,
    StoredInPack,
    StoredSharded,
    StoredUnsharded,
    VariableStorage,
)
from graphdist.runtime.buffers import BufferStore, is_donated_or_failed
from graphdist.runtime.copies import copies_of, mean_of_copies
from graphdist.runtime.resharding import agree_to_gather, mirrored_on, resharded
from graphdist.runtime.spans import Span, array_of_full, held_span, host_copy, is_held_here
from graphdist.tracing.user_lines import here

if TYPE_CHECKING:
    from graphdist.state.stored_values import StoredValue
    from graphdist.strategy_base import StrategyBase


class Storage(Protocol):
    """The storage of one value. Callers hold `lock`, except for methods that say otherwise."""

    lock: ClassVar[AbstractContextManager[Any]]
    name: str
    layout: Layout = MIRRORED
    """The layout of the stored array."""

    @property
    def sharded_along(self) -> int | None:
        """Return the dimension along which the value is sharded; None if it is unsharded."""
        return self.layout.dimension

    @property
    def pack(self) -> VariablePack | None:
        """Return the pack that holds the value; None if it is in no pack."""
        return None

    @property
    def is_over_workers(self) -> bool:
        """Return whether the value is in shards of which this process has only some."""
        return False

    @property
    def is_in_shards_of_workers(self) -> bool:
        """Return whether no process will have all shards, also before there is a value."""
        return False

    @property
    def is_complete_here(self) -> bool:
        """Return whether this process has the full value, and can read it alone."""
        return self.layout is not PER_REPLICA and not self.is_over_workers

    @property
    def held(self) -> Any:
        """Return the array that steps use, without a copy; a shape if there is no value yet."""

    @property
    def buffer(self) -> Any:
        """Return an array of this value alone, which the next step may donate."""
        return self.held

    def require_not_donated(self, of: StoredValue, *, waits: bool = False) -> Any:
        """Return the held array; raises `RuntimeFailure` if the value is known to be lost.

        If `waits`, wait for the step that computes the value. Takes the lock itself.
        """

    def holds(self, array: Any) -> bool:
        """Return whether `array`, returned by `require_not_donated`, is still the held array."""

    def agree_to_copy(self) -> None:
        """Wait until all workers are about to make the copy. Called without the lock."""
        return

    def copy(self) -> Any:
        """Return an unsharded copy, as users see the value."""

    def host_copy(self) -> Any:
        """Return a copy in the memory of the host, if `is_complete_here`."""

    def copied(self) -> Storage:
        """Return new storage with a copy of the value, in a buffer of its own.

        The new storage is sharded if this storage is sharded. Copies of replicas become their mean.
        """

    def write(self, array: Any) -> None:
        """Replace the value by an array with the layout of the stored array."""

    def in_graph(self, pack: str, strategy: StrategyBase) -> VariableStorage:
        """Return the storage as a graph states it; `pack` is the name of the pack in the graph."""


class HeldBuffer:
    """An entry among a strategy's buffers, released with the last reference to this object."""

    def __init__(
        self, strategy: StrategyBase, array: jax.Array, *, has_left_pack: bool = False
    ) -> None:
        """Store an array, or a shape if there is no value yet.

        A value that has left a pack enters no pack again. Otherwise two programs could move the
        value into and out of packs forever.
        """
        self.strategy, self.has_left_pack = strategy, has_left_pack
        self.place = strategy.buffers.add(array)
        """The index of the buffer among the strategy's buffers."""
        self.release = weakref.finalize(self, strategy.buffers.release, self.place)

    @property
    def held(self) -> Any:
        """Return the array; the next step may donate it."""
        return self.strategy.buffers.buffers[self.place]

    @held.setter
    def held(self, array: Any) -> None:
        self.strategy.buffers.buffers[self.place] = array


class VariablePack(HeldBuffer):
    """The values of several variables in one buffer, which is mirrored."""

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return self.held.size

    def read(self, start: int, shape: tuple[int, ...]) -> jax.Array:
        """Return a copy of the piece that starts at the element `start`."""
        return _taken(self.held, start, shape=shape)

    def write(self, start: int, array: jax.Array) -> None:
        """Replace the piece that starts at the element `start`."""
        home = self.strategy.devices.home(MIRRORED)
        self.held = jax.device_put(_put(self.held, array, start), home)


@partial(jax.jit, static_argnames="shape")
def _taken(buffer: jax.Array, start: Any, *, shape: tuple[int, ...]) -> jax.Array:
    return jnp.reshape(jax.lax.dynamic_slice_in_dim(buffer, start, prod(shape)), shape)


@jax.jit
def _put(buffer: jax.Array, array: jax.Array, start: Any) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(buffer, jnp.reshape(array, -1), start, 0)


@dataclass(eq=False)
class StorageOnDevices(Storage):
    """The base of all storage on a strategy's devices; `shape` is the shape of one copy."""

    lock: ClassVar[AbstractContextManager[Any]] = BufferStore.lock
    name: str
    shape: tuple[int, ...]
    holder: HeldBuffer

    @property
    def strategy(self) -> StrategyBase:
        """Return the strategy whose devices store the value."""
        return self.holder.strategy

    @property
    def held(self) -> Any:
        """Return the array that steps use."""
        return self.holder.held

    def holds(self, array: Any) -> bool:
        """Return whether `array` is still the held array."""
        return self.held is array

    def require_not_donated(self, of: StoredValue, *, waits: bool = False) -> Any:
        """Return the held array; raises `RuntimeFailure` if the value is known to be lost.

        If `waits`, and always on CPU, wait for the step that computes the value. On other platforms
        the device reads the value after that step, and the host does not wait.
        """
        held = self.held
        # Not under the lock, which a callback of the step takes if it reads a variable.
        is_gone = (waits or self.strategy.devices.platform == "cpu") and is_donated_or_failed(held)
        with self.lock:
            if of.storage is self:  # not moved meanwhile
                self.require_value(is_known_lost=is_gone and self.holds(held))
        return held

    def require_value(self, *, is_known_lost: bool = False) -> None:
        """Raise `RuntimeFailure` for a value that was only declared by its shape, or is lost.

        Called under the lock, because a step that starts deletes donated buffers before the new
        values are stored.
        """
        held, devices = self.held, self.strategy.devices
        if isinstance(held, jax.ShapeDtypeStruct):
            if devices.is_absent:
                devices.refuse_to_run(f"the value of variable {self.name!r}")
            raise RuntimeFailure(
                f"variable {self.name!r} was declared by its shape, {list(self.shape)}, and "
                f"has no value",
                source=here(),
                hint=f"give it one first: {self.name}.assign(value)",
            )
        if is_known_lost or held.is_deleted():
            step = self._last_to_assign()
            which = "a step" if step is None else f"step {step.name!r}, which assigned it last,"
            raise RuntimeFailure(
                f"the value of variable {self.name!r} is lost: {which} failed, and its buffer was "
                f"given to it",
                source=here(),
                other=step and step.assignment(self),
                hint="restore it from a checkpoint, or assign it again; jax.block_until_ready on "
                "what the step returns shows why it failed",
            )

    def _last_to_assign(self) -> Any:
        """Return the program that was called last and assigns the value; None if unknown."""
        writers = list(self.strategy.buffers.writers)
        programs = [program for program in writers if program.assigns(self.holder)]
        return max(programs, key=lambda program: program.last_call, default=None)

    def copy(self) -> Any:
        """Return a copy of the stored array."""
        return jnp.array(self.held, copy=True)

    def one_value(self) -> Any:
        """Return a copy of the value that users see, or its shape if there is no value yet."""
        return self.copy() if isinstance(self.held, jax.Array) else self.held

    def host_copy(self) -> Any:
        """Return a copy in the memory of the host."""
        return host_copy(self.held)

    def copied(self) -> StorageOnDevices:
        """Return new unsharded storage with a copy of the value that users see."""
        return BufferStorage(self.name, self.shape, HeldBuffer(self.strategy, self.one_value()))

    def write(self, array: Any) -> None:
        """Replace the stored array."""
        self.holder.held = array

    def zeros(self) -> Any:
        """Return a new buffer of zeros, made of a single zero in the memory of the host."""
        zeros = np.broadcast_to(np.zeros((), self.held.dtype), self.shape)
        if self.layout is PER_REPLICA:
            return self.strategy.place_variable(zeros, PER_REPLICA)
        return array_of_full(zeros, self.home)  # equal on all replicas

    @property
    def home(self) -> jax.sharding.Sharding:
        """Return the sharding of the stored array."""
        return self.strategy.devices.home(self.layout)

    @property
    def span_along(self) -> int:
        """Return the dimension along which the part of this process is a span."""
        along = self.layout.core if self.sharded_along is None else self.sharded_along
        return along or 0

    @property
    def own_span(self) -> Span:
        """Return the part of the value that has all that this process's devices hold."""
        return held_span(self.home, self.shape, self.span_along)

    @property
    def is_in_shards_of_workers(self) -> bool:
        """Return whether no process will have all shards, also before there is a value."""
        is_sharded = self.sharded_along is not None or self.layout.core is not None
        return is_sharded and not is_held_here(self.home, self.shape)

    @property
    def layout_to_write(self) -> Layout:
        """Return the layout in which each process writes its shards: those make up a span.

        Shards of cores of another process are not beside those of this process along the other
        dimension, nor are the replicas' shards of a core's shard along the same one.
        """
        along, core = self.sharded_along, self.layout.core
        is_block = self.strategy.devices.workers_per_replica > 1 or along == core
        is_in_blocks = along is not None and core is not None and is_block
        return self.layout.over_cores(None) if is_in_blocks else self.layout

    def agree_to_write(self) -> None:
        """Wait until all workers are about to gather the shards of cores. Called without the lock.

        They are gathered only where processes write the value in another layout.
        """
        if self.layout_to_write is not self.layout:
            agree_to_gather(self.gathering("saving"), self.strategy.devices, here())

    def to_write(self) -> jax.Array:
        """Return the value in `layout_to_write`; the stored array itself if it has that layout."""
        layout = self.layout_to_write
        return self.held if layout is self.layout else self.resharded(layout, "saving")

    def resharded(self, layout: Layout, why: str) -> jax.Array:
        """Return a copy of the value in another layout; `why` is for errors."""
        devices = self.strategy.devices
        home = devices.home(layout)
        return resharded(self.buffer, home, devices, self.gathering(why), here())

    def gathering(self, why: str) -> str:
        """Describe the gathering of the value by all workers, for errors."""
        return f"{why} variable {self.name!r}, which is sharded over all workers,"


@dataclass(eq=False)
class BufferStorage(StorageOnDevices):
    """A buffer has this value alone: unsharded, sharded, or a value of each replica."""

    layout: Layout = MIRRORED

    @property
    def is_over_workers(self) -> bool:
        """Return whether the value is in shards of which this process has only some."""
        held = self.held
        if not isinstance(held, jax.Array) or held.is_fully_addressable:
            return False
        return self.is_in_shards_of_workers

    def agree_to_copy(self) -> None:
        """Wait until all workers are about to gather the value."""
        if self.is_over_workers:
            agree_to_gather(self.gathering("reading"), self.strategy.devices, here())

    def copy(self) -> Any:
        """Return a copy of the value, gathered from its shards."""
        is_full = self.sharded_along is None and self.layout.core is None
        return super().copy() if is_full else self.resharded(MIRRORED, "reading")

    def copied(self) -> BufferStorage:
        """Return new storage with a copy of the value, in the same layout."""
        return replace(self, holder=HeldBuffer(self.strategy, jnp.array(self.held, copy=True)))

    def in_graph(self, pack: str, strategy: StrategyBase) -> VariableStorage:
        """Return the storage for a graph; a variable that has no value yet stays out of packs."""
        if self.sharded_along is not None:
            return StoredSharded(self.sharded_along)
        if self.strategy is not strategy:
            return StoredElsewhere()
        has_value = isinstance(self.held, jax.Array) and not self.held.is_deleted()
        return StoredUnsharded(is_alone=self.holder.has_left_pack or not has_value)


@dataclass(eq=False)
class PackedStorage(StorageOnDevices):
    """The value is a piece of a pack."""

    holder: VariablePack
    start: int
    """The first element of the value in the pack."""

    @property
    def pack(self) -> VariablePack:
        """Return the pack."""
        return self.holder

    @property
    def buffer(self) -> Any:
        """Return a copy of the piece."""
        return self.holder.read(self.start, self.shape)

    def copy(self) -> Any:
        """Return a copy of the piece."""
        return self.buffer

    def write(self, array: Any) -> None:
        """Replace the piece."""
        self.holder.write(self.start, array)

    def in_graph(self, pack: str, strategy: StrategyBase) -> StoredInPack:
        """Return the storage as a graph states it."""
        return StoredInPack(pack, self.start, self.holder.size)


@dataclass(eq=False)
class CopiesStorage(StorageOnDevices):
    """Each replica stores its own copy of a value that users see as one."""

    layout = PER_REPLICA

    def one_value(self) -> Any:
        """Return the mean of the copies as a new mirrored array; its shape if there is no value."""
        if not isinstance(self.held, jax.Array):
            return self.held
        return mean_of_copies(self.held, self.shape, self.strategy.devices)

    def in_graph(self, pack: str, strategy: StrategyBase) -> StoredInCopies:
        """Return the storage as a graph states it."""
        return StoredInCopies()


def in_form(
    storage: StorageOnDevices, form: VariableStorage, core: int | None = None
) -> StorageOnDevices:
    """Return storage of the same value in the form that a graph states. Called under the lock.

    `core` is the dimension along which the cores of a replica hold shards; None: each is full.

    A value that is stored in a pack is then stored by itself. Storage in which each replica has its
    own copy is returned unchanged, whatever the form.
    """
    along = form.dimension if isinstance(form, StoredSharded) else None
    if isinstance(storage, CopiesStorage):
        return storage
    if isinstance(form, StoredInCopies):
        return _in_copies(in_form(storage, UNSHARDED))
    held = storage.layout.core
    if storage.pack is None and storage.sharded_along == along and held == core:
        return storage
    if storage.pack is not None:
        storage = out_of_pack(storage, storage.buffer)
    layout = MIRRORED if along is None else storage.strategy.devices.slices(along)
    layout = layout.over_cores(core)
    new = BufferStorage(storage.name, storage.shape, storage.holder, layout)
    if isinstance(storage.held, jax.Array):
        new.write(storage.resharded(new.layout, "storing"))
    BufferStore.version += 1
    return new


def _in_copies(storage: StorageOnDevices) -> CopiesStorage:
    new = CopiesStorage(storage.name, storage.shape, storage.holder)
    if isinstance(storage.held, jax.Array):
        new.write(copies_of(storage.held, storage.strategy.devices))
    BufferStore.version += 1
    return new


def out_of_pack(storage: StorageOnDevices, array: jax.Array) -> BufferStorage:
    """Return storage for `array`, a value that leaves its pack. Called under the lock."""
    BufferStore.version += 1
    holder = HeldBuffer(storage.strategy, array, has_left_pack=True)
    return BufferStorage(storage.name, storage.shape, holder)


def packed(storages: Sequence[StorageOnDevices]) -> list[PackedStorage]:
    """Return the storage of values of one dtype in a new pack, in order. Called under the lock."""
    strategy = storages[0].strategy
    values = [np.asarray(storage.buffer).reshape(-1) for storage in storages]
    with jax.enable_x64(True):  # values made under `jax_enable_x64` keep 64 bits
        pack = VariablePack(strategy, mirrored_on(strategy.devices, np.concatenate(values)))
    BufferStore.version += 1  # steps that use the separate buffers must not run
    starts = accumulate([value.size for value in values], initial=0)
    return [
        PackedStorage(storage.name, storage.shape, pack, start)
        for storage, start in zip(storages, starts, strict=False)
    ]
