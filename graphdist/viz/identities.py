"""Which nodes of the graphs of a program are the same node, which keeps its position on the page.

1. An identity is an integer. A node that a pass keeps, rewires or changes keeps its identity: the
   node after the pass has the identity of its partner before the pass (`graph_diff.py`). Inputs
   and `return` keep their identities, too.
2. A node whose partner is in another group, or in another loop's body, has a new identity, because
   it is drawn elsewhere.
3. Identities are numbered in the order of the program. The identity of a node that a pass adds
   comes right after the identity of the node before it.
4. The group of an identity is the group of its first node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from graphdist.viz.graph_diff import Diff
from graphdist.viz.groups import GroupPath, crowds_divided, goes_with_neighbours, own_paths
from graphdist.viz.model import Model, Record

Identities: TypeAlias = tuple[list[list[int]], list[GroupPath]]
"""The identities of the records of each model, in order, and the group of each identity."""


def paths(model: Model) -> list[tuple[str, ...]]:
    """Return, for each record of a single graph, the names of its groups, outermost first.

    >>> from graphdist.ir.parser import parse
    >>> from graphdist.viz.model import model_of
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.neg(%x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> paths(model_of(graph))
    [('inputs',), (), ()]
    """
    _, groups = identified([model], {})  # a node's identity is its position

    def name(group: str | int) -> str:
        if isinstance(group, str):
            return group
        return f"{model.records[group].facts.op} {model.records[group].id}"

    return [tuple(map(name, path)) for path in groups]


def partners(change: Diff, before: Model, after: Model) -> dict[int, int]:
    """Return the pairs of a difference: from positions in `before` to positions in `after`."""
    inputs = {
        before.position_of_value(value): after.position_of_value(other)
        for value, other in change.inputs.items()
    }
    nodes = {
        before.position_of[old]: after.position_of[new] for old, new in change.partners.items()
    }
    return {**inputs, **nodes, len(before.records) - 1: len(after.records) - 1}  # and `return`


def identified(
    models: Sequence[Model],
    earlier: Mapping[int, tuple[int, Mapping[int, int]]],
    *,
    across_groups: bool = False,
) -> Identities:
    """Return the identities of the records of models.

    `earlier` maps the index of a model to the index of an earlier model, and to the pairs of
    partners, from positions in the earlier model to positions in the model. With `across_groups`,
    partners in different groups are the same node, too. This is for two versions of a program:
    groups are named after lines, and lines have moved.
    """
    maker = _Maker(across_groups)
    for index, (model, own) in enumerate(zip(models, own_paths(models), strict=True)):
        maker.add(model, own, *earlier.get(index, (0, {})))
    return maker.identities()


class _Maker:
    """Gives identities to the records of one model after the other."""

    def __init__(self, across_groups: bool) -> None:
        self._across_groups = across_groups
        self._of: list[list[int]] = []
        self._first: list[Record] = []  # the first record of each identity
        self._parents: list[int] = []  # the identity of the loop or branch around each, or -1
        self._paths: list[GroupPath] = []
        self._next: dict[int, int] = {}  # from an identity to the next in the program; -1: start

    def add(
        self, model: Model, own: Sequence[GroupPath], earlier: int, partners: Mapping[int, int]
    ) -> None:
        """Give an identity to each record of a model: a new identity, or the partner's identity.

        `earlier` is the index of the model in which the partners are.
        """
        inherited = {new: self._of[earlier][old] for old, new in partners.items()}
        of: list[int] = []
        taken: set[int] = set()
        before = -1
        for position, (record, path) in enumerate(zip(model.records, own, strict=True)):
            parent = of[record.parent] if record.parent >= 0 else -1
            identity = inherited.get(position, -1)
            if identity in taken or not self._is_at(identity, parent, path, record):
                identity = self._new(record, parent, path, before)
            taken.add(identity)
            of.append(identity)
            before = identity
        self._of.append(of)

    def _is_at(self, identity: int, parent: int, path: GroupPath, record: Record) -> bool:
        """Return whether an identity is in the group of a record. Identity -1 is in no group."""
        if identity < 0 or self._parents[identity] != parent:
            return False
        is_same = self._across_groups or self._paths[identity] == path
        return is_same or goes_with_neighbours(record)

    def _new(self, record: Record, parent: int, path: GroupPath, before: int) -> int:
        identity = len(self._first)
        self._first.append(record)
        self._parents.append(parent)
        self._paths.append(path)
        self._next[identity] = self._next.get(before, -1)
        self._next[before] = identity
        return identity

    def identities(self) -> Identities:
        """Return the identities, numbered in the order of the program."""
        order: list[int] = []
        at = self._next.get(-1, -1)
        while at >= 0:
            order.append(at)
            at = self._next[at]
        index_of = {identity: index for index, identity in enumerate(order)}
        paths: dict[int, GroupPath] = {-1: ()}
        for identity in range(len(order)):  # a loop has its identity before its body has
            parent = self._parents[identity]
            outer = (*paths[parent], index_of[parent]) if parent >= 0 else ()
            paths[identity] = (*outer, *self._paths[identity])
        groups = crowds_divided([paths[i] for i in order], [self._first[i] for i in order])
        return [[index_of[identity] for identity in of] for of in self._of], groups
