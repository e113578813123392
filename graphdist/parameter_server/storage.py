"""The storage of a variable whose value is on a server.

It has the part of `graphdist.state.storage.Storage` that is asked of any variable: reads fetch the
value, writes replace it. What programs read and write goes through `program.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any  # Any: the strategy, and arrays

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.errors import UnsupportedError
from graphdist.ir.graph import GraphVariable
from graphdist.ir.types import MIRRORED
from graphdist.parameter_server.messages import Key, Read
from graphdist.tracing.user_lines import here


class StorageOnServer:
    """The storage of one variable, by its number."""

    sharded_along = None
    pack = None
    stored = MIRRORED
    is_complete_here = True
    is_in_copies = False
    anchor = None
    is_in_slices_over_workers = False

    def __init__(self, name: str, key: Key, strategy: Any) -> None:
        """Take the number of a variable that a server has."""
        self.name, self.key, self.strategy = name, key, strategy

    @property
    def server(self) -> int:
        """Return the number of the server, as far as it is known in this process."""
        home: int = self.strategy.servers.home(self.key)
        return home

    @property
    def holder(self) -> StorageOnServer:
        """Return the storage: the value is in no pack."""
        return self

    @property
    def buffer(self) -> Any:
        """Return a copy of the value on this process's devices."""
        return jax.device_put(self.host_copy(), self.strategy.devices.mirrored)

    @buffer.setter
    def buffer(self, array: Any) -> None:
        self.strategy.assign(self.key, np.asarray(array))

    held = buffer

    def copy_of_value(self) -> Any:
        """Return a copy of the value on this process's devices."""
        return self.buffer

    def host_copy(self) -> Any:
        """Return a copy of the value in the memory of the host."""
        return np.array(self.strategy.read([Read(self.key)])[0])

    def require_kept(self, *, waits: bool = False) -> None:
        """Do nothing: a request finds out whether the server is there."""

    def renew_if_lost(self) -> None:
        """Do nothing, for the same reason."""

    def described(self, variable: GraphVariable, pack: str, strategy: Any) -> GraphVariable:
        """Return a graph's variable with the number of its server."""
        return replace(variable, server=self.server)

    def copied(self) -> StorageOnServer:
        """Return storage of its own with the same value."""
        return self.strategy.storage_elsewhere(self.name, self.host_copy())


def require_storable(name: str, value: Any) -> None:
    """Raise `UnsupportedError` for a value that no server takes."""
    if isinstance(value, jax.ShapeDtypeStruct):
        raise UnsupportedError(
            f"variable {name!r} is declared by its shape: a parameter server needs its value",
            source=here(),
            hint="give it one: gd.Variable(jnp.zeros(shape))",
        )
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        raise UnsupportedError(
            f"variable {name!r} holds a random key, and a parameter server holds numbers",
            source=here(),
            hint="keep its numbers: jax.random.key_data(key)",
        )
