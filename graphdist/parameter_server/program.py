"""A compiled program whose variables are on servers.

The program runs the graphs that `lower()` shows (`passes/servers/cut_step.py`). A call reads the
variables that are inputs of the worker's graph, runs this graph on the process's devices, sends the
results for the servers, and waits until the servers have updated the variables. If the step looks
up rows of a table, another program first computes the indices of the rows. If the step joins the
shards of a table, a row is read once, from the shard that has the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any  # Any: users' arguments and results, arrays, and the strategy

import jax
import numpy as np

from graphdist.errors import ContextError, UnsupportedError
from graphdist.ir.types import Type, numpy_dtype
from graphdist.parameter_server.messages import Key, Read
from graphdist.parameter_server.storage import ServerStorage, on_server
from graphdist.passes.servers.cut_step import CutStep, ServerRead
from graphdist.passes.servers.lost_writes import lost_writes
from graphdist.program.argument_keys import LeafKey, leaf_key
from graphdist.program.interface import OUTPUT, Interface
from graphdist.program.program import RunnableProgram
from graphdist.program.stages import Traced


def _require_on_servers(traced: Traced) -> None:
    """Raise `ContextError` if a variable is on no server."""
    for variable in traced.variables:
        if not isinstance(variable.storage, ServerStorage):
            raise ContextError(
                f"one function uses variable {variable.name!r}, which is on no server, and "
                f"variables on parameter servers",
                other=variable.made_at,
                hint="make it inside strategy.scope(), or read it before and pass its value",
            )


def _require_no_lost_writes(cut: CutStep) -> None:
    """Raise `UnsupportedError` for an update that overwrites updates of other workers."""
    for lost in lost_writes(cut):
        raise UnsupportedError(
            lost.what,
            source=lost.source,
            hint=f"{_BY_ARGUMENTS if lost.is_chosen else _BY_SERVER}; or take the loss: "
            f"gd.ParameterServerStrategy(allow_lost_updates=True)",
        )


_BY_ARGUMENTS = "let an argument of the step decide, or schedule another function in its turn"
_BY_SERVER = (
    "have the server change it, behind the loop or branch that computes the change: "
    "v.assign_sub(change), or v.assign(jnp.where(condition, v - change, v))"
)


def _of_worker(interface: Interface, cut: CutStep) -> Interface:
    """Return the interface of the worker's graph, with added arguments and a list of results."""
    names = [read.variables[0].name for read in cut.reads]
    more = cut.num_sent
    structure = jax.tree_util.treedef_tuple((interface.structure, jax.tree.structure([0] * more)))
    return replace(
        interface,
        keys=(*interface.keys, *(_key(read.type) for read in cut.reads)),
        names=[*interface.names, *names],
        paths=(*interface.paths, *names),
        structure=structure,
        statics=[*interface.statics, *[OUTPUT] * more],
        per_replica=[*interface.per_replica, *[False] * more],
        shapes=[*interface.shapes, *[None] * more],
    )


def _of_indices(interface: Interface, cut: CutStep) -> Interface:
    """Return the interface of the program that computes indices of rows."""
    count = sum(read.is_of_rows for read in cut.reads)
    return replace(
        interface,
        structure=jax.tree.structure([0] * count),
        statics=[OUTPUT] * count,
        per_replica=[False] * count,
        shapes=[None] * count,
        rows={},
    )


def _key(type: Type) -> LeafKey:
    """Return the key of an argument with this type."""
    return leaf_key(jax.ShapeDtypeStruct(type.shape, numpy_dtype(type.dtype)), False)


