"""How the value of a variable is stored between steps.

The value is stored in a buffer that steps donate, so every read returns a copy: a donated buffer
that is used again is a segmentation fault. A mirrored value is stored in full on every replica or,
once a program has sharded its update, in slices, one a replica; a read returns the full value
either way. Small values share a buffer (`packs.py`).

The final graph of a program says how its variables are stored, and `layout.py` follows it. This
module carries out a single move, and refuses to read a value that was lost with a failed step.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any  # Any: values of numpy and JAX

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.errors import RuntimeFailure
from graphdist.ir.graph import GraphVariable, Piece
from graphdist.ir.types import MIRRORED, PER_REPLICA, Distribution
from graphdist.passes.local_variables import ANCHOR, COPIES
from graphdist.runtime.buffers import is_lost
from graphdist.runtime.copies import copies_of, mean_of_copies
from graphdist.runtime.resharding import agree_to_gather, resharded
from graphdist.runtime.spans import (
    Span,
    array_of_full,
    array_of_span,
    copy_of_span,
    held_span,
    host_copy,
    is_held_here,
    span_to_write,
)
from graphdist.tracing.user_lines import here

if TYPE_CHECKING:
    from graphdist.state.packs import VariablePack
    from graphdist.strategy_base import StrategyBase


class Storage:
    """The storage of one variable: a buffer of its own, or a piece of a pack."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        strategy: StrategyBase,
        distribution: Distribution,
        buffer: jax.Array | jax.ShapeDtypeStruct,
        sharded_along: int | None = None,
    ) -> None:
        """Keep a buffer as long as the variable lives; a shape stands for a value still to come.

        `shape` is the shape of one copy; the buffer of a PER_REPLICA variable holds R of them.
        """
        self.name, self.shape, self.dtype = name, shape, buffer.dtype
        self.strategy, self.distribution = strategy, distribution
        self.sharded_along: int | None
        """The dimension along which each replica stores its slice; None: the full value."""
        self.pack: VariablePack | None = None
        """The pack that holds the value; None: it has a buffer of its own."""
        self.start = 0
        """The first element of the value in the pack."""
        self._left_a_pack = False
        self.is_in_copies = False
        """Whether each replica stores a copy of its own of a value that users see as one."""
        self.kept_for_it: dict[tuple[object, ...], Storage] = {}
        """The storage of variables that a pass added for this one, such as its anchor."""
        self._keep(buffer)
        self.sharded_along = sharded_along

    def _keep(self, buffer: Any) -> None:
        """Store the value in a buffer of its own."""
        self.sharded_along = self.pack = None
        self.place = self.strategy.buffers.add(buffer)
        """The number of the buffer among the strategy's."""
        self._release = weakref.finalize(self, self.strategy.buffers.release, self.place)

    def enter(self, pack: VariablePack, start: int) -> None:
        """Release the own buffer: the pack already holds the value."""
        self._release()
        self.pack, self.start = pack, start

    @property
    def holder(self) -> VariablePack | Storage:
        """Return the owner of the buffer that steps take: the pack, or this storage."""
        return self.pack or self

    @property
    def buffer(self) -> Any:
        """Return the array that holds the value; the next step may donate it.

        For a piece of a pack it is a copy, for a variable declared by its shape and not assigned
        yet it is the shape.
        """
        if self.pack is not None:
            return self.pack.read(self.start, self.shape)
        return self.strategy.buffers.buffers[self.place]

    @buffer.setter
    def buffer(self, array: jax.Array) -> None:
        held = self.holder.held
        is_known_lost = self.pack is not None and is_lost(held)  # waits, so not under the lock
        with self.strategy.buffers.lock:
            if self.pack is None:
                self.strategy.buffers.buffers[self.place] = array
            elif (
                is_known_lost and self.pack.held is held
            ):  # a lost pack cannot be written, and its other pieces stay lost
                self._leave_pack(array)
            else:
                self.pack.write(self.start, array)

    @property
    def held(self) -> Any:
        """Return the array that steps take, without a copy."""
        return self.strategy.buffers.buffers[self.place]

    def _leave_pack(self, array: jax.Array) -> None:
        self._keep(array)
        self._left_a_pack = True
        self.strategy.buffers.layout += 1

    @property
    def stored(self) -> Distribution:
        """How the buffer is distributed over the devices."""
        if self.sharded_along is None:
            return self.distribution
        return self.strategy.devices.slices(self.sharded_along)

    def described(
        self, variable: GraphVariable, pack: str, strategy: StrategyBase
    ) -> GraphVariable:
        """Return a graph's variable with the current storage, for a program of a strategy.

        `pack` is the graph's name of the pack that holds the value. A variable that has left a pack
        is marked `alone` for ever, or two programs would move it back and forth.
        """
        held = self.holder.held
        is_array = isinstance(held, jax.Array) and not held.is_deleted()
        piece = None if self.pack is None else Piece(pack, self.start, self.pack.size)
        return replace(
            variable,
            role=COPIES if self.is_in_copies else "",
            sharded_along=self.sharded_along,
            piece=piece,
            alone=piece is None
            and (self._left_a_pack or self.strategy is not strategy or not is_array),
        )

    def lay_out(self, sharded_along: int | None) -> None:
        """Store the value in its own buffer, in slices or in full, under the stores' lock."""
        if self.sharded_along == sharded_along and self.pack is None:
            return
        if self.pack is not None:
            self._leave_pack(self.buffer)
        self.strategy.buffers.layout += 1
        self.sharded_along = sharded_along
        if not isinstance(self.buffer, jax.ShapeDtypeStruct):
            self.buffer = self._resharded(self.stored, "storing")

    def store_copies(self) -> None:
        """Store a copy of the value for each replica, under the stores' lock: local steps."""
        if self.is_in_copies:
            return
        self.lay_out(None)
        self.strategy.buffers.layout += 1
        value = self.buffer
        self.distribution, self.is_in_copies = PER_REPLICA, True
        if isinstance(value, jax.Array):
            self.buffer = copies_of(value, self.strategy.devices)

    def mean_of_copies(self) -> Any:
        """Return the value that stands for all copies, as a new mirrored array; under the lock."""
        if not self.is_in_copies or not isinstance(self.buffer, jax.Array):
            return self._copy_as_stored() if isinstance(self.buffer, jax.Array) else self.buffer
        return mean_of_copies(self.buffer, self.shape, self.strategy.devices)

    @property
    def anchor(self) -> Storage | None:
        """Return the storage of the value at the last synchronization, if there is one."""
        return self.kept_for_it.get((ANCHOR,))

    def require_kept(self, *, waits: bool = False) -> Any:
        """Return the held array; raises `RuntimeFailure` if the value is known to be lost.

        Waits for the step that computes it if `waits`, and always on CPU. On other platforms a read
        is dispatched behind that step, and the host continues.
        """
        held = self.holder.held
        # Not under the lock: the step may call back code that reads a variable and needs the lock.
        is_gone = (waits or self.strategy.devices.platform == "cpu") and is_lost(held)
        with self.strategy.buffers.lock:
            is_known_lost = is_gone and self.holder.held is held  # not replaced meanwhile
            require_value(self, is_known_lost=is_known_lost)
        return held

    def renew_if_lost(self) -> None:
        """Replace a lost value by zeros, for a step that assigns the variable without reading it.

        The step takes the buffer although it ignores the value, and a lost buffer cannot be passed.
        """
        held = self.holder.held
        is_here = isinstance(held, jax.Array) and self.strategy.devices.workers is None
        is_key = jnp.issubdtype(self.dtype, jax.dtypes.prng_key)
        if is_here and not is_key and is_lost(held):
            buffer = self._zeros()
            with self.strategy.buffers.lock:
                if self.holder.held is held:
                    self.buffer = buffer

    def _zeros(self) -> Any:
        """Return a new buffer of zeros, made of a single zero in the memory of the host."""
        zeros = np.broadcast_to(np.zeros((), self.dtype), self.shape)
        if self.distribution is not MIRRORED:
            return self.strategy.place_variable(zeros, self.stored)
        return array_of_full(zeros, self.strategy.devices.home(self.stored))  # the same on all

    def begin_with_zeros(self) -> bool:
        """Give zeros to a variable that was declared by its shape; return whether it was.

        For a step that takes the buffer, assigns it, and ignores the value.
        """
        is_key = jnp.issubdtype(self.dtype, jax.dtypes.prng_key)
        is_absent = self.strategy.devices.is_absent
        with self.strategy.buffers.lock:
            is_declared = isinstance(self.holder.held, jax.ShapeDtypeStruct)
            if not is_declared or is_key or is_absent:
                return False
            self.buffer = self._zeros()
            return True

    def copy_of_value(self) -> jax.Array:
        """Return a copy of the value, taken between steps; a sliced value is put together."""
        self.require_kept()
        if self.is_in_slices_over_workers:  # before the lock: see `require_kept`
            agree_to_gather(self._gathering("reading"), self.strategy.devices, here())
        with self.strategy.buffers.lock:
            if self.pack is not None or self.sharded_along is None:
                return self._copy_as_stored()
            return self._resharded(self.distribution, "reading")

    def _copy_as_stored(self) -> jax.Array:
        if self.pack is not None:
            return self.pack.read(self.start, self.shape)
        return jnp.array(self.buffer, copy=True)

    def _resharded(self, distribution: Distribution, why: str) -> jax.Array:
        devices = self.strategy.devices
        what = self._gathering(why)
        return resharded(self.buffer, devices.home(distribution), devices, what, here())

    def _gathering(self, why: str) -> str:
        return f"{why} variable {self.name!r}, which is in slices over all workers,"

    def copied(self) -> Storage:
        """Return storage of its own with the same value, in the same form but for packs."""
        self.require_kept()
        with self.strategy.buffers.lock:
            along = self.sharded_along
            copy = self.mean_of_copies() if self.is_in_copies else self._copy_as_stored()
        distribution = MIRRORED if self.is_in_copies else self.distribution
        return Storage(self.name, self.shape, self.strategy, distribution, copy, along)

    @property
    def is_complete_here(self) -> bool:
        """Return whether this process holds the full value, and reads it alone."""
        return self.distribution is MIRRORED and not self.is_in_slices_over_workers

    @property
    def is_in_slices_over_workers(self) -> bool:
        """Return whether the value is in slices of which this process holds some only."""
        held = self.holder.held
        if self.sharded_along is None or not isinstance(held, jax.Array):
            return False
        return not (held.is_fully_addressable or is_held_here(held.sharding, self.shape))

    @property
    def own_span(self) -> Span:
        """Return the part of a value in slices that the devices of this process hold."""
        home = self.strategy.devices.home(self.stored)
        return held_span(home, self.shape, self.sharded_along or 0)

    def copy_of_own_slices(self) -> tuple[Span, Any] | None:
        """Return, in the memory of the host, the slices that this process saves for all.

        It is None if other processes hold the same slices and save them.
        """
        while True:
            held = self.require_kept(waits=True)
            with self.strategy.buffers.lock:
                if self.holder.held is held:  # else a step has donated it meanwhile
                    span = span_to_write(held, self.sharded_along or 0)
                    return None if span is None else (span, copy_of_span(held, span))

    def assign_own_slices(self, values: Any) -> None:
        """Replace a value in slices; each process gives the slices of `own_span`."""
        home = self.strategy.devices.home(self.stored)
        self.buffer = array_of_span(values, self.own_span, self.shape, home)

    def host_copy(self) -> Any:
        """Return a copy in the memory of the host; None where the devices must build it."""
        if self.pack is not None or not self.is_complete_here:
            return None
        held = self.require_kept(waits=True)
        with self.strategy.buffers.lock:
            return host_copy(self.buffer) if self.holder.held is held else None


