"""The value of one variable, independent of its storage.

A program refers to a `StoredValue` also after the value has moved from one storage to another.
Values move under the lock of the buffers. A method waits for devices before the method takes the
lock. Under the lock the method checks whether the value still has the same storage. If the value
has moved, the method begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar  # Any: arrays, or their shapes

import jax
import jax.numpy as jnp

from graphdist.errors import RuntimeFailure
from graphdist.ir.variable_storage import Anchor, VariableStorage
from graphdist.runtime.buffers import is_donated_or_failed
from graphdist.runtime.spans import (
    Part,
    Span,
    array_of_span,
    copy_of_span,
    shards_to_write,
    span_to_write,
)
from graphdist.state.storage import Storage, StorageOnDevices, in_form, out_of_pack, packed
from graphdist.tracing.user_lines import here

Result = TypeVar("Result")


class StoredValue:
    """A value, with its current storage."""

    def __init__(self, storage: Storage) -> None:
        """Store the value's first storage."""
        self.storage = storage
        self.added: dict[tuple[object, ...], StoredValue] = {}
        """The values that local steps added for this one, by role and served parameters."""

    @property
    def on_devices(self) -> StorageOnDevices:
        """Return the storage, which must be on devices of this process's strategy."""
        assert isinstance(self.storage, StorageOnDevices)
        return self.storage

    @property
    def anchor(self) -> StoredValue | None:
        """Return the value at the last synchronization; None if there is none."""
        return self.added.get((Anchor(()),))

    def copy(self) -> Any:
        """Return a copy as users see the value, made between steps."""
        return self._between_steps(
            lambda storage: storage.copy(), prepare=lambda storage: storage.agree_to_copy()
        )

    def copied(self) -> StoredValue:
        """Return a copy as a new value, stored as `Storage.copied` says."""
        return StoredValue(self._between_steps(lambda storage: storage.copied()))

    def _between_steps(
        self,
        act: Callable[[Storage], Result],
        prepare: Callable[[Storage], None] = lambda storage: None,
    ) -> Result:
        while True:
            storage = self.storage
            storage.require_not_donated(self)
            prepare(storage)
            with storage.lock:
                if self.storage is storage:
                    return act(storage)

    def host_copy(self) -> Any:
        """Return a copy in the memory of the host; None if devices must compute the copy."""
        storage = self.storage
        if storage.pack is not None or not storage.is_complete_here:
            return None
        held = storage.require_not_donated(self, waits=True)
        with storage.lock:
            is_there = self.storage is storage and storage.holds(held)
            return storage.host_copy() if is_there else None

    def replace(self, array: Any, storage: Storage) -> bool:
        """Store `array`, placed for `storage`; return False if the value has moved meanwhile."""
        pack = storage.pack
        held = None if pack is None else pack.held
        is_lost_pack = held is not None and is_donated_or_failed(held)
        with storage.lock:
            if self.storage is not storage:
                return False
            if pack is not None and is_lost_pack and pack.held is held:
                # A lost pack cannot be written, and its other pieces stay lost.
                self.storage = out_of_pack(self.on_devices, array)
            else:
                storage.write(array)
            return True

    def renew_if_lost(self) -> None:
        """Replace a lost value by zeros, for a step that assigns the variable but never reads it.

        The step receives the buffer, although the step ignores the value. Without zeros the step
        would fail if the buffer was donated, or if the step that computes the buffer failed.
        """
        storage = self.on_devices
        held = storage.held
        is_here = isinstance(held, jax.Array) and storage.strategy.devices.workers is None
        if is_here and not _is_key(held) and is_donated_or_failed(held):
            zeros = storage.zeros()
            with storage.lock:
                if storage.holds(held):
                    self.replace(zeros, storage)

    def begin_with_zeros(self) -> bool:
        """Set the value to zeros if only its shape is known; return whether it was set.

        This is for a step that receives the buffer, ignores the value, and assigns the variable.
        """
        with self.storage.lock:
            storage = self.on_devices
            is_declared = isinstance(storage.held, jax.ShapeDtypeStruct)
            if not is_declared or _is_key(storage.held) or storage.strategy.devices.is_absent:
                return False
            storage.write(storage.zeros())
            return True

    def store_as(self, form: VariableStorage, core: int | None = None) -> None:
        """Move the value to the storage that a graph states. Called under the lock.

        `core` is the dimension along which the cores of a replica hold shards.
        """
        self.storage = in_form(self.on_devices, form, core)

    @property
    def own_span(self) -> Span:
        """Return the part of a sharded value that has all that this process's devices hold."""
        return self.on_devices.own_span

    def copy_of_own_shards(self) -> tuple[Span, Any] | None:
        """Return the shards that this process saves for all processes, in the memory of the host.

        Return None if another process holds the same shards and saves them.
        """
        while True:
            storage = self.on_devices
            held = storage.require_not_donated(self, waits=True)
            storage.agree_to_write()
            with storage.lock:
                if self.storage is storage and storage.holds(held):  # no step has donated it
                    array = storage.to_write()
                    span = span_to_write(array, storage.span_along)
                    return None if span is None else (span, copy_of_span(array, span))

    def own_shards(self) -> Iterator[tuple[Part, Any]]:
        """Yield the shards that this process saves, each with its index, in the host's memory.

        Raises `RuntimeFailure` if a step assigns the value meanwhile, because the shards would be
        parts of two values.
        """
        storage = self.on_devices
        held = storage.require_not_donated(self, waits=True)
        shards = shards_to_write(held)
        while True:
            with storage.lock:
                if self.storage is not storage or not storage.holds(held):
                    raise RuntimeFailure(
                        f"variable {storage.name!r} was assigned while its shards were read",
                        source=here(),
                        hint="run no step meanwhile",
                    )
                shard = next(shards, None)
            if shard is None:
                return
            yield shard

    def assign_own_shards(self, values: Any) -> None:
        """Replace a sharded value. Each process gives the shards of its own `own_span`."""
        while True:
            storage = self.on_devices
            array = array_of_span(values, storage.own_span, storage.shape, storage.home)
            if self.replace(array, storage):
                return


def store_in_pack(values: Sequence[StoredValue]) -> None:
    """Move values of one dtype to a new pack, in their order. Called under the lock."""
    before = [value.on_devices for value in values]
    for value, piece in zip(values, packed(before), strict=True):
        value.storage = piece
    for storage in before:
        storage.holder.release()


def _is_key(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))
