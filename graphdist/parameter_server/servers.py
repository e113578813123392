"""The servers as a process sees them: the home of each variable, and the requests to servers.

New variables are assigned to the servers round-robin. A variable that is updated together with
others is moved to their server; its old server then answers requests with the new one, to which
they are sent again. A request for variables of several servers becomes one request to each server,
all sent at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any  # Any: Ray's handles, and arrays

import jax
import numpy as np
from jax import export

from graphdist.errors import RuntimeFailure
from graphdist.ir.compare import content_hash
from graphdist.ir.graph import Graph
from graphdist.ir.types import numpy_dtype
from graphdist.parameter_server.connections import ServerConnection, ServerIsSilent
from graphdist.parameter_server.heartbeats import address_of_server, problem_of_server
from graphdist.parameter_server.messages import (
    Change,
    Elsewhere,
    Key,
    Origin,
    Read,
    UnknownUpdates,
)
from graphdist.passes.servers.cut_step import Update
from graphdist.runtime.emit import emit
from graphdist.runtime.processes.workers import WorkerTimeouts
from graphdist.tracing.user_lines import here

_SECONDS_OF_A_MOVE = 30.0
"""The time limit for the move of a variable from one server to another."""


class ServerIsLost(Exception):
    """A server no longer answers; `why` says the reason, such as "has died"."""

    def __init__(self, server: int, why: str) -> None:
        """Keep the index of the server and the reason."""
        super().__init__(server, why)
        self.server, self.why = server, why


class Servers:
    """The handles of all servers, and the known homes of variables."""

    def __init__(self, actors: Sequence[Any], key: bytes, timeouts: WorkerTimeouts) -> None:
        """Keep the actors, the key that they know, and the time limits for their answers."""
        self.actors = list(actors)
        self._connections = [
            ServerConnection(
                partial(address_of_server, actor, timeouts.start),
                partial(problem_of_server, actor, timeouts.silence),
                key,
            )
            for actor in actors
        ]
        self.moves = 0
        """The number of moves that this process knows."""
        self.moved: dict[Key, int] = {}
        self.bytes_read = 0
        self.bytes_written = 0
        self.wrote_before = False
        """Whether a request of the current closure repeated writes of an earlier attempt."""
        self.origin: Origin | None = None
        """The closure that sends the requests; None outside closures."""
        self._updates: dict[str, Graph] = {}
        self._to_drop: deque[Key] = deque()

    def __len__(self) -> int:
        return len(self.actors)

    def close(self) -> None:
        """Close the connections, once the servers have ended."""
        for connection in self._connections:
            connection.close()

    def home(self, key: Key) -> int:
        """Return the index of a variable's server, as this process knows it."""
        return self.moved.get(key, key % len(self.actors))

    def create(self, key: Key, value: Any) -> None:
        """Store a new variable on its server."""
        server = self.home(key)
        self._answers({server: ("create", (key, np.asarray(value)))})
        self._drop()

    def drop_later(self, key: Key) -> None:
        """Drop a variable that has no references any more, when the next one is made.

        Not at once, since the garbage collector may call this in the middle of a request.
        """
        self._to_drop.append(key)

    def _drop(self) -> None:
        keys = [self._to_drop.popleft() for _ in range(len(self._to_drop))]
        self._answers({s: ("drop", (of_server,)) for s, of_server in self._by_home(keys).items()})

    def read(self, wanted: Sequence[Read]) -> list[np.ndarray[Any, Any]]:
        """Return the values of variables, or rows of them, in order."""
        found: dict[int, Any] = {}
        deadline = time.monotonic() + _SECONDS_OF_A_MOVE
        while len(found) < len(wanted):
            indices: dict[int, list[int]] = {}
            for index, read in enumerate(wanted):
                if index not in found:
                    indices.setdefault(self.home(read.key), []).append(index)
            answers = self._answers(
                {s: ("read", ([wanted[index] for index in indices[s]],)) for s in indices}
            )
            for server, answer in answers.items():
                if isinstance(answer, Elsewhere):
                    self._follow(answer, deadline)
                else:
                    found.update(zip(indices[server], answer, strict=True))
        self.bytes_read += sum(value.nbytes for value in found.values())
        self.bytes_written += sum(read.rows.nbytes for read in wanted if read.rows is not None)
        return [found[index] for index in range(len(wanted))]

    def assign(self, key: Key, value: Any) -> None:
        """Replace the value of a variable, and wait until it is done."""
        self._carry_out([Change((key,), (0,), None)], [value])

    def changes(self, updates: Sequence[Update], keys: Mapping[str, Key]) -> list[Change]:
        """Return updates as changes to request; `keys` has the ids of variables by name."""
        return [self._change(update, keys) for update in updates]

    def apply(self, changes: Sequence[Change], sent: Sequence[Any]) -> None:
        """Apply changes on the servers, and wait until they are done."""
        self._carry_out(list(changes), sent)

    def _carry_out(self, changes: list[Change], sent: Sequence[Any]) -> None:
        deadline = time.monotonic() + _SECONDS_OF_A_MOVE
        while changes:
            of_server: dict[int, list[Change]] = {}
            for change in changes:
                of_server.setdefault(self.home(change.keys[0]), []).append(change)
            requests = {
                server: self._request(s_changes, sent) for server, s_changes in of_server.items()
            }
            answers = self._answers(
                {server: ("apply", (*request, self.origin)) for server, request in requests.items()}
            )
            changes = []
            for server, answer in answers.items():
                if isinstance(answer, Elsewhere):
                    self._follow(answer, deadline)
                elif isinstance(answer, UnknownUpdates):
                    self._send_updates(server, of_server[server])
                else:
                    self.wrote_before |= answer
                    self.bytes_written += sum(value.nbytes for value in requests[server][1])
                    continue
                changes += of_server[server]

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
        self.moves += 1

    def know(self, homes: tuple[int, Mapping[Key, int]]) -> None:
        """Update the homes of variables from the coordinator's."""
        self.moves = homes[0]
        self.moved.update(homes[1])

    def _by_home(self, keys: Iterable[Key]) -> dict[int, list[Key]]:
        found: dict[int, list[Key]] = {}
        for key in dict.fromkeys(keys):
            found.setdefault(self.home(key), []).append(key)
        return found

    def _change(self, update: Update, keys: Mapping[str, Key]) -> Change:
        changed = tuple(keys[variable] for variable in update.variables)
        if not update.graph.nodes and len(changed) == len(update.sent) == 1:
            return Change(changed, update.sent, None)
        graph = update.graph.replace(variables=())  # values of variables are arguments
        name = content_hash(graph)
        self._updates[name] = graph
        return Change(changed, update.sent, name)

    def _request(
        self, changes: Sequence[Change], sent: Sequence[Any]
    ) -> tuple[list[Change], list[Any]]:
        """Return changes for one server, with each value that they need once."""
        needed = list(dict.fromkeys(index for change in changes for index in change.sent))
        index_of = {old: new for new, old in enumerate(needed)}
        own = [
            Change(c.keys, tuple(index_of[index] for index in c.sent), c.update) for c in changes
        ]
        return own, [np.asarray(sent[index]) for index in needed]

    def _send_updates(self, server: int, changes: Sequence[Change]) -> None:
        names = {change.update for change in changes if change.update}
        modules = {name: _as_module(self._updates[name]) for name in names}
        self._answers({server: ("add_updates", (modules,))})

    def _answers(self, requests: Mapping[int, tuple[str, tuple[Any, ...]]]) -> dict[int, Any]:
        """Send all requests, then return the answer of each server; may raise `ServerIsLost`."""
        order, began = sorted(requests), time.monotonic()
        with ExitStack() as held:
            for server in order:  # all threads lock them in one order
                with _lost(server):
                    held.enter_context(self._connections[server].held(began))
            try:
                for server in order:
                    with _lost(server):
                        self._connections[server].request(*requests[server])
                answers = {}
                for server in order:
                    with _lost(server):
                        answers[server] = self._connections[server].answer()
                return answers
            except (
                BaseException
            ):  # on interrupts, too: an unread answer would be taken for the next one's
                for server in order:
                    self._connections[server].close()
                raise

    def _follow(self, answer: Elsewhere, deadline: float) -> None:
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


@contextmanager
def _lost(server: int) -> Iterator[None]:
    try:
        yield
    except ServerIsSilent as error:
        raise ServerIsLost(server, str(error)) from error