class ProgramOnServers:
    """The worker's compiled program, with the reads before it and the updates after it."""

    def __init__(self, traced: Traced, compiled: Callable[[Traced], RunnableProgram]) -> None:
        """Compile the parts of a traced function that uses variables on servers."""
        _require_on_servers(traced)
        self.last_call = 0
        self.traced: Traced | None = traced
        interface = traced.interface
        strategy: Any = interface.strategy
        history = traced.lower().history
        first = next(record.cut for record in history if record.cut)
        cut = history[-1].cut
        assert cut is not None, "a step that is cut stays so"
        if strategy.refuses_lost_updates:
            _require_no_lost_writes(first)
        keys = {name: on_server(each).key for name, each in traced.named_variables.items()}
        strategy.keep_together([tuple(keys[name] for name in group) for group in cut.together])
        # Variables of the worker's graph are arguments, and the passes have run.
        part = partial(replace, traced, variables=(), pipeline=())
        self._indices: RunnableProgram | None = None
        if cut.rows is not None:
            indices = part(graph=cut.rows, interface=_of_indices(interface, cut))
            self._indices = compiled(indices)
        # The graph at the cut, whose outputs have the shapes that users see.
        worker = part(graph=first.worker, interface=_of_worker(interface, cut), history=history)
        self._worker = compiled(replace(worker, logical=traced.graph))
        self._reads, self._strategy = Reads(cut.reads, keys), strategy
        self._changes = [strategy.servers.change(update, keys) for update in cut.updates]

    def call(self, leaves: Sequence[Any]) -> Any:
        """Run the program on the leaves of the arguments and return the user's result."""
        strategy = self._strategy
        indices = [] if self._indices is None else self._indices.call(leaves)
        with strategy.asking_servers() as servers:
            values = self._reads.values(servers, indices)
        placed = jax.device_put(values, strategy.devices.mirrored)
        result, sent = self._worker.call([*leaves, *placed])
        if self._changes:
            with strategy.asking_servers() as servers:
                servers.apply(self._changes, jax.device_get(sent))
        return result


class Reads:
    """The reads of a step: first of variables, then of rows of tables."""

    def __init__(self, reads: Sequence[ServerRead], keys: Mapping[str, Key]) -> None:
        """Prepare the reads; `keys` has the ids of variables by name."""
        self._variables = [Read(keys[r.variables[0].name]) for r in reads if not r.is_of_rows]
        self._tables = [Table(read, keys) for read in reads if read.is_of_rows]

    def values(self, servers: Any, indices: Sequence[Any]) -> list[Any]:
        """Return the values of the variables, and the rows at these indices."""
        wanted = [np.asarray(of_table)[..., 0].astype(np.int64) for of_table in indices]
        once = [table.once(asked) for table, asked in zip(self._tables, wanted, strict=True)]
        rows = [table.reads(sent) for table, sent in zip(self._tables, once, strict=True)]
        values = iter(
            servers.read([*self._variables, *(read for of_table in rows for read in of_table)])
        )
        variables = [next(values) for _ in self._variables]
        parts = [[next(values) for _ in of_table] for of_table in rows]
        return [*variables, *map(Table.looked_up, self._tables, parts, once, wanted)]


class Table:
    """A table whose rows are read: a variable, or the shards of one, in order."""

    def __init__(self, read: ServerRead, keys: Mapping[str, Key]) -> None:
        """Prepare the read; `keys` has the ids of variables by name."""
        self._keys, self._fill = [keys[variable.name] for variable in read.variables], read.fill
        self._ends = [0, *accumulate(variable.type.shape[0] for variable in read.variables)]
        row = read.variables[0].type
        self._nothing = np.zeros((1, *row.shape[1:]), numpy_dtype(row.dtype))

    def once(self, asked: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the distinct rows to read: a batch of words may have a word several times."""
        within = np.clip(asked, 0, self._ends[-1] - 1)
        return np.unique(within if self._fill is None else asked[within == asked])

    def reads(self, indices: np.ndarray[Any, Any]) -> list[Read]:
        """Return the reads of these rows from the variables that have them."""
        ranges = pairwise(np.searchsorted(indices, self._ends))
        return [
            Read(key, (indices[first:last] - start).astype(np.int32))
            for key, start, (first, last) in zip(self._keys, self._ends, ranges, strict=False)
            if last > first
        ]

    def looked_up(
        self,
        parts: Sequence[np.ndarray[Any, Any]],
        indices: np.ndarray[Any, Any],
        asked: np.ndarray[Any, Any],
    ) -> np.ndarray[Any, Any]:
        """Return the rows at the indices `asked` from the rows that were read at `indices`."""
        rows = np.concatenate([*parts, self._nothing])
        found = rows[np.searchsorted(indices, np.clip(asked, 0, self._ends[-1] - 1))]
        if self._fill is not None:
            found[(asked < 0) | (asked >= self._ends[-1])] = self._fill
        return found
