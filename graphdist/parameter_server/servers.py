"""The servers as a process sees them: the home of each variable, and the requests to servers.

New variables are assigned to the servers round-robin. A variable that is updated together with
other variables is moved to their server. Its old server answers requests with the index of the new
server, and the requests are sent again. A request for variables of several servers becomes one
request to each server, all sent at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar  # Any: Ray's handles, and arrays

import jax
import numpy as np
from jax import export

from graphdist.errors import RuntimeFailure
from graphdist.ir.compare import content_hash
from graphdist.ir.graph import Graph
from graphdist.ir.types import numpy_dtype
from graphdist.parameter_server import messages as ms
from graphdist.parameter_server.connections import ServerConnection
from graphdist.parameter_server.messages import Key
from graphdist.parameter_server.ray_cluster import address_of_server, problem_of_server
from graphdist.passes.servers.cut_step import Update
from graphdist.runtime.emit import emit
from graphdist.runtime.processes.workers import WorkerTimeouts
from graphdist.tracing.user_lines import here

Item = TypeVar("Item")

_SECONDS_OF_A_MOVE = 30.0
"""The time limit for the move of a variable from one server to another."""


class Servers:
    """The handles of all servers, and the known homes of variables."""

    def __init__(self, actors: Sequence[Any], key: bytes, timeouts: WorkerTimeouts) -> None:
        """Keep the actors, the key that they know, and the time limits for their answers."""
        self.actors = list(actors)
        self._connections = [
            ServerConnection(
                server,
                partial(address_of_server, actor, timeouts.start),
                partial(problem_of_server, actor, timeouts.silence),
                key,
            )
            for server, actor in enumerate(actors)
        ]
        self.moved: dict[Key, int] = {}
        """The servers of variables that are not on their first server."""
        self.done = ms.Done()
        """The requests of the current closure so far."""
        self.origin: ms.Origin | None = None
        """The closure that sends the requests; None outside closures."""
        self._updates: dict[str, Graph] = {}
        self._to_drop: deque[Key] = deque()

    def close(self) -> None:
        """Close the connections, once the servers have ended."""
        for connection in self._connections:
            connection.close()

    def home(self, key: Key) -> int:
        """Return the index of the server that has a variable, as far as this process knows."""
        return self.moved.get(key, key % len(self.actors))

    def create(self, key: Key, value: Any) -> None:
        """Store a new variable on its server."""
        server = self.home(key)
        self._answers({server: ("create", (key, np.asarray(value)))})
        self._drop()

    def drop_later(self, key: Key) -> None:
        """Drop a variable that has no references any more, when the next variable is made.

        The variable is not dropped at once, since the garbage collector may call this function in
        the middle of a request.
        """
        self._to_drop.append(key)

    def _drop(self) -> None:
        keys = [self._to_drop.popleft() for _ in range(len(self._to_drop))]
        by_home = self._by_home(dict.fromkeys(keys), lambda key: key)
        self._answers({server: ("drop", (of_server,)) for server, of_server in by_home.items()})

    def read(self, wanted: Sequence[ms.Read]) -> list[np.ndarray[Any, Any]]:
        """Return the values of variables, or rows of them, in order."""
        found: dict[int, Any] = {}
        deadline = time.monotonic() + _SECONDS_OF_A_MOVE
        while len(found) < len(wanted):
            missing = [index for index in range(len(wanted)) if index not in found]
            indices = self._by_home(missing, lambda index: wanted[index].key)
            answers = self._answers(
                {s: ("read", ([wanted[index] for index in indices[s]],)) for s in indices}
            )
            for server, answer in answers.items():
                if isinstance(answer, ms.Elsewhere):
                    self._follow(answer, deadline)
                else:
                    found.update(zip(indices[server], answer, strict=True))
        self.done.bytes_read += sum(value.nbytes for value in found.values())
        self.done.bytes_written += sum(read.rows.nbytes for read in wanted if read.rows is not None)
        return [found[index] for index in range(len(wanted))]

    def assign(self, key: Key, value: Any) -> None:
        """Replace the value of a variable, and wait for the server's answer."""
        self.apply([ms.Change((key,), (0,), None)], [value])

    def apply(self, changes: Sequence[ms.Change], sent: Sequence[Any]) -> None:
        """Apply changes on the servers, and wait for the servers' answers."""
        left = list(changes)
        deadline = time.monotonic() + _SECONDS_OF_A_MOVE
        while left:
            of_server = self._by_home(left, lambda change: change.keys[0])
            requests = {server: self._request(of_server[server], sent) for server in of_server}
            answers = self._answers(
                {server: ("apply", (*request, self.origin)) for server, request in requests.items()}
            )
            left = []
            for server, answer in answers.items():
                if isinstance(answer, ms.Elsewhere):
                    self._follow(answer, deadline)
                elif isinstance(answer, ms.UnknownUpdates):
                    self._send_updates(server, of_server[server])
                else:
                    self.done.was_written_before |= answer
                    self.done.bytes_written += sum(value.nbytes for value in requests[server][1])
                    continue
                left += of_server[server]

    def end_attempts(self, closure: int, before: int) -> None:
        """Make all servers reject later requests of earlier attempts at a closure."""
        self._answers(dict.fromkeys(range(len(self.actors)), ("end_attempts", (closure, before))))

    def move(self, key: Key, server: int) -> None:
        """Move a variable to a server; only the coordinator calls it, one move at a time."""
        old = self.home(key)
        if old == server:
            return
        value = self._answers({old: ("give_up", (key, server))})[old]
        assert value is not None
        self._answers({server: ("create", (key, value))})
        self.moved[key] = server

    def _by_home(
        self, items: Iterable[Item], key_of: Callable[[Item], Key]
    ) -> dict[int, list[Item]]:
        """Return the items by the server that has the variable of each."""
        found: dict[int, list[Item]] = {}
        for item in items:
            found.setdefault(self.home(key_of(item)), []).append(item)
        return found

    def change(self, update: Update, keys: Mapping[str, Key]) -> ms.Change:
        """Return an update as a change, which `apply` takes; `keys` has variables' ids by name."""
        changed = tuple(keys[variable] for variable in update.variables)
        if not update.graph.nodes and len(changed) == len(update.sent) == 1:
            return ms.Change(changed, update.sent, None)
        graph = update.graph.replace(variables=())  # values of variables are arguments
        name = content_hash(graph)
        self._updates[name] = graph
        return ms.Change(changed, update.sent, name)

    def _request(
        self, changes: Sequence[ms.Change], sent: Sequence[Any]
    ) -> tuple[list[ms.Change], list[Any]]:
        """Return changes for one server, and the sent values that they need, each value once."""
        needed = list(dict.fromkeys(index for change in changes for index in change.sent))
        index_of = {old: new for new, old in enumerate(needed)}
        own = [
            ms.Change(c.keys, tuple(index_of[index] for index in c.sent), c.update) for c in changes
        ]
        return own, [np.asarray(sent[index]) for index in needed]

    def _send_updates(self, server: int, changes: Sequence[ms.Change]) -> None:
        names = {change.update for change in changes if change.update}
        modules = {name: _as_module(self._updates[name]) for name in names}
        self._answers({server: ("add_updates", (modules,))})

    def _answers(self, requests: Mapping[int, tuple[str, tuple[Any, ...]]]) -> dict[int, Any]:
        """Send all requests, then return the answer of each server; may raise `ServerIsLost`."""
        began = time.monotonic()
        asked = {server: self._connections[server] for server in sorted(requests)}
        with ExitStack() as held:
            for connection in asked.values():  # all threads lock them in one order
                held.enter_context(connection.held(began))
            try:
                for server, connection in asked.items():
                    connection.request(*requests[server])
                return {server: connection.answer() for server, connection in asked.items()}
            except BaseException:  # on interrupts, too: a next request would get an unread answer
                for connection in asked.values():
                    connection.close()
                raise

    def _follow(self, answer: ms.Elsewhere, deadline: float) -> None:
        """Record new homes; wait a short time if a variable is being moved."""
        known = {key: server for key, server in answer.homes.items() if server is not None}
        self.moved.update(known)
        if len(known) < len(answer.homes):
            if time.monotonic() > deadline:
                raise RuntimeFailure(
                    f"no server has the variables {sorted(set(answer.homes) - set(known))}",
                    source=here(),
                )
            time.sleep(0.002)


def _as_module(graph: Graph) -> bytes:
    """Return an update as a module of StableHLO for the CPU, which a server loads.

    A graph has parameters that cannot be pickled, such as the computation of a scatter. A module is
    complete, and it is data: loading it runs no code.
    """
    types = [value.type for value in graph.inputs]
    avals = [jax.ShapeDtypeStruct(type.shape, numpy_dtype(type.dtype)) for type in types]
    update = jax.jit(lambda *inputs: emit(graph, inputs))
    return bytes(export.export(update, platforms=["cpu"])(*avals).serialize())
