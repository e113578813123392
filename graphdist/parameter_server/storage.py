"""The storage of a variable whose value is on a server.

Reads fetch the value, writes replace it. Programs read and write variables by `program.py`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar  # Any: the strategy, and arrays

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.errors import UnsupportedError
from graphdist.ir.variable_storage import StoredOnServer
from graphdist.parameter_server.messages import Key, Read
from graphdist.state.storage import Storage
from graphdist.state.stored_values import StoredValue
from graphdist.state.variable import Variable


@dataclass(eq=False)
class ServerStorage(Storage):
    """The value of a variable on a server; `key` is its id there."""

    lock: ClassVar[AbstractContextManager[Any]] = nullcontext()
    name: str
    key: Key
    strategy: Any

    @property
    def server(self) -> int:
        """Return the index of the server, as far as this process knows."""
        return self.strategy.servers.home(self.key)

    def copy(self) -> jax.Array:
        """Return a copy of the value on this process's devices."""
        return jax.device_put(self.host_copy(), self.strategy.devices.mirrored)

    held = property(copy)

    def host_copy(self) -> Any:
        """Return a copy of the value in the memory of the host."""
        with self.strategy.asking_servers() as servers:
            return np.array(servers.read([Read(self.key)])[0])

    def holds(self, array: Any) -> bool:
        """Return True, since no step donates a value on a server."""
        return True

    def require_not_donated(self, of: StoredValue, *, waits: bool = False) -> None:
        """Do nothing, since a request to a lost server raises an error."""

    def write(self, array: Any) -> None:
        """Replace the value on the server."""
        with self.strategy.asking_servers() as servers:
            servers.assign(self.key, np.asarray(array))

    def in_graph(self, pack: str, strategy: Any) -> StoredOnServer:
        """Return the storage as a graph states it."""
        return StoredOnServer(self.server)

    def copied(self) -> ServerStorage:
        """Return new storage with a copy of the value."""
        return self.strategy.storage_elsewhere(self.name, self.host_copy())


def on_server(variable: Variable) -> ServerStorage:
    """Return the storage of a variable that is on a server."""
    assert isinstance(variable.storage, ServerStorage)
    return variable.storage


def require_storable(name: str, value: Any) -> None:
    """Raise `UnsupportedError` for a value that servers cannot store."""
    if isinstance(value, jax.ShapeDtypeStruct):
        raise UnsupportedError(
            f"variable {name!r} is declared by its shape: a parameter server needs its value",
            hint="give it one: gd.Variable(jnp.zeros(shape))",
        )
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        raise UnsupportedError(
            f"variable {name!r} holds a random key, and a parameter server holds numbers",
            hint="keep its numbers: jax.random.key_data(key)",
        )
