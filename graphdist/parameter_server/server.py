"""A parameter server: the values of variables, in a process of its own.

Requests are carried out one after the other, each completely: a reader sees all of a request's
updates of this server, or none. Updates are graphs, compiled once, with XLA, for the CPU; all
updates of a request run as one program.

A server keeps the numbers of the closures that have written last. A closure that runs again, since
its worker died, may have written already: then the answer says so.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any  # Any: arrays

import jax
import numpy as np

from graphdist.ir.parser import parse
from graphdist.parameter_server.connections import RequestListener
from graphdist.parameter_server.messages import (
    Change,
    Elsewhere,
    GraphText,
    Key,
    Origin,
    UnknownUpdates,
)
from graphdist.parameter_server.ray_cluster import ray
from graphdist.runtime.emit import emit
from graphdist.tracing.jax_ops import resolve

REQUESTS = frozenset({"create", "drop", "give_up", "read", "add_graphs", "apply"})
_REMEMBERED = 4096
"""How many closures a server remembers, which is more than can be under way."""


class ParameterServer:
    """The actor; see the module."""

    def __init__(self, enable_x64: bool, key: bytes, is_local: bool) -> None:
        """Start without variables, and listen."""
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", enable_x64)
        self._values: dict[Key, Any] = {}
        self._moved: dict[Key, int] = {}
        self._graphs: dict[str, Any] = {}
        self._programs: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._writers: OrderedDict[int, None] = OrderedDict()
        self._lock = Lock()
        host = "127.0.0.1" if is_local else ray().util.get_node_ip_address()
        self._listener = RequestListener(host, key, self._answer)

    def address(self) -> tuple[str, int]:
        """Return where the server listens."""
        return self._listener.address

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Carry out one request; requests of all processes wait for each other."""
        assert name in REQUESTS
        with self._lock:
            return getattr(self, name)(*arguments)

    def process(self) -> int:
        """Return the number of the process."""
        return os.getpid()

    def create(self, key: Key, value: np.ndarray[Any, Any]) -> None:
        """Take the first value of a variable, or of one that is moved here."""
        self._values[key] = np.array(value)
        self._moved.pop(key, None)

    def drop(self, keys: Sequence[Key]) -> None:
        """Forget variables that nobody uses any more."""
        for key in keys:
            self._values.pop(key, None)
            self._moved.pop(key, None)

    def give_up(self, key: Key, server: int) -> Any:
        """Return the value of a variable that goes to another server; None if it is not here."""
        if key not in self._values:
            return None
        self._moved[key] = server
        return np.asarray(self._values.pop(key))

    def read(self, keys: Sequence[Key]) -> Any:
        """Return the values of variables."""
        if lacking := self._elsewhere(keys):
            return lacking
        return [np.asarray(self._values[key]) for key in keys]

    def add_graphs(self, graphs: dict[str, GraphText]) -> None:
        """Take graphs of updates by their names."""
        for name, graph in graphs.items():
            self._graphs[name] = parse(graph.text, graph.opaques, ops=resolve)

    def apply(self, changes: Sequence[Change], sent: Sequence[Any], origin: Origin | None) -> Any:
        """Carry out changes; return whether the closure has written here before."""
        keys = [key for change in changes for key in (*change.keys, *change.assigned)]
        if lacking := self._elsewhere(keys):
            return lacking
        if any(change.graph and change.graph not in self._graphs for change in changes):
            return UnknownUpdates()
        self._replace([change for change in changes if change.graph is None], sent)
        self._update([change for change in changes if change.graph is not None], sent)
        return self._note(origin)

    def _replace(self, changes: Sequence[Change], sent: Sequence[Any]) -> None:
        for change in changes:
            # A copy: what arrives is in memory that other processes share.
            self._values[change.assigned[0]] = np.array(sent[change.sent[0]])

    def _update(self, changes: Sequence[Change], sent: Sequence[Any]) -> None:
        if not changes:
            return
        program = self._program(changes)
        results = program([[self._values[key] for key in change.keys] for change in changes], sent)
        for change, values in zip(changes, results, strict=True):
            self._values.update(zip(change.assigned, values, strict=True))

    def _program(self, changes: Sequence[Change]) -> Callable[..., Any]:
        """Return the compiled updates of a request."""
        key = tuple((change.graph, change.sent) for change in changes)
        if key not in self._programs:
            graphs = [self._graphs[str(change.graph)] for change in changes]
            places = [change.sent for change in changes]

            def run(held: Sequence[Sequence[Any]], sent: Sequence[Any]) -> Any:
                return [
                    emit(graph, [*values, *(sent[place] for place in of_change)])
                    for graph, values, of_change in zip(graphs, held, places, strict=True)
                ]

            self._programs[key] = jax.jit(run)
        return self._programs[key]

    def _elsewhere(self, keys: Sequence[Key]) -> Elsewhere | None:
        lacking = [key for key in keys if key not in self._values]
        return Elsewhere({key: self._moved.get(key) for key in lacking}) if lacking else None

    def _note(self, origin: Origin | None) -> bool:
        """Remember a closure; return whether it has written before."""
        if origin is None:
            return False
        was_here = origin.closure in self._writers
        self._writers[origin.closure] = None
        if len(self._writers) > _REMEMBERED:
            self._writers.popitem(last=False)
        return was_here
