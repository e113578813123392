"""Checks that all workers are about to run the same program.

Programs with different collectives would wait for each other for ever. So before the first run of a
program all workers exchange a hash of its final graph. If hashes differ, the workers exchange the
lines of the graphs, to name the first line that differs. Every worker compares the same two graphs:
the graph of worker 0, and the first graph that differs from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import zip_longest
from typing import Any  # Any: JSON

from graphdist.ir.analyses import collectives, walk
from graphdist.ir.compare import content_hash, parameter_key
from graphdist.ir.graph import Graph, Node
from graphdist.ir.printer import node_lines, print_graph
from graphdist.ir.source import UNKNOWN, Source, at_line
from graphdist.runtime.devices import Devices
from graphdist.runtime.processes.addresses import WorkerError
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.processes.workers import first_different

_ADDRESS = re.compile(r"0x[0-9a-f]+")
"""A memory address in the text of an operation, which differs between processes."""


def agree_on(graph: Graph, devices: Devices, at: Source = UNKNOWN) -> None:
    """Wait until all workers have the same graph; a single worker returns at once.

    Raises `WorkerError` for graphs that differ, and the errors of `Workers.exchange`.
    """
    workers = devices.workers
    if workers is None:
        return
    number = workers.ordinal("program")
    what = f"the first run of {graph.name!r}"
    hashes = workers.exchange(f"program {number}", content_hash(graph), what, at)
    if (other := first_different(hashes)) is not None:
        described = workers.exchange(f"graph {number}", list(_description(graph)), what, at)
        raise _difference(workers, number, described, other, at)


def agree_on_operations(text: str, what: str, devices: Devices, at: Source = UNKNOWN) -> None:
    """Wait until all workers are about to execute the same operations, described by `text`.

    Raise `WorkerError` if the operations differ, for example in a value that depends on the worker.
    """
    digest = devices.workers and sha256(_ADDRESS.sub("", text).encode()).hexdigest()
    if names := _different_workers(devices, "operations", digest, what, at):
        raise WorkerError(
            f"{what} is made by other operations on {names[1]} than on {names[0]}",
            source=at,
            hint="each worker makes its shards of one value: the function must not depend on "
            "values that differ, except arrays made outside of it, which are worker 0's",
        )


def agree_on_file(name: str, digest: str, devices: Devices, at: Source = UNKNOWN) -> None:
    """Wait until all workers have read the same file of a step; a single worker returns at once.

    Raises `WorkerError` for files that differ, and the errors of `Workers.exchange`.
    """
    if names := _different_workers(devices, "file", digest, f"the loading of {name}", at):
        raise WorkerError(
            f"{name} on {names[1]} is another file than on {names[0]}",
            source=at,
            hint="give all workers the same file",
        )


def _different_workers(
    devices: Devices, kind: str, value: Any, what: str, at: Source
) -> tuple[str, str] | None:
    """Return the names of worker 0 and of the first worker that sends another value than worker 0.

    `kind` tells apart the exchanges of the workers. The result is None if all values are equal, and
    at once if there is a single worker.
    """
    workers = devices.workers
    if workers is None:
        return None
    values = workers.exchange(f"{kind} {workers.ordinal(kind)}", value, what, at)
    other = first_different(values)
    return None if other is None else (workers.name(0), workers.name(other))


def wait_until_compiled(graph: Graph, devices: Devices, at: Source = UNKNOWN) -> None:
    """Wait until all workers have compiled a program, so that the time limit of steps can apply."""
    _different_workers(devices, "compiled", None, f"the first run of {graph.name!r}", at)


def first_collective(graph: Graph) -> tuple[str, Source]:
    """Return the text and the user's line of the first collective; ("", UNKNOWN) without one."""
    nodes: Sequence[Node] = collectives(graph)
    return (node_lines(graph)[nodes[0]], nodes[0].source) if nodes else ("", UNKNOWN)


def _description(graph: Graph) -> Iterator[list[Any]]:
    """Yield for each node its text, a hash of its computation, and its source."""
    yield [print_graph(graph).partition("{")[0], graph.name, "", 0, ""]
    lines = node_lines(graph)
    for node in walk(graph):
        key = sha256(f"{lines[node]} {parameter_key(node)}".encode()).hexdigest()
        frame = node.source.frame
        place = [frame.file, frame.line, frame.function] if frame else ["", 0, ""]
        yield [lines[node], key, *place]


def _difference(
    workers: ClusterWorkers, number: int, described: list[list[list[Any]]], other: int, at: Source
) -> WorkerError:
    nothing: list[Any] = ["nothing more", "", "", 0, ""]
    pairs = zip_longest(described[0], described[other], fillvalue=nothing)
    first, two = next((pair for pair in pairs if pair[0][:2] != pair[1][:2]), (nothing, nothing))
    same = " (with another constant)" if first[0] == two[0] else ""
    return WorkerError(
        f"program {number} differs between {workers.name(0)} and {workers.name(other)}{same}",
        source=_source(first) or at,
        other=_source(two),
        node=f"worker 0: {first[0].strip()}\nworker {other}: {two[0].strip()}",
        where=f"graphs {described[0][0][1]!r} and {described[other][0][1]!r}, where they first "
        f"differ",
        hint="all workers run the same program on values of the same shapes: values that depend on "
        "the worker belong into arguments, not into code",
    )


def _source(described: list[Any]) -> Source | None:
    _, _, file, line, function = described
    return at_line(file, line, function) if file else None
