"""A pack: one buffer of a strategy with a piece for each of several variables.

The pass `pack_variables` decides which variables share a buffer. Users do not notice: the storage
of a variable copies its piece out of the pack, or into it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any  # Any: jitted functions

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.ir.types import MIRRORED
from graphdist.runtime.resharding import mirrored_on

if TYPE_CHECKING:
    from graphdist.state.storage import Storage
    from graphdist.strategy_base import StrategyBase


class VariablePack:
    """The values of several variables in one buffer."""

    def __init__(self, pieces: Sequence[Storage]) -> None:
        """Move values of one dtype into one buffer. Call between steps, holding the lock."""
        self.strategy: StrategyBase = pieces[0].strategy
        values = [np.asarray(piece.buffer).reshape(-1) for piece in pieces]
        self.size = sum(value.size for value in values)
        with jax.enable_x64(True):  # values made under `jax_enable_x64` keep 64 bits
            buffer = mirrored_on(self.strategy.devices, np.concatenate(values))
        self.place = self.strategy.buffers.add(buffer)
        weakref.finalize(self, self.strategy.buffers.release, self.place)
        start = 0
        for piece, value in zip(pieces, values, strict=True):
            piece.enter(self, start)
            start += value.size
        self.strategy.buffers.layout += 1  # steps that take the single pieces must not run

    @property
    def held(self) -> jax.Array:
        """Return the array with all pieces; the next step may donate it."""
        array: jax.Array = self.strategy.buffers.buffers[self.place]
        return array

    def read(self, start: int, shape: tuple[int, ...]) -> jax.Array:
        """Return a copy of the piece that starts at an element."""
        return _taken(self.held, start, shape=shape)

    def write(self, start: int, array: jax.Array) -> None:
        """Replace the piece that starts at an element."""
        buffer = _put(self.held, array, start)
        home = self.strategy.devices.home(MIRRORED)
        self.strategy.buffers.buffers[self.place] = jax.device_put(buffer, home)


@partial(jax.jit, static_argnames="shape")
def _taken(buffer: jax.Array, start: Any, *, shape: tuple[int, ...]) -> jax.Array:
    return jnp.reshape(jax.lax.dynamic_slice_in_dim(buffer, start, prod(shape)), shape)


@jax.jit
def _put(buffer: jax.Array, array: jax.Array, start: Any) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(buffer, jnp.reshape(array, -1), start, 0)
