"""Where a variable's value lies between steps.

It lies in a buffer, which steps donate: a value read is a copy. A mirrored one is whole on every
replica or, once a step has shared its update out, in slices, one a replica; as an array it is the
whole value either way. Small ones share a buffer (`variable_packs.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast  # Any: values of numpy and JAX

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.errors import ArgumentTypeError
from graphdist.ir.graph import Graph
from graphdist.ir.types import MIRRORED, Distribution, sharded
from graphdist.runtime.buffers import is_lost
from graphdist.runtime.files.checkpoint_arrays import host_copy
from graphdist.state.checks import require_value
from graphdist.tracing.sources import here
from graphdist.values.copying import refuse_to_pickle

if TYPE_CHECKING:
    from graphdist.state.packs import VariablePack
    from graphdist.state.variable import Variable
    from graphdist.strategy_base import StrategyBase


class StoredValue:
    """A value in a buffer of a strategy."""

    strategy: StrategyBase
    name: str
    distribution: Distribution
    """What the replicas know of the value."""
    place: int
    """The number of the buffer among the strategy's."""
    sharded_along: int | None = None
    """The dimension along which the replicas share the value out; None: they do not."""

    pack: VariablePack | None = None
    """What holds the value together with others'; None: it has a buffer of its own."""
    piece: int
    """Which part of the pack it is."""
    stays_alone = False
    """Whether it left a pack, for good."""

    def keep(self, buffer: jax.Array) -> None:
        """Lie in a buffer of its own, as long as the variable lives."""
        self.sharded_along = self.pack = None
        self.place = self.strategy.buffers.add(buffer)
        self._release = weakref.finalize(self, self.strategy.buffers.release, self.place)

    def enter(self, pack: VariablePack, piece: int) -> None:
        """Lie in a pack, in which the value is already, and no longer alone."""
        self._release()
        self.pack, self.piece = pack, piece

    def is_packable(self, largest: int) -> bool:
        """Return whether the value can lie in a pack of those of at most so many bytes."""
        if self.pack is not None or self.stays_alone or self.stored is not MIRRORED:
            return False
        buffer = self.buffer
        is_array = isinstance(buffer, jax.Array) and not buffer.is_deleted()
        is_key = jnp.issubdtype(buffer.dtype, jax.dtypes.prng_key)
        return is_array and not is_key and 0 < buffer.nbytes <= largest

    @property
    def holder(self) -> jax.Array:
        """Return the array in which the value lies, others' with it."""
        return self.buffer if self.pack is None else self.pack.buffer

    @property
    def buffer(self) -> jax.Array:
        """Return the array that holds the value, which the next step may donate; of a piece a copy.

        Of one declared by its shape that is not assigned yet it is the shape.
        """
        if self.pack is not None:
            return self.pack.read(self.piece)
        return self.strategy.buffers.buffers[self.place]

    @buffer.setter
    def buffer(self, array: jax.Array) -> None:
        holder = self.holder
        is_known_lost = self.pack is not None and is_lost(holder)  # waits: without the lock
        with self.strategy.buffers.lock:
            if self.pack is None:
                self.strategy.buffers.buffers[self.place] = array
            elif is_known_lost and self.pack.buffer is holder:  # what is assigned begins anew
                self._leave_pack(array)
            else:
                self.pack.write(self.piece, array)

    def _leave_pack(self, array: jax.Array) -> None:
        self.keep(array)
        self.stays_alone = True
        self.strategy.buffers.layout += 1

    @property
    def stored(self) -> Distribution:
        """How the buffer lies on the devices."""
        return self.distribution if self.sharded_along is None else sharded(self.sharded_along)

    def lay_out(self, sharded_along: int | None) -> bool:
        """Have the value lie so, in a buffer of its own; return whether it lay otherwise."""
        if self.sharded_along == sharded_along and self.pack is None:
            return False
        if self.pack is not None:
            self._leave_pack(self.buffer)
        self.sharded_along = sharded_along
        if not isinstance(self.buffer, jax.ShapeDtypeStruct):
            home = self.strategy.devices.home(self.stored)
            self.buffer = jax.device_put(self.buffer, home, may_alias=False)
        return True

    @property
    def lies(self) -> tuple[int | None, VariablePack | None]:
        """Return all that a program is compiled for of where the value lies."""
        return self.sharded_along, self.pack

    def require_kept(self, *, waits: bool = False) -> jax.Array:
        """Return the holder; `RuntimeFailure` where a step is known to have lost the value.

        The step that computes it is waited for if asked, and on CPU. Elsewhere reading is one more
        thing for the devices to do, and the host goes on.
        """
        holder = self.holder
        # Without the lock, which code that the step calls back may need.
        is_gone = (waits or self.strategy.devices.platform == "cpu") and is_lost(holder)
        with self.strategy.buffers.lock:
            is_known_lost = is_gone and self.holder is holder  # not taken by another thread's step
            require_value(cast("Variable", self), is_known_lost=is_known_lost)
        return holder

    def begin_anew_if_lost(self) -> None:
        """Put zeros in the place of a lost value, of which a step that assigns it makes no use."""
        variable, holder = cast("Variable", self), self.holder
        is_here = isinstance(holder, jax.Array) and self.strategy.devices.workers is None
        is_key = jnp.issubdtype(variable.dtype, jax.dtypes.prng_key)
        if is_here and not is_key and is_lost(holder):
            zeros = jnp.zeros(variable.shape, variable.dtype)
            buffer = self.strategy.place_variable(zeros, self.stored)
            with self.strategy.buffers.lock:
                if self.holder is holder:
                    self.buffer = buffer

    def copy_of_value(self) -> jax.Array:
        """Return a copy of the buffer, taken between steps, with mirrored values whole."""
        self.require_kept()
        with self.strategy.buffers.lock:
            if self.pack is not None:
                return self.pack.read(self.piece)
            if self.sharded_along is None:
                return jnp.array(self.buffer, copy=True)
            home = self.strategy.devices.home(self.distribution)
            return jax.device_put(self.buffer, home, may_alias=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a variable of its own with the same options and values, of the same strategy."""
        cast("Variable", self).require_same_strategy()
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), _implicit={})
        copy.keep(self.copy_of_value())
        return copy

    def __copy__(self) -> NoReturn:
        raise ArgumentTypeError(
            f"variable {self.name!r} cannot be copied without its value: two would own one buffer",
            source=here(),
            hint="use copy.deepcopy",
        )

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle(
            f"variable {self.name!r}, which is state on devices,",
            "pickle its value: np.asarray(variable)",
        )

    @property
    def is_whole_here(self) -> bool:
        """Return whether this process holds the whole value, and can read it without others."""
        variable = cast("Variable", self)
        holder = self.holder
        is_here = not isinstance(holder, jax.Array) or holder.is_fully_addressable
        return variable.is_mirrored and (self.sharded_along is None or is_here)

    def host_value(self) -> Any:
        """Return a copy of the value in the memory of the host, taken between steps.

        A NumPy array, of random keys an array of JAX. As with `read_value`, all processes read it
        together where no one holds the whole value. Outside functions only.
        """
        variable = cast("Variable", self)
        is_key = jnp.issubdtype(variable.dtype, jax.dtypes.prng_key)
        if is_key or self.pack is not None or not self.is_whole_here:
            value = variable.read_value()
            return value if is_key else np.asarray(value)
        holder = self.require_kept(waits=True)
        with self.strategy.buffers.lock:
            if self.holder is holder:
                return host_copy(self.buffer)
        return np.asarray(variable.read_value())  # another step computes it anew


def layout_of(variables: Sequence[StoredValue], strategy: StrategyBase) -> int:
    """Return another number whenever a variable that a strategy's step takes is laid out anew."""
    stores = {variable.strategy.buffers for variable in variables} or {strategy.buffers}
    return sum(store.layout for store in stores)


def as_stored(graph: Graph, variables: Sequence[StoredValue]) -> Graph:
    """Return a logical graph that knows how the buffers of its variables lie."""
    along = iter([variable.sharded_along for variable in variables])
    stored = [one if one.is_local else one.stored_along(next(along)) for one in graph.variables]
    return graph if tuple(stored) == graph.variables else graph.replace(variables=tuple(stored))


def lay_out(variables: Sequence[StoredValue], along: Sequence[int | None], *, alone: bool) -> None:
    """Have values lie in slices along these dimensions, or whole, where they do not.

    With `alone` also those that lie so in a pack get a buffer of their own.
    """
    for variable, dimension in zip(variables, along, strict=True):
        if not alone and variable.sharded_along == dimension:
            continue
        store = variable.strategy.buffers
        with store.lock:
            store.layout += variable.lay_out(dimension)
