"""What coordinator, workers and servers send each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias  # Any: Ray's references, arrays, and users' results

Key: TypeAlias = int
"""The id of a variable: variables are counted as they are made."""


@dataclass(frozen=True)
class Read:
    """A read of a variable: of the rows with these indices, or of all."""

    key: Key
    rows: Any = None


@dataclass(frozen=True)
class Elsewhere:
    """A server's answer for variables it does not have: where each was moved, None if unknown.

    A variable that is just being moved is on no server for a moment.
    """

    homes: Mapping[Key, int | None]


@dataclass(frozen=True)
class UnknownUpdates:
    """A server's answer for updates that it was not sent yet."""


@dataclass(frozen=True)
class Change:
    """An update on one server: `update` names it, None to replace the variable.

    It takes the variables `keys` and the values with the indices `sent` of a request, and assigns
    the same variables.
    """

    keys: tuple[Key, ...]
    sent: tuple[int, ...]
    update: str | None


@dataclass(frozen=True)
class Origin:
    """The id of the closure that a request is for, and which attempt to run it this is."""

    closure: int
    attempt: int


@dataclass(frozen=True)
class Closure:
    """A function to run on a worker, by its id, with its arguments as bytes."""

    number: int
    function: int
    arguments: bytes
    attempt: int
    """How many workers were given it before, and were lost."""
    homes: tuple[int, Mapping[Key, int]]
    """How many moves there were so far, and the servers of variables that were moved."""
    forgotten: tuple[int, ...]
    """The ids of functions and values that the coordinator no longer has."""


@dataclass(frozen=True)
class LargeResult:
    """A result that stays on the machine of its worker until it is fetched: Ray's reference."""

    reference: Any


@dataclass(frozen=True)
class Done:
    """A closure has run; its result is the other value that the worker returns."""

    bytes_read: int
    bytes_written: int
    was_written_before: bool


@dataclass(frozen=True)
class ClosureFailed:
    """A closure has raised an error."""

    error: BaseException
    traceback: str


@dataclass(frozen=True)
class LostServer:
    """A closure has found a server dead or silent."""

    server: int
    why: str


@dataclass(frozen=True)
class Missing:
    """A worker lacks functions or resources: it is new, or they are. Nothing has run."""

    function: int | None
    resources: tuple[int, ...] = ()


@dataclass(frozen=True)
class Apart:
    """A closure updates variables together that are on different servers. Nothing has run."""

    groups: Sequence[tuple[Key, ...]]


Outcome: TypeAlias = Done | ClosureFailed | LostServer | Missing | Apart


@dataclass
class Traffic:
    """What the closures of a coordinator have sent, and how often they ran."""

    closures: int = 0
    """How many have run to the end."""
    run_again: int = 0
    """How many were given to a worker again, since one had died or fallen silent with them."""
    written_twice: int = 0
    """How many of these had written to variables before, so that their writes count twice."""
    bytes_read: int = 0
    """The bytes of the values of variables that workers read."""
    bytes_written: int = 0
    """The bytes of gradients, indices of rows and other values that workers sent to servers."""
    worker_deaths: int = field(default=0)
    """How many workers have died or fallen silent while they ran a function."""
