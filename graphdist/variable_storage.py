"""Where a variable's value lies between steps.

It lies in one buffer, which steps donate: a value read is a copy. A mirrored one is whole on every
replica or, once a step has shared its update out, in slices, one a replica; as an array it is the
whole value either way.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, cast  # Any: values of numpy and JAX

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.ir.types import Distribution, sharded
from graphdist.runtime.checkpoints import host_copy
from graphdist.variable_checks import require_value

if TYPE_CHECKING:
    from graphdist.strategies.base import Strategy
    from graphdist.variables import Variable


class StoredValue:
    """A value in a buffer of a strategy."""

    strategy: Strategy
    distribution: Distribution
    """What the replicas know of the value."""
    place: int
    """The number of the buffer among the strategy's."""
    sharded_along: int | None = None
    """The dimension along which the replicas share the value out; None: they do not."""

    def keep(self, buffer: jax.Array) -> None:
        """Lie in a buffer of its own, as long as the variable lives."""
        self.sharded_along = None
        self.place = self.strategy.buffers.add(buffer)
        weakref.finalize(self, self.strategy.buffers.release, self.place)

    @property
    def buffer(self) -> jax.Array:
        """Return the array that holds the value; the next step may donate it."""
        return self.strategy.buffers.buffers[self.place]

    @buffer.setter
    def buffer(self, array: jax.Array) -> None:
        self.strategy.buffers.buffers[self.place] = array

    @property
    def stored(self) -> Distribution:
        """How the buffer lies on the devices."""
        return self.distribution if self.sharded_along is None else sharded(self.sharded_along)

    def lay_out(self, sharded_along: int | None) -> bool:
        """Have the buffer lie so from now on; return whether it lay otherwise."""
        if self.sharded_along == sharded_along:
            return False
        self.sharded_along = sharded_along
        if not isinstance(self.buffer, jax.ShapeDtypeStruct):
            home = self.strategy.devices.home(self.stored)
            self.buffer = jax.device_put(self.buffer, home, may_alias=False)
        return True

    def copy_of_value(self) -> jax.Array:
        """Return a copy of the buffer, taken between steps, with mirrored values whole."""
        with self.strategy.buffers.lock:
            require_value(cast("Variable", self))
            if self.sharded_along is None:
                return jnp.array(self.buffer, copy=True)
            home = self.strategy.devices.home(self.distribution)
            return jax.device_put(self.buffer, home, may_alias=False)

    @property
    def is_whole_here(self) -> bool:
        """Return whether this process holds the whole value, and can read it without others."""
        variable = cast("Variable", self)
        is_cut = self.sharded_along is not None and not self.buffer.is_fully_addressable
        return variable.is_mirrored and not is_cut

    def host_value(self) -> Any:
        """Return a copy of the value in the memory of the host, taken between steps.

        A NumPy array, of random keys an array of JAX. As with `read_value`, all processes read it
        together where no one holds the whole value. Outside functions only.
        """
        variable = cast("Variable", self)
        is_key = jax.numpy.issubdtype(variable.dtype, jax.dtypes.prng_key)
        if is_key or not self.is_whole_here:
            value = variable.read_value()
            return value if is_key else np.asarray(value)
        with self.strategy.buffers.lock:
            require_value(variable)
            return host_copy(self.buffer)