def require_value(storage: Storage, *, is_known_lost: bool = False) -> None:
    """Raise `RuntimeFailure` for a variable that was declared by its shape, or is lost.

    Call it under the lock of the stores: during a step the buffers it donated are deleted, too.
    """
    held = storage.holder.held
    if isinstance(held, jax.ShapeDtypeStruct):
        if storage.strategy.devices.is_absent:
            what = f"the value of variable {storage.name!r}"
            storage.strategy.devices.refuse_to_run(what, here())
        raise RuntimeFailure(
            f"variable {storage.name!r} was declared by its shape, {list(storage.shape)}, and "
            f"has no value",
            source=here(),
            hint=f"give it one first: {storage.name}.assign(value)",
        )
    if is_known_lost or held.is_deleted():
        step = _last_to_assign(storage)
        which = "a step" if step is None else f"step {step.name!r}, which assigned it last,"
        raise RuntimeFailure(
            f"the value of variable {storage.name!r} is lost: {which} failed, and its buffer was "
            f"given to it",
            source=here(),
            other=step and step.assignment(storage),
            hint="restore it from a checkpoint, or assign it again; jax.block_until_ready on what "
            "the step returns shows why it failed",
        )


def _last_to_assign(storage: Storage) -> Any:
    """Return the last called of the programs that assign a variable; None if unknown."""
    writers = list(storage.strategy.buffers.writers)
    programs = [program for program in writers if program.assigns(storage.holder)]
    return max(programs, key=lambda program: program.last_call, default=None)
