"""The servers as a process sees them: where each variable is, and requests that go there.

Variables go to the servers in turn, in the order in which they are made. One that is updated
together with others is moved to their server; a request that comes to its old server is told the
new one, and goes there. A request for variables of several servers is one to each, all at once.
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
"""How long a variable may be on its way from one server to another."""


class ServerIsLost(Exception):
    """A server does not answer any more; `why` says what became of it, as in "has died"."""

    def __init__(self, server: int, why: str) -> None:
        """Say which."""
        super().__init__(server, why)
        self.server, self.why = server, why


class Servers:
    """The handles of all servers, and the homes of variables as far as they are known."""

    def __init__(self, actors: Sequence[Any], key: bytes, timeouts: WorkerTimeouts) -> None:
        """Take the actors, the key that they know, and how long one may take to answer."""
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
        """How many moves this process knows of."""
        self.moved: dict[Key, int] = {}
        self.bytes_read = 0
        self.bytes_written = 0
        self.wrote_before = False
        """Whether a request of the current closure was for writes that had been made before."""
        self.origin: Origin | None = None
        """The closure that requests are for; None outside closures."""
        self._updates: dict[str, Graph] = {}
        self._to_drop: deque[Key] = deque()

    def __len__(self) -> int:
        return len(self.actors)

    def close(self) -> None:
        """Close the connections, when the servers have ended."""
        for connection in self._connections:
            connection.close()

    def home(self, key: Key) -> int:
        """Return the index of a variable's server, as far as it is known here."""
        return self.moved.get(key, key % len(self.actors))

    def create(self, key: Key, value: Any) -> None:
        """Give a new variable its value."""
        server = self.home(key)
        self._answers({server: ("create", (key, np.asarray(value)))})
        self._drop()

    def drop_later(self, key: Key) -> None:
        """Forget a variable that nobody uses any more, when the next one is made.

        Not at once: the garbage collector calls this anywhere, in the middle of a request too.
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
        """Return updates as they are requested; `keys` are the variables by name."""
        return [self._change(update, keys) for update in updates]

    def apply(self, changes: Sequence[Change], sent: Sequence[Any]) -> None:
        """Carry out changes, and wait until they are done."""
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
        """Have all servers refuse what earlier attempts at a closure still send."""
        self._answers(dict.fromkeys(range(len(self.actors)), ("end_attempts", (closure, before))))

    def move(self, key: Key, server: int) -> None:
        """Move a variable to a server; only the coordinator does, and one at a time."""
        old = self.home(key)
        if old == server:
            return
        value = self._answers({old: ("give_up", (key, server))})[old]
        assert value is not None
        self._answers({server: ("create", (key, value))})
        self.moved[key] = server
        self.moves += 1

    def know(self, homes: tuple[int, Mapping[Key, int]]) -> None:
        """Take over what the coordinator knows of moves."""
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
        graph = update.graph.replace(variables=())  # their values are arguments
        name = content_hash(graph)
        self._updates[name] = graph
        return Change(changed, update.sent, name)

    def _request(
        self, changes: Sequence[Change], sent: Sequence[Any]
    ) -> tuple[list[Change], list[Any]]:
        """Return changes of one server with the values that they need, each once."""
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
        """Return what servers answer to requests, all sent at once; raises `ServerIsLost`."""
        order, began = sorted(requests), time.monotonic()
        with ExitStack() as held:
            for server in order:  # all threads take them in one order
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
            ):  # an interrupt too: an answer that is left would be the next one's
                for server in order:
                    self._connections[server].close()
                raise

    def _follow(self, answer: Elsewhere, deadline: float) -> None:
        """Note new homes; wait a moment if a variable is on its way."""
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

    A graph has parameters that no other process can be given, such as the computation of a scatter.
    A module has all in it, and it is data: to load it runs nothing.
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
