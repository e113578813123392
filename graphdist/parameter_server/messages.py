"""The messages between the coordinator, workers and servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: Ray's references, arrays, and users' results

Key: TypeAlias = int
"""The id of a variable, in the order of creation."""


@dataclass(frozen=True)
class Read:
    """A read of a variable: of the rows at these indices, or of all rows."""

    key: Key
    rows: Any = None


@dataclass(frozen=True)
class Elsewhere:
    """A server's answer if it lacks variables: the new server of each variable, None if unknown.

    A variable that is being moved is on no server for a short time.
    """

    homes: Mapping[Key, int | None]


@dataclass(frozen=True)
class UnknownUpdates:
    """A server's answer to a request for updates that the server has not received yet."""


@dataclass(frozen=True)
class Change:
    """A change of the variables `keys` on one server.

    `update` is the name of the update that computes the new values, None to replace the variable.
    `sent` has the indices of the sent values of a request that the update takes.
    """

    keys: tuple[Key, ...]
    sent: tuple[int, ...]
    update: str | None


@dataclass(frozen=True)
class Origin:
    """The id of the closure that sends a request, and the number of its attempt."""

    closure: int
    attempt: int


@dataclass(frozen=True)
class LargeResult:
    """Ray's reference to a result that stays on the machine of its worker until it is fetched."""

    reference: Any


@dataclass
class Done:
    """The outcome of a closure that has run to the end."""

    bytes_read: int = 0
    bytes_written: int = 0
    was_written_before: bool = False
    """Whether a request repeated writes of an earlier attempt."""


@dataclass(frozen=True)
class ClosureFailed:
    """A closure has raised an error."""

    error: BaseException
    traceback: str


@dataclass(eq=False)
class NotSentYet(Exception):
    """A worker has not received the function or per-worker value with an id. Nothing has run."""

    number: int


@dataclass
class Traffic:
    """The traffic of a coordinator's closures, and how often they ran."""

    closures: int = 0
    """The number of closures that have run to the end."""
    run_again: int = 0
    """The number of repeated runs, after a worker died or fell silent while it ran a closure."""
    written_twice: int = 0
    """The number of repeated runs whose first run had written to variables: both writes count."""
    bytes_read: int = 0
    """The bytes of the values of variables that workers read."""
    bytes_written: int = 0
    """The bytes of gradients, indices of rows and other values that workers sent to servers."""
    worker_deaths: int = 0
    """The number of workers that died or fell silent while they ran a function."""
