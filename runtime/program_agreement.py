"""Checks that all workers are about to run the same program.

Programs with different collectives would wait for each other for ever. So before the first run of a
program all workers exchange a hash of its final graph. If hashes differ, they exchange the lines of
the graphs, to name the first line that differs. Every worker compares the same two graphs: worker
0's and the first one that differs from it.
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
    other = first_different(hashes)
    if other is None:
        return
    described = workers.exchange(f"graph {number}", list(_description(graph)), what, at)
    raise _difference(workers, number, described, other, at)


def agree_on_operations(text: str, what: str, devices: Devices, at: Source = UNKNOWN) -> None:
    """Wait until all workers are about to execute the same operations, described by `text`.

    Raises `WorkerError` if they differ, for example in a value that depends on the worker.
    """
    workers = devices.workers
    if workers is None:
        return
    digest = sha256(_ADDRESS.sub("", text).encode()).hexdigest()
    if (other := _first_other(workers, "operations", digest, what, at)) is not None:
        raise WorkerError(
            f"{what} is made by other operations on {workers.name(other)} than on "
            f"{workers.name(0)}",
            source=at,
            hint="each worker makes its shards of one value: the function must not depend on "
            "values that differ, except arrays made outside of it, which are worker 0's",
        )


def agree_on_file(name: str, digest: str, devices: Devices, at: Source = UNKNOWN) -> None:
    """Wait until all workers have read the same file of a step; a single worker returns at once.

    Raises `WorkerError` for files that differ, and the errors of `Workers.exchange`.
    """
    workers = devices.workers
    if workers is None:
        return
    what = f"the loading of {name}"
    if (other := _first_other(workers, "file", digest, what, at)) is not None:
        raise WorkerError(
            f"{name} on {workers.name(other)} is another file than on {workers.name(0)}",
            source=at,
            hint="give all workers the same file",
        )


def _first_other(
    workers: ClusterWorkers, kind: str, value: Any, what: str, at: Source
) -> int | None:
    """Return the first worker that sends another value than worker 0; None if all are equal."""
    return first_different(workers.exchange(f"{kind} {workers.ordinal(kind)}", value, what, at))


def wait_until_compiled(graph: Graph, devices: Devices, at: Source = UNKNOWN) -> None:
    """Wait until all workers have compiled a program, so that the time limit of steps can apply."""
    if devices.workers is not None:
        _first_other(devices.workers, "compiled", None, f"the first run of {graph.name!r}", at)


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
