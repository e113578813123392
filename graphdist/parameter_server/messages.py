"""The messages between the coordinator, workers and servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
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
    """A server's answer for variables that it lacks: the new server of each, None if unknown.

    A variable that is being moved is on no server for a short time.
    """

    homes: Mapping[Key, int | None]


@dataclass(frozen=True)
class UnknownUpdates:
    """A server's answer for updates that it has not received yet."""


@dataclass(frozen=True)
class Change:
    """An update on one server: `update` is its name, None to replace the variable.

    It reads the variables `keys` and the values at the indices `sent` of a request, and assigns
    the same variables.
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
    """A result that stays on the machine of its worker until it is fetched: Ray's reference."""

    reference: Any


@dataclass
class Done:
    """A closure has run; the worker returns this and the result."""

    bytes_read: int = 0
    bytes_written: int = 0
    was_written_before: bool = False
    """Whether a request repeated writes of an earlier attempt."""


@dataclass(frozen=True)
class ClosureFailed:
    """A closure has raised an error."""

    error: BaseException
    traceback: str


class SentAs(Enum):
    """What a worker makes of an object that it is sent as bytes."""

    FUNCTION = auto()
    VALUE = auto()
    """The object itself, or what it returns if it is a function."""
    ITERATOR = auto()
    """An iterator over such a value."""


class NotSentYet(Exception):
    """A worker has not received a function or per-worker value, with this id. Nothing has run."""

    def __init__(self, number: int) -> None:
        """Keep the id."""
        super().__init__(number)
        self.number = number


@dataclass
class Traffic:
    """The traffic of a coordinator's closures, and how often they ran."""

    closures: int = 0
    """The number of closures that have run to the end."""
    run_again: int = 0
    """The number of repeated runs, after a worker died or fell silent while it ran a closure."""
    written_twice: int = 0
    """The number of these whose first run had written to variables, so that writes count twice."""
    bytes_read: int = 0
    """The bytes of the values of variables that workers read."""
    bytes_written: int = 0
    """The bytes of gradients, indices of rows and other values that workers sent to servers."""
    worker_deaths: int = 0
    """The number of workers that died or fell silent while they ran a function."""
