"""What a worker requests of parameter servers in a step: reads and updates of variables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphdist.ir.source import Source
from graphdist.passes.servers.cut_step import CutStep
from graphdist.report.amounts import size_text


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """One request of a step: a read or an update of variables of one server.

    `bytes` is the number of bytes sent. For a read of rows, `bytes` is the largest possible number,
    because a row that is read twice is sent once. `server` is None if the server is unknown.
    """

    kind: str
    """One of "read", "read rows" and "update"."""
    variables: tuple[str, ...]
    bytes: int
    server: int | None
    place: str
    """The user's line, without the folders of its file."""

    def __str__(self) -> str:
        first, *others = map(repr, self.variables)
        name = first + (f" with {', '.join(others)}" if others else "")
        size = size_text(self.bytes)
        what = {
            "read": f"{name} is read: {size}",
            "read rows": f"rows of {name} are read: at most {size}",
            "update": f"{name} is updated: {size} sent",
        }[self.kind]
        server = "" if self.server is None else f"server {self.server}: "
        return f"{server}{what}, {self.place}"


def request_lines(requests: Sequence[ServerRequest]) -> Iterator[str]:
    """Yield the lines that say what is read and sent, in total and by request."""
    if not requests:
        return
    read = size_text(sum(request.bytes for request in requests if request.kind != "update"))
    sent = size_text(sum(request.bytes for request in requests if request.kind == "update"))
    most = "at most " if any(request.kind == "read rows" for request in requests) else ""
    yield f"parameter servers: a worker reads {most}{read} a step, sends {sent}"
    for request in requests:
        yield f"    {request}"


def requests_of(cut: CutStep | None) -> tuple[ServerRequest, ...]:
    """Return the requests of a step, in the order of the servers; () without parameter servers."""
    requests = [] if cut is None else [*_reads(cut), *_updates(cut)]
    requests.sort(key=lambda request: -1 if request.server is None else request.server)
    return tuple(requests)


def _reads(cut: CutStep) -> Iterator[ServerRequest]:
    for read in cut.reads:
        kind = "read rows" if read.is_of_rows else "read"
        names = tuple(variable.name for variable in read.variables)
        yield ServerRequest(kind, names, read.type.bytes, read.server, _place(read.source))


def _updates(cut: CutStep) -> Iterator[ServerRequest]:
    """Yield the updates. A value that several updates send to a server counts in the first only."""
    sent: dict[int | None, set[int]] = {}
    for update in cut.updates:
        of_server = sent.setdefault(update.server, set())
        taken = zip(update.sent, update.taken, strict=True)
        size = sum(value.type.bytes for index, value in taken if index not in of_server)
        of_server.update(update.sent)
        yield ServerRequest("update", update.variables, size, update.server, _place(update.source))


def _place(source: Source) -> str:
    return str(source).rpartition("/")[2]
