"""The check that all workers are about to run the same program.

Programs with different collectives would wait for each other for ever. So before the first run of a
program all workers exchange a hash of its final graph. If hashes differ, they exchange the graphs,
line by line, to name the first line that differs. Every worker compares the same two graphs: worker
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

_ADDRESS = re.compile(r"0x[0-9a-f]+")
"""An address in the text of an operation, which differs between processes."""


def agree_on(graph: Graph, devices: Devices, at: Source = UNKNOWN) -> None:
    """Return once all workers have shown the same graph; a single worker returns at once.

    Raises `WorkerError` for graphs that differ, and what `Workers.exchange` raises.
    """
    workers = devices.workers
    if workers is None:
        return
    number = workers.ordinal("program")
    what = f"the first run of {graph.name!r}"
    hashes = workers.exchange(f"program {number}", content_hash(graph), what, at)
    other = next((worker for worker, found in enumerate(hashes) if found != hashes[0]), None)
    if other is None:
        return
    described = workers.exchange(f"graph {number}", list(_description(graph)), what, at)
    raise _difference(workers, number, described, other, at)


def agree_on_operations(text: str, what: str, devices: Devices, at: Source = UNKNOWN) -> None:
    """Return once all workers are about to carry out the operations of a text together.

    Raises `WorkerError` where they differ, as by a number that depends on the worker.
    """
    workers = devices.workers
    if workers is None:
        return
    digest = sha256(_ADDRESS.sub("", text).encode()).hexdigest()
    given = workers.exchange(f"operations {workers.ordinal('operations')}", digest, what, at)
    for worker, other in enumerate(given):
        if other != given[0]:
            raise WorkerError(
                f"{what} is made by other operations on {workers.name(worker)} than on "
                f"{workers.name(0)}",
                source=at,
                hint="each worker makes its slices of one value: let the function depend on "
                "nothing that differs, or on arrays made outside of it, which are worker 0's",
            )


def agree_on_file(name: str, digest: str, devices: Devices, at: Source = UNKNOWN) -> None:
    """Return once all workers have read the same file of a step; a single worker returns at once.

    Raises `WorkerError` for files that differ, and what `Workers.exchange` raises.
    """
    workers = devices.workers
    if workers is None:
        return
    what = f"the loading of {name}"
    digests = workers.exchange(f"file {workers.ordinal('file')}", digest, what, at)
    for worker, other in enumerate(digests):
        if other != digests[0]:
            raise WorkerError(
                f"{name} on {workers.name(worker)} is another file than on {workers.name(0)}",
                source=at,
                hint="give all workers the same file",
            )


def wait_until_compiled(graph: Graph, devices: Devices, at: Source = UNKNOWN) -> None:
    """Return once all workers have compiled a program: from then on a step can be timed."""
    if devices.workers is not None:
        key = f"compiled {devices.workers.ordinal('compiled')}"
        devices.workers.exchange(key, None, f"the first run of {graph.name!r}", at)


def first_collective(graph: Graph) -> tuple[str, Source]:
    """Return the text and the user's line of the first collective; ("", UNKNOWN) without one."""
    found: Sequence[Node] = collectives(graph)
    if not found:
        return "", UNKNOWN
    return node_lines(graph)[found[0]], found[0].source


def _description(graph: Graph) -> Iterator[list[Any]]:
    """Yield for each node its line, a key of its computation, and its source."""
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
        f"program number {number} differs between {workers.name(0)} and "
        f"{workers.name(other)}{same}",
        source=_source(first) or at,
        other=_source(two),
        node=f"worker 0: {first[0].strip()}\nworker {other}: {two[0].strip()}",
        where=f"graphs {described[0][0][1]!r} and {described[other][0][1]!r}, where they first "
        f"differ",
        hint="all workers run the same program on values of the same shapes: what depends on the "
        "worker belongs into arguments, not into code",
    )


def _source(described: list[Any]) -> Source | None:
    _, _, file, line, function = described
    return at_line(file, line, function) if file else None
