r"""The messages between workers and their server: one line of JSON each.

A message is a flat dataclass. A line from the network becomes a message only if it is a JSON object
of a kind that is allowed at this point, with exactly the fields of that kind and their types. The
values that workers exchange are text in a field, which the server forwards and never parses. So the
limit on the length of a line also limits the nesting and size of a stranger's input.

    {"kind": "put", "key": "program 3", "value": "\"5c1f..\""}
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeAlias, dataclass_transform  # Any: JSON

from graphdist.runtime.processes.json_schema import Wanted, finite, mismatch

MAX_LINE_BYTES = 1 << 28
"""The longest line of a worker."""
MAX_HELLO_BYTES = 1 << 12
"""The longest line of a connection that has not yet proved to be a worker."""


class MessageError(ValueError):
    """A line is no message that is allowed at this point."""


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Message:
    """The base of all messages; each subclass is a frozen dataclass."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Name the kind after its class, and make the class a dataclass."""
        cls.kind = cls.__name__.lower()
        dataclass(frozen=True)(cls)

    def line(self) -> bytes:
        """Return the message as it is sent."""
        fields = {"kind": self.kind, **asdict(self)}
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


# The handshake; `handshake.py` explains the texts.


class Challenge(Message):
    """The server's first message: its protocol, and the nonce that the proof must cover."""

    protocol: str
    nonce: str


class Hello(Message):
    """A worker's first message: its identity, and the proof that it belongs to the job."""

    protocol: str
    job: str
    generation: int
    worker: int
    workers: int
    versions: str
    nonce: str
    proof: str


class Welcome(Message):
    """The server accepts the worker, and proves that the server belongs to the job."""

    proof: str


class Refused(Message):
    """The server does not accept the worker; `may_retry` is 1 if a later attempt may succeed."""

    why: str
    may_retry: int


class _Announcement(Message):
    """A text under a name."""

    name: str
    value: str


class _Progress(Message):
    """The number of steps that a worker has begun."""

    steps: int


# Messages of a worker.


class Put(Message):
    """A worker's value of an exchange, as JSON."""

    key: str
    value: str


class Say(_Announcement):
    """A text for all workers, dropped if its name has a text already."""


class Beat(_Progress):
    """The worker is alive."""


class Ask(Message):
    """The worker asks which workers have sent a value of an exchange."""

    key: str


class Fail(Message):
    """The worker fails."""

    why: str


class Bye(_Progress):
    """The worker leaves."""


# Messages of the server.


class All(Message):
    """The values of an exchange, in the order of workers."""

    key: str
    values: list[str]


class Never(Message):
    """An exchange will never be complete, since a worker has left."""

    key: str
    worker: int


class Said(_Announcement):
    """The first text under a name."""


class Given(Message):
    """The workers that have sent a value of an exchange."""

    key: str
    workers: list[int]


class Beats(Message):
    """For each worker the count of its steps (-1 before it connects) and its seconds of silence."""

    steps: list[int]
    silent: list[float]


class Failed(Message):
    """A worker has failed."""

    worker: int
    why: str


class Left(Message):
    """A worker has left, after it began `steps` steps."""

    worker: int
    steps: int


class Gone(Message):
    """A failed worker sends no more messages: its connection ended, or the worker is silent."""

    worker: int


Kinds: TypeAlias = Collection[type[Message]]
FROM_STRANGERS: Kinds = (Hello,)
FROM_WORKERS: Kinds = (Put, Say, Beat, Ask, Fail, Bye)
TO_STRANGERS: Kinds = (Challenge, Welcome, Refused)
TO_WORKERS: Kinds = (All, Never, Said, Given, Beats, Failed, Left, Gone)


def parsed(line: bytes, kinds: Kinds) -> Message:
    """Return the message on a line, of one of these kinds; raises `MessageError` for another.

    >>> parsed(Beat(3).line(), FROM_WORKERS)
    Beat(steps=3)
    >>> parsed(b'{"kind": "beat", "steps": "3"}', FROM_WORKERS)
    Traceback (most recent call last):
    ...
    graphdist.runtime.processes.messages.MessageError: beat.steps is '3', not an int
    """
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"no JSON: {error}") from error
    if not isinstance(content, dict):
        raise MessageError("no JSON object")
    name = content.pop("kind", None)
    kind = next((kind for kind in kinds if kind.kind == name), None)
    if kind is None:
        raise MessageError(f"{str(name)[:50]!r} is no message that may come")
    wanted = {field.name: _WANTED[field.type] for field in fields(kind)}
    if content.keys() != wanted.keys():
        raise MessageError(f"a {kind.kind} has the fields {', '.join(wanted)}")
    if problem := mismatch(content, wanted, at=kind.kind):
        raise MessageError(problem)
    return kind(**content)


_WANTED: dict[Any, Wanted] = {
    "str": str,
    "int": int,
    "list[str]": [str],
    "list[int]": [int],
    "list[float]": [finite],
}
"""The schemas of the annotations of fields."""
