"""How the variables of a program are stored: as its final graph says.

Passes decide (`shard_update` on slices, `pack_variables` on packs). Before a program is traced for
the devices, its logical graph is told how the variables are stored by now (`as_stored`), so that
programs agree where they can. Once it is compiled, its variables are stored as its final graph says
(`Layout.apply`). Another program may change that: every buffer store counts such changes, and a
step that meets another count than its own is laid out again, or compiled for what it found.

All of this happens between steps, under the lock of the stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from graphdist.ir.graph import Graph
from graphdist.ir.graph import Variable as GraphVariable
from graphdist.state.packs import VariablePack
from graphdist.state.storage import Storage
from graphdist.state.variable import Variable
from graphdist.strategy_base import StrategyBase

Holder: TypeAlias = Storage | VariablePack


def as_stored(graph: Graph, variables: Sequence[Variable], strategy: StrategyBase) -> Graph:
    """Return a logical graph that says how its variables are stored by now.

    It is the graph itself if it says so already.
    """
    names = {variable.name for variable in graph.variables}
    packs: dict[VariablePack, str] = {}
    storages = iter([variable.storage for variable in variables])
    described = []
    for variable in graph.variables:
        if not variable.is_local:
            storage = next(storages)
            pack = "" if storage.pack is None else _name_of(storage.pack, packs, names)
            variable = storage.described(variable, pack, strategy)
        described.append(variable)
    is_said = tuple(described) == graph.variables
    return graph if is_said else graph.replace(variables=tuple(described))


def _name_of(pack: VariablePack, packs: dict[VariablePack, str], taken: set[str]) -> str:
    if pack not in packs:
        number = len(packs)
        while f"pack_{number}" in taken:
            number += 1
        packs[pack] = f"pack_{number}"
        taken.add(packs[pack])
    return packs[pack]


class Layout:
    """The storage of one program's variables, and whether it is still as the program takes it."""

    def __init__(
        self, graph: Graph, storages: Mapping[str, Storage], strategy: StrategyBase
    ) -> None:
        """Take the final graph, and the storage of the variables that it and its packs name."""
        self.graph, self.strategy, self._storages = graph, strategy, storages
        stores = [storage.strategy.buffers for storage in storages.values()]
        self._stores = set(stores) or {strategy.buffers}
        self.holders: tuple[Holder, ...] = ()
        """What owns the buffer of each variable of the graph."""
        self.version = 0
        """The count of the stores when the variables were stored as the graph says."""

    @property
    def storages(self) -> list[Storage]:
        """Return the storage of the user's variables, in the graph's order."""
        return list(self._storages.values())

    @property
    def assigned(self) -> list[Holder]:
        """Return what owns the buffers that steps assign."""
        pairs = zip(self.holders, self.graph.variables, strict=True)
        return [holder for holder, variable in pairs if variable.assigned]

    def apply(self) -> None:
        """Store the variables as the graph says."""
        self.holders = tuple(map(self._holder, self.graph.variables))
        self._packs = {name: storage.pack for name, storage in self._storages.items()}
        self._note_version()

    def _note_version(self) -> None:
        self.version = sum(store.layout for store in self._stores)

    def _holder(self, variable: GraphVariable) -> Holder:
        if not variable.pieces:
            storage = self._storages[variable.name]
            storage.lay_out(variable.sharded_along)
            return storage
        pieces = [self._storages[name] for name in variable.pieces if name]
        return pieces[0].pack or VariablePack(pieces)

    def restore(self) -> bool:
        """Store variables in slices again that are not; return whether no more was changed.

        More are packs: a program cannot be called once a variable entered or left one.
        """
        if any(storage.pack is not self._packs[name] for name, storage in self._storages.items()):
            return False
        alone = [variable for variable in self.graph.variables if not variable.pieces]
        found = [(self._storages[variable.name], variable.sharded_along) for variable in alone]
        if any(storage.sharded_along not in (None, wanted) for storage, wanted in found):
            return False
        for storage, wanted in found:
            storage.lay_out(wanted)
        self._note_version()
        return True
