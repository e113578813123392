"""One compiled program of a function whose variables are on servers.

A call reads the variables that the worker's half needs, runs it on this process's devices, and
sends what it computed to the servers, which update the variables. It returns when they have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any  # Any: users' arguments and results, and the strategy

import jax

from graphdist.errors import ContextError
from graphdist.ir.graph import Graph
from graphdist.ir.types import Type, numpy_dtype
from graphdist.parameter_server.messages import Key
from graphdist.parameter_server.storage import StorageOnServer
from graphdist.passes.cut_updates import CutStep, cut_updates
from graphdist.passes.manager import run_passes
from graphdist.program.argument_keys import LeafKey, leaf_key
from graphdist.program.interface import OUTPUT, Interface
from graphdist.program.program import RunnableProgram
from graphdist.program.stages import Traced
from graphdist.tracing.user_lines import here

_UNTIL_PLACED = ("infer_distribution", "place_variables")


def program_on_servers(traced: Traced, interface: Interface, compiled: Callable[..., Any]) -> Any:
    """Return the program of a traced function that uses variables on servers."""
    _require_on_servers(traced)
    cut = cut_updates(_placed(traced))
    names = [variable.name for variable in traced.graph.variables if not variable.is_local]
    keys = {
        name: variable.storage.key for name, variable in zip(names, traced.variables, strict=True)
    }
    strategy: Any = interface.strategy
    strategy.keep_together([tuple(keys[name] for name in group) for group in cut.together])
    of_worker = replace(
        traced,
        graph=_with_reads_as_arguments(cut),
        variables=(),
        pipeline=[entry for entry in traced.pipeline if entry.name not in _UNTIL_PLACED],
        interface=(own := _interface(interface, cut, traced)),
    )
    return ProgramOnServers(compiled(of_worker, own), cut, keys, strategy)


def _require_on_servers(traced: Traced) -> None:
    """Raise `ContextError` for a variable that is on no server."""
    for variable in traced.variables:
        if not isinstance(variable.storage, StorageOnServer):
            raise ContextError(
                f"one function uses variable {variable.name!r}, which is on no server, and "
                f"variables on parameter servers",
                source=here(),
                other=variable.made_at,
                hint="make it inside strategy.scope(), or read it before and pass its value",
            )


def _placed(traced: Traced) -> Graph:
    """Return the graph with variables as inputs and outputs."""
    passes = [entry for entry in traced.pipeline if entry.name in _UNTIL_PLACED]
    history = run_passes(traced.graph, passes, verifies=False)
    return history[-1].graph


def _with_reads_as_arguments(cut: CutStep) -> Graph:
    """Return the worker's half, which takes the values that it reads after its arguments."""
    read, arguments = cut.worker.inputs[: len(cut.reads)], cut.worker.inputs[len(cut.reads) :]
    return cut.worker.replace(inputs=(*arguments, *read), variables=())


def _interface(interface: Interface, cut: CutStep, traced: Traced) -> Interface:
    """Return the interface of the worker's half: more arguments, and a list of more results."""
    types = {variable.name: variable.type for variable in traced.graph.variables}
    read = [types[name] for name in cut.reads]
    more = cut.num_sent
    structure = jax.tree_util.treedef_tuple((interface.structure, jax.tree.structure([0] * more)))
    return replace(
        interface,
        keys=(*interface.keys, *map(_key, read)),
        names=[*interface.names, *cut.reads],
        paths=(*interface.paths, *cut.reads),
        structure=structure,
        statics=[*interface.statics, *[OUTPUT] * more],
        per_replica=[*interface.per_replica, *[False] * more],
        shapes=[*interface.shapes, *[None] * more],
    )


def _key(type: Type) -> LeafKey:
    """Return the key of an argument of a type."""
    return leaf_key(jax.ShapeDtypeStruct(type.shape, numpy_dtype(type.dtype)), False)


class ProgramOnServers:
    """A compiled worker's half, with what goes before and after it."""

    def __init__(
        self, program: RunnableProgram, cut: CutStep, keys: dict[str, Key], strategy: Any
    ) -> None:
        """Take the program of the worker's half, and the numbers of the variables by name."""
        self.last_call = 0
        self.cut = cut
        self._program, self._keys, self._strategy = program, keys, strategy
        self._reads = [keys[name] for name in cut.reads]

    def call(self, leaves: Sequence[Any]) -> Any:
        """Run the program on the leaves of the arguments and return the user's result."""
        strategy = self._strategy
        values = strategy.read(self._reads) if self._reads else []
        placed = jax.device_put(values, strategy.devices.mirrored) if values else []
        result, sent = self._program.call([*leaves, *placed])
        if self.cut.updates:
            strategy.apply(self.cut.updates, self._keys, jax.device_get(sent))
        return result
