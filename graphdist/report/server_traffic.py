"""What a step reads of parameter servers and has them update, from the graph of both halves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.op_parameters import Pulling, Pushing
from graphdist.ir.ops import PULL, PUSH
from graphdist.report.amounts import size_text


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """One request of a step: a read or an update of variables of one server.

    `bytes` are sent, of a read of rows at most: equal rows are sent once. `server` is None where
    it is not known.
    """

    kind: str
    """One of "read", "read rows" and "update"."""
    variables: tuple[str, ...]
    bytes: int
    server: int | None
    place: str
    """The user's line."""

    def __str__(self) -> str:
        first, *others = map(repr, self.variables)
        name = first + (f" with {', '.join(others)}" if others else "")
        size = size_text(self.bytes)
        said = {
            "read": f"{name} is read: {size}",
            "read rows": f"rows of {name} are read: at most {size}",
            "update": f"{name} is updated: {size} sent",
        }[self.kind]
        server = "" if self.server is None else f"server {self.server}: "
        return f"{server}{said}, {self.place}"


def server_requests(graph: Graph) -> tuple[ServerRequest, ...]:
    """Return the requests of a step in two halves, by server; none of any other graph.

    A value that several updates of one server take is sent, and counted, with the first of them.
    """
    names: Mapping[Operand, str] = {
        value: variable.name for value, variable in zip(graph.inputs, graph.variables, strict=False)
    }
    sent: dict[int | None, set[Operand]] = {}
    found = []
    for node in graph.nodes:
        if isinstance(node.params, Pulling | Pushing):
            server = node.params.server
            found.append(_request(node, names, server, sent.setdefault(server, set())))
    return tuple(
        sorted(found, key=lambda request: -1 if request.server is None else request.server)
    )


def _request(
    node: Node, names: Mapping[Operand, str], server: int | None, sent: set[Operand]
) -> ServerRequest:
    # A read of rows takes their numbers after the variables.
    of_read = max(1, len(node.operands) - 1)
    count = PUSH.of(node).num_variables if node.op is PUSH else of_read
    variables = tuple(names[operand] for operand in node.operands[:count])
    given, place = node.operands[count:], str(node.source)
    if node.op is PULL:
        size = PULL.of(node).bytes
        return ServerRequest("read rows" if given else "read", variables, size, server, place)
    new = dict.fromkeys(operand for operand in given if operand not in sent)
    sent.update(new)
    return ServerRequest(
        "update", variables, sum(operand.type.bytes for operand in new), server, place
    )


def traffic_text(requests: Sequence[ServerRequest]) -> list[str]:
    """Return the requests as lines; none if there are none."""
    if not requests:
        return []
    read = sum(request.bytes for request in requests if request.kind != "update")
    sent = sum(request.bytes for request in requests if request.kind == "update")
    most = "at most " if any(request.kind == "read rows" for request in requests) else ""
    first = (
        f"parameter servers: a worker reads {most}{size_text(read)} a step, sends {size_text(sent)}"
    )
    return [first, *(f"    {request}" for request in requests)]
