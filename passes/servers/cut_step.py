"""A step with parameter servers, as the graphs that run: the worker's, and one for each update.

`cut_updates.py` makes these graphs. In a call, the worker first runs `rows` if its step looks rows
up, to compute the indices of the rows that it reads. Then the worker reads variables and rows from
the servers, and runs `worker` on the arguments and these values. It sends the last outputs of
`worker` to the servers, which run `updates`. Each graph is lowered by its own passes, verified and
shown. The text of a step has all graphs:

    # the worker reads %w: @w, 8 bytes from server 1
    graph step on 1 replica, stage spmd
    (%x: f32[2] mirrored, %w: f32[2] mirrored) {
      %g = jax.mul(%x, %w) : f32[2] mirrored
      return %g
    }
    # server 1 updates @w with %g: 8 bytes
    graph update_w on 1 replica, stage spmd
      variable @w: f32[2] mirrored {.., assigned=true, server=1}
    (%w: f32[2] mirrored = @w, %g: f32[2] mirrored) {
      %w2 = jax.sub(%w, %g) : f32[2] mirrored
      return %w2 -> @w
    }
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from graphdist.ir.graph import Graph, GraphVariable, Operands, Value
from graphdist.ir.printer import names, print_graph, print_literal
from graphdist.ir.source import Source
from graphdist.ir.types import Type


@dataclass(frozen=True, slots=True)
class ServerRead:
    """A value that a worker reads: a variable, or rows of a table that consists of variables.

    `type` is the type of the value. `fill` is the element of rows out of range; if it is None, an
    index out of range reads the nearest row. `source` is the user's line.
    """

    variables: tuple[GraphVariable, ...]
    type: Type
    source: Source
    is_of_rows: bool = False
    fill: float | bool | None = None

    @property
    def server(self) -> int | None:
        """Return the index of the server; None for several servers, or an unknown server."""
        return _server_of(self.variables)


@dataclass(frozen=True, slots=True)
class Update:
    """An update that a server runs: a graph of some variables' values and of sent values.

    `graph` takes the values of its variables, and then the sent values whose indices are `sent`. It
    returns the new values of the variables. `source` is the user's line.
    """

    graph: Graph
    sent: tuple[int, ...]
    source: Source

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the names of the variables."""
        return tuple(variable.name for variable in self.graph.variables)

    @property
    def server(self) -> int | None:
        """Return the index of the server; None for an unknown server."""
        return _server_of(self.graph.variables[:1])

    @property
    def taken(self) -> tuple[Value, ...]:
        """Return the inputs that the worker sends."""
        return self.graph.inputs[len(self.graph.variables) :]

    @property
    def bytes_written(self) -> int:
        """Return the bytes that the worker sends for this update."""
        return sum(value.type.bytes for value in self.taken)


@dataclass(frozen=True, slots=True)
class CutStep:
    """A step as the graphs that run.

    `worker` takes the arguments of the step, and then the values of `reads`. It returns the results
    of the step, and then the values that it sends. `rows` takes the arguments and returns the
    indices of the rows, i32[.., 1], for each read of rows; it is None if there is no such read.
    `notes` say which slots the worker has to read, and why.
    """

    worker: Graph
    rows: Graph | None
    reads: tuple[ServerRead, ...]
    updates: tuple[Update, ...]
    notes: tuple[str, ...] = ()

    @property
    def read(self) -> tuple[Value, ...]:
        """Return the inputs of the worker's graph that are read, one per read of `reads`."""
        return self.worker.inputs[len(self.worker.inputs) - len(self.reads) :]

    @property
    def num_sent(self) -> int:
        """Return the number of values that the worker sends."""
        return len({index for update in self.updates for index in update.sent})

    @property
    def sent(self) -> Operands:
        """Return the outputs of the worker's graph that are sent."""
        return self.worker.outputs[len(self.worker.outputs) - self.num_sent :]

    @property
    def variables_read(self) -> frozenset[str]:
        """Return the names of the variables that the worker reads, entirely or by rows."""
        return frozenset(variable.name for read in self.reads for variable in read.variables)

    @property
    def bytes_read(self) -> int:
        """Return the largest number of bytes that the worker may read from variables."""
        return sum(read.type.bytes for read in self.reads)

    @property
    def bytes_written(self) -> int:
        """Return the bytes that the worker sends; a value counts once for each of its updates."""
        return sum(update.bytes_written for update in self.updates)

    @property
    def together(self) -> tuple[tuple[str, ...], ...]:
        """Return the groups of variables that must be on one server."""
        return tuple(update.variables for update in self.updates if len(update.variables) > 1)

    def on_worker(self, run: Callable[[Graph], Graph]) -> CutStep:
        """Return the step after `run` on each of the worker's graphs."""
        worker = run(self.worker)
        rows = None if self.rows is None else run(self.rows)
        is_same = worker is self.worker and rows is self.rows
        return self if is_same else replace(self, worker=worker, rows=rows)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.rows is not None:
            yield from ("# the worker computes which rows it reads", print_graph(self.rows))
        own = names(self.worker)
        for value, read in zip(self.read, self.reads, strict=True):
            rows = "rows of " if read.is_of_rows else ""
            most = "at most " if read.is_of_rows else ""
            shown = ", ".join([f"@{variable.name}" for variable in read.variables])
            server = "" if read.server is None else f" from server {read.server}"
            size = f"{most}{read.type.bytes:,} bytes"
            yield f"# the worker reads {own[value]}: {rows}{shown}, {size}{server}"
        yield print_graph(self.worker)
        for update in self.updates:
            sent = [self.sent[index] for index in update.sent]
            shown = ", ".join([own[v] if isinstance(v, Value) else print_literal(v) for v in sent])
            server = "a server" if update.server is None else f"server {update.server}"
            changed = ", ".join([f"@{name}" for name in update.variables])
            of_sent = f" with {shown}: {update.bytes_written:,} bytes" if sent else ""
            yield f"# {server} updates {changed}{of_sent}"
            yield print_graph(update.graph)


def graphs_of(step: Graph | CutStep) -> tuple[Graph, ...]:
    """Return the graphs of a step, cut or not, in the order in which they run."""
    if isinstance(step, Graph):
        return (step,)
    of_rows = () if step.rows is None else (step.rows,)
    return (*of_rows, step.worker, *(update.graph for update in step.updates))


def _server_of(variables: Sequence[GraphVariable]) -> int | None:
    servers = {variable.server for variable in variables}
    return servers.pop() if len(servers) == 1 else None
