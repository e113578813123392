"""A parameter server: a process that stores the values of variables.

Requests run one after the other, each completely: a reader sees all of a request's updates on this
server, or none. Updates are compiled once, with XLA, for the CPU; all updates of a request run as
one program.

A server keeps the ids of the closures that have written last. A closure that runs again, since its
worker died, may have written already. In this case the answer to its request says so. If the worker
was only silent, its later requests for a closure that another worker runs by now raise an error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any  # Any: arrays

import jax
import numpy as np
from jax import export

from graphdist.errors import RuntimeFailure
from graphdist.parameter_server.connections import RequestListener
from graphdist.parameter_server.messages import Change, Elsewhere, Key, Origin, Read, UnknownUpdates
from graphdist.parameter_server.ray_cluster import BeatingProcess, ray

REQUESTS = frozenset({"create", "drop", "give_up", "read", "add_updates", "apply", "end_attempts"})
_REMEMBERED = 4096
"""The number of closures that a server remembers, which exceeds the number that can run."""


class ParameterServer(BeatingProcess):
    """The actor; see the module."""

    def __init__(self, enable_x64: bool, key: bytes, is_local: bool) -> None:
        """Begin without variables, and listen."""
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", enable_x64)
        self._values: dict[Key, Any] = {}
        self._moved: dict[Key, int] = {}
        self._updates: dict[str, Callable[..., Any]] = {}
        self._programs: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._writers: OrderedDict[int, int] = OrderedDict()
        self._first_attempts: OrderedDict[int, int] = OrderedDict()
        """The first attempt at each closure that may still write; 0 for missing closures."""
        self._lock = Lock()
        host = "127.0.0.1" if is_local else ray().util.get_node_ip_address()
        self._listener = RequestListener(host, key, self._answer)

    def address(self) -> tuple[str, int]:
        """Return where the server listens."""
        return self._listener.address

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Run one request, after the requests of other processes that came before."""
        if name not in REQUESTS:
            raise RuntimeFailure(f"a server has no request {name!r}")
        with self._lock:
            return getattr(self, name)(*arguments)

    def create(self, key: Key, value: np.ndarray[Any, Any]) -> None:
        """Store the first value of a variable, or the value of one that is moved here."""
        self._values[key] = np.array(value)
        self._moved.pop(key, None)

    def drop(self, keys: Sequence[Key]) -> None:
        """Drop variables that have no references any more."""
        for key in keys:
            self._values.pop(key, None)
            self._moved.pop(key, None)

    def give_up(self, key: Key, server: int) -> Any:
        """Drop a variable that moves to another server; return its value, None if missing."""
        if key not in self._values:
            return None
        self._moved[key] = server
        return np.asarray(self._values.pop(key))

    def read(self, wanted: Sequence[Read]) -> Any:
        """Return the values of variables, or the wanted rows of the values."""
        if lacking := self._elsewhere([read.key for read in wanted]):
            return lacking
        values = [np.asarray(self._values[read.key]) for read in wanted]
        return [
            value if read.rows is None else value[read.rows]
            for value, read in zip(values, wanted, strict=True)
        ]

    def add_updates(self, modules: dict[str, bytes]) -> None:
        """Load updates, by name."""
        loaded = {name: export.deserialize(bytearray(modules[name])).call for name in modules}
        self._updates.update(loaded)

    def apply(self, changes: Sequence[Change], sent: Sequence[Any], origin: Origin | None) -> Any:
        """Apply changes; return whether the closure has written here before.

        Raises `RuntimeFailure` if the closure was given to another worker meanwhile.
        """
        if origin and origin.attempt < self._first_attempts.get(origin.closure, 0):
            raise RuntimeFailure(
                f"attempt {origin.attempt} at closure {origin.closure} writes too late: it was "
                f"given to another worker"
            )
        keys = [key for change in changes for key in change.keys]
        if lacking := self._elsewhere(keys):
            return lacking
        if any(change.update and change.update not in self._updates for change in changes):
            return UnknownUpdates()
        for change in changes:
            if change.update is None:
                # A copy, since received arrays are in memory that other processes share.
                self._values[change.keys[0]] = np.array(sent[change.sent[0]])
        self._update([change for change in changes if change.update is not None], sent)
        if origin is None:
            return False
        has_written_before = origin.closure in self._writers
        _remember(self._writers, origin.closure, origin.attempt)
        return has_written_before

    def end_attempts(self, closure: int, before: int) -> None:
        """Reject later requests of attempts at a closure before the attempt `before`."""
        _remember(self._first_attempts, closure, before)

    def _update(self, changes: Sequence[Change], sent: Sequence[Any]) -> None:
        if not changes:
            return
        program = self._program(changes)
        results = program([[self._values[key] for key in change.keys] for change in changes], sent)
        for change, values in zip(changes, results, strict=True):
            self._values.update(zip(change.keys, values, strict=True))

    def _program(self, changes: Sequence[Change]) -> Callable[..., Any]:
        """Return the compiled updates of a request."""
        key = tuple((change.update, change.sent) for change in changes)
        if key not in self._programs:
            updates = [self._updates[str(change.update)] for change in changes]
            indices = [change.sent for change in changes]

            def run(held: Sequence[Sequence[Any]], sent: Sequence[Any]) -> Any:
                return [
                    update(*values, *(sent[index] for index in of_change))
                    for update, values, of_change in zip(updates, held, indices, strict=True)
                ]

            self._programs[key] = jax.jit(run)
        return self._programs[key]

    def _elsewhere(self, keys: Sequence[Key]) -> Elsewhere | None:
        lacking = [key for key in keys if key not in self._values]
        return Elsewhere({key: self._moved.get(key) for key in lacking}) if lacking else None


def _remember(attempts: OrderedDict[int, int], closure: int, attempt: int) -> None:
    attempts[closure] = attempt
    if len(attempts) > _REMEMBERED:
        attempts.popitem(last=False)
