"""One compiled program of a function whose variables are on servers.

A call reads the variables that the worker's half needs, runs it on this process's devices, and
sends what it computed to the servers, which update the variables. It returns when they have. Where
the half looks up rows of a table, another program computes the row numbers before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any  # Any: users' arguments and results, and the strategy

import jax

from graphdist.errors import ContextError, UnsupportedError
from graphdist.ir.graph import Graph
from graphdist.ir.types import Type, numpy_dtype
from graphdist.parameter_server.messages import Key
from graphdist.parameter_server.reads import Reads
from graphdist.parameter_server.storage import ServerStorage, on_server
from graphdist.passes.cut_updates import NAME as CUT
from graphdist.passes.halves import CutStep, of_worker, parted
from graphdist.passes.lost_writes import lost_writes
from graphdist.passes.manager import Pass, run_passes
from graphdist.passes.pipelines import in_halves
from graphdist.passes.pulls import RowReads, row_reads
from graphdist.program.argument_keys import LeafKey, leaf_key
from graphdist.program.interface import OUTPUT, Interface
from graphdist.program.program import RunnableProgram
from graphdist.program.stages import Traced
from graphdist.tracing.user_lines import here


def program_on_servers(traced: Traced, interface: Interface, compiled: Callable[..., Any]) -> Any:
    """Return the program of a traced function that uses variables on servers."""
    _require_on_servers(traced)
    strategy: Any = interface.strategy
    cut, rest = _halves(traced, strategy.refuses_lost_updates)
    names = [variable.name for variable in traced.graph.variables if not variable.is_local]
    keys = {
        name: on_server(variable).key
        for name, variable in zip(names, traced.variables, strict=True)
    }
    strategy.keep_together([tuple(keys[name] for name in group) for group in cut.together])
    found = row_reads(cut.worker)
    own = replace(traced, variables=(), pipeline=rest)

    def program(graph: Graph, interface: Interface) -> Any:
        return compiled(replace(own, graph=graph, interface=interface), interface)

    rows = program(found.numbers, _of_row_numbers(interface, found)) if found.lookups else None
    worker = program(_with_reads_as_arguments(found), _interface(interface, found, cut))
    return ProgramOnServers(traced, worker, rows, Reads(found, keys), cut, keys, strategy)


def _halves(traced: Traced, refuses_lost: bool) -> tuple[CutStep, list[Pass]]:
    """Return the halves of a step, and the passes that are left for the worker's."""
    pipeline = tuple(traced.pipeline)
    if not any(entry.name == CUT for entry in pipeline):  # the user's own passes
        pipeline = in_halves(pipeline)
    until = 1 + [entry.name for entry in pipeline].index(CUT)
    graph = run_passes(traced.graph, pipeline[:until], verifies=False)[-1].graph
    if refuses_lost:
        _require_no_lost_writes(graph)
    return parted(graph), [of_worker(entry) for entry in pipeline[until:]]


def _require_on_servers(traced: Traced) -> None:
    """Raise `ContextError` for a variable that is on no server."""
    for variable in traced.variables:
        if not isinstance(variable.storage, ServerStorage):
            raise ContextError(
                f"one function uses variable {variable.name!r}, which is on no server, and "
                f"variables on parameter servers",
                source=here(),
                other=variable.made_at,
                hint="make it inside strategy.scope(), or read it before and pass its value",
            )


def _require_no_lost_writes(graph: Graph) -> None:
    """Raise `UnsupportedError` for an update that undoes what other workers have written."""
    for lost in lost_writes(graph):
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


def _with_reads_as_arguments(found: RowReads) -> Graph:
    """Return the worker's half, which takes the values that it reads after its arguments."""
    count = len(found.reads) + len(found.lookups)
    read, arguments = found.worker.inputs[:count], found.worker.inputs[count:]
    return found.worker.replace(inputs=(*arguments, *read))


def _interface(interface: Interface, found: RowReads, cut: CutStep) -> Interface:
    """Return the interface of the worker's half: more arguments, and a list of more results."""
    names = (*found.reads, *(lookup.variables[0] for lookup in found.lookups))
    read = [value.type for value in found.worker.inputs[: len(names)]]
    more = cut.num_sent
    structure = jax.tree_util.treedef_tuple((interface.structure, jax.tree.structure([0] * more)))
    return replace(
        interface,
        keys=(*interface.keys, *map(_key, read)),
        names=[*interface.names, *names],
        paths=(*interface.paths, *names),
        structure=structure,
        statics=[*interface.statics, *[OUTPUT] * more],
        per_replica=[*interface.per_replica, *[False] * more],
        shapes=[*interface.shapes, *[None] * more],
    )


def _of_row_numbers(interface: Interface, found: RowReads) -> Interface:
    """Return the interface of the program that computes row numbers."""
    count = len(found.lookups)
    return replace(
        interface,
        structure=jax.tree.structure([0] * count),
        statics=[OUTPUT] * count,
        per_replica=[False] * count,
        shapes=[None] * count,
        rows={},
    )


def _key(type: Type) -> LeafKey:
    """Return the key of an argument of a type."""
    return leaf_key(jax.ShapeDtypeStruct(type.shape, numpy_dtype(type.dtype)), False)


class ProgramOnServers:
    """A compiled worker's half, with what goes before and after it."""

    def __init__(
        self,
        traced: Traced,
        worker: RunnableProgram,
        row_numbers: RunnableProgram | None,
        reads: Reads,
        cut: CutStep,
        keys: dict[str, Key],
        strategy: Any,
    ) -> None:
        """Take the function, and the programs of the worker's half and of the rows it looks up."""
        self.last_call = 0
        self.traced: Traced | None = traced
        self.cut = cut
        self._worker, self._row_numbers, self._reads = worker, row_numbers, reads
        self._strategy = strategy
        self._changes = strategy.servers.changes(cut.updates, keys)

    def call(self, leaves: Sequence[Any]) -> Any:
        """Run the program on the leaves of the arguments and return the user's result."""
        strategy = self._strategy
        numbers = [] if self._row_numbers is None else self._row_numbers.call(leaves)
        values = self._reads.values(strategy, numbers) if self.cut.reads else []
        placed = jax.device_put(values, strategy.devices.mirrored) if values else []
        result, sent = self._worker.call([*leaves, *placed])
        if self._changes:
            strategy.apply(self._changes, jax.device_get(sent))
        return result
