"""How the variables of a program are stored: as its final graph says.

Passes decide it: `place_conversions` chooses slices for more variables than were created in slices
(`slices_from_creation.py`), and `pack_variables` packs. Before the passes run, the logical graph
receives the current storage of its variables (`as_stored`), so that programs choose the same
storage where they can. Before compilation, the variables are moved to the storage that the final
graph asks for (`Layout.apply`).

Another program may move them later. Every buffer store counts the moves in `layout`. A step
compares the count with the count at its own layout (`version`), which costs one comparison a call;
if it differs, the program restores the layout, or is compiled for the storage it finds.

All of this happens between steps, under the lock of the stores: a step that ran meanwhile would
read some variables in their old buffers and some in new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from graphdist.ir.graph import Graph, GraphVariable
from graphdist.passes.local_variables import LOCAL
from graphdist.state.local_state import added_storage
from graphdist.state.packs import VariablePack
from graphdist.state.storage import Storage
from graphdist.state.variable import Variable
from graphdist.strategy_base import StrategyBase

Holder: TypeAlias = Storage | VariablePack


def as_stored(graph: Graph, variables: Sequence[Variable], strategy: StrategyBase) -> Graph:
    """Return a logical graph with the current storage of its variables.

    Returns the graph itself if it has that storage already: callers compare by identity.
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
    is_current = tuple(described) == graph.variables
    return graph if is_current else graph.replace(variables=tuple(described))


def _name_of(pack: VariablePack, packs: dict[VariablePack, str], taken: set[str]) -> str:
    if pack not in packs:
        number = len(packs)
        while f"pack_{number}" in taken:
            number += 1
        packs[pack] = f"pack_{number}"
        taken.add(packs[pack])
    return packs[pack]


class Layout:
    """The storage of one program's variables, in the form that its step takes them."""

    def __init__(
        self, graph: Graph, storages: Mapping[str, Storage], strategy: StrategyBase
    ) -> None:
        """Take the final graph, and the storage of the variables that it and its packs name."""
        self.graph, self.strategy, self._storages = graph, strategy, storages
        stores = [storage.strategy.buffers for storage in storages.values()]
        self._stores = set(stores) or {strategy.buffers}
        self.holders: tuple[Holder, ...] = ()
        """The owner of the buffer of each variable of the graph: a storage or a pack."""
        self.version = 0
        """The sum of the stores' counts of moves when this layout was applied."""

    @property
    def storages(self) -> list[Storage]:
        """Return the storage of the user's variables, in the graph's order."""
        return list(self._storages.values())

    @property
    def assigned(self) -> list[Holder]:
        """Return the owners of the buffers that steps assign."""
        pairs = zip(self.holders, self.graph.variables, strict=True)
        return [holder for holder, variable in pairs if variable.assigned]

    def apply(self) -> None:
        """Store the variables as the graph says."""
        # First what begins with the values of others, which are then stored in copies.
        added = [variable for variable in self.graph.variables if variable.serves]
        for variable in added:
            self._holder(variable)
        self.holders = tuple(map(self._holder, self.graph.variables))
        self._packs = {name: storage.pack for name, storage in self._storages.items()}
        self._note_version()

    def begin_unread_with_zeros(self) -> bool:
        """Give zeros to variables without a value that steps only assign; return whether any were.

        A function that initializes variables takes their buffers, and ignores the values.
        """
        graph = self.graph
        read = {operand for node in graph.nodes for operand in node.operands} | set(graph.outputs)
        unread = [
            self._storages[variable.name]
            for variable, value in zip(graph.variables, graph.inputs, strict=False)
            if variable.assigned and not (variable.pieces or variable.serves)
            if value not in read
        ]
        return sum(storage.begin_with_zeros() for storage in unread) > 0

    def _note_version(self) -> None:
        self.version = sum(store.layout for store in self._stores)

    def _holder(self, variable: GraphVariable) -> Holder:
        if variable.role == LOCAL:
            storage = self._storages[variable.name]
            storage.store_copies()
            return storage
        if variable.serves:
            return added_storage(variable, [self._storages[name] for name in variable.serves])
        if not variable.pieces:
            storage = self._storages[variable.name]
            storage.lay_out(variable.sharded_along)
            return storage
        pieces = [self._storages[name] for name in variable.pieces if name]
        return pieces[0].pack or VariablePack(pieces)

    def restore(self) -> bool:
        """Store full variables in slices again; return whether the layout is restored by that.

        It is not if a variable entered or left a pack, is sliced along another dimension or is
        stored in copies now: then the step takes other buffers, and the program must be compiled
        again.
        """
        if any(storage.pack is not self._packs[name] for name, storage in self._storages.items()):
            return False
        copies = [variable.name for variable in self.graph.variables if variable.role == LOCAL]
        if any(
            storage.is_in_copies != (name in copies) for name, storage in self._storages.items()
        ):
            return False
        alone = [
            variable
            for variable in self.graph.variables
            if not (variable.pieces or variable.serves or variable.role == LOCAL)
        ]
        found = [(self._storages[variable.name], variable.sharded_along) for variable in alone]
        if any(storage.sharded_along not in (None, wanted) for storage, wanted in found):
            return False
        for storage, wanted in found:
            storage.lay_out(wanted)
        self._note_version()
        return True
