"""Which collective of a compiled module does the work of a collective of the graph.

XLA changes the names, kinds and sizes of collectives, so collectives are matched by the values that
they carry: by kind, dtype and number of elements. A combined collective carries several values, and
each value is matched once. Rules are tried in order, each for all collectives of the graph, so that
a loose rule takes no value that a strict rule would match:

1. the same kind, dtype and size;
2. an all_gather over fewer replicas with larger parts, after a transfer between TPU slices;
3. an all_gather as the all_reduce of the joined value, with zeros for the other replicas' shards;
4. another kind, since XLA splits an all_reduce into a reduce_scatter and an all_gather;
5. another dtype, since XLA widens some values;
6. all unmatched collectives of a kind as one packed buffer;
7. a slightly larger size, since XLA pads shards to complete tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from graphdist.ir.collective_bytes import Collective
from graphdist.runtime.module.collective_instructions import ModuleCollective
from graphdist.runtime.module.instructions import bytes_of_element, hlo_dtype

LARGEST_PADDING = 1 / 8
"""The largest padding, as a share of a value's size."""


class Match(NamedTuple):
    """The collective of the module that carries a value.

    `bytes` is the size of the operand per replica, with the padding and the dtype of the module.
    """

    collective: ModuleCollective
    bytes: int
    num_packed: int = 1
    """The number of values that share the bytes."""
    is_padded: bool = False


class _Carried(NamedTuple):
    """A value that a collective of the module carries."""

    collective: ModuleCollective
    dtype: str
    size: int


_Rule: TypeAlias = Callable[[Collective, _Carried], bool]


def _is_same(asked: Collective, carried: _Carried) -> bool:
    kind, size = carried.collective.kind, carried.size
    return (kind, carried.dtype, size) == (asked.in_module, hlo_dtype(asked.dtype), asked.size)


def _is_gathered_in_slices(asked: Collective, carried: _Carried) -> bool:
    found = carried.collective
    return (
        (asked.in_module, found.kind) == ("all_gather", "all_gather")
        and carried.dtype == hlo_dtype(asked.dtype)
        and carried.size > asked.size
        and carried.size * found.group_size == asked.size * asked.group_size
    )


def _is_gathered_by_sum(asked: Collective, carried: _Carried) -> bool:
    return _is_joined(asked, carried) and carried.size == asked.size * asked.group_size


def _has_another_kind(asked: Collective, carried: _Carried) -> bool:
    is_it = carried.dtype == hlo_dtype(asked.dtype) and carried.size == asked.size
    return is_it and not _is_joined(asked, carried)  # rule 3 matches the joined value


def _has_another_dtype(asked: Collective, carried: _Carried) -> bool:
    return carried.collective.kind == asked.in_module and carried.size == asked.size


def _is_padded(asked: Collective, carried: _Carried) -> bool:
    joined = _is_joined(asked, carried)
    size = asked.size * asked.group_size if joined else asked.size
    return (
        (joined or carried.collective.kind == asked.in_module)
        and carried.dtype == hlo_dtype(asked.dtype)
        and size < carried.size <= size * (1 + LARGEST_PADDING)
    )


def _is_joined(asked: Collective, carried: _Carried) -> bool:
    """Return whether an all_reduce might carry the joined value of an all_gather."""
    kinds = (asked.in_module, carried.collective.kind)
    return kinds == ("all_gather", "all_reduce") and carried.dtype == hlo_dtype(asked.dtype)


def match_collectives(
    module: Sequence[ModuleCollective], asked: Sequence[Collective]
) -> tuple[Match | None, ...]:
    """Return for each collective of a graph its match in the module, or None.

    >>> from graphdist.ir.source import UNKNOWN
    >>> carried = (("f32", 32),)
    >>> made = ModuleCollective("all-reduce.1", "all_reduce", carried, 128, 4, 1, False, False)
    >>> asked = Collective("all_gather", "", "f32", 8, 32, 4, 1, "", UNKNOWN)
    >>> [found] = match_collectives([made], [asked])
    >>> found.collective.name, found.bytes
    ('all-reduce.1', 128)
    """
    matching = _Matching(module, asked)
    for rule in _EXACT:
        matching.apply(rule)
    matching.take_packed()
    matching.apply(_is_padded, is_padded=True)
    return tuple(matching.found)


_EXACT = (
    _is_same,
    _is_gathered_in_slices,
    _is_gathered_by_sum,
    _has_another_kind,
    _has_another_dtype,
)


class _Matching:
    def __init__(self, module: Sequence[ModuleCollective], asked: Sequence[Collective]) -> None:
        self.asked = asked
        self.found: list[Match | None] = [None] * len(asked)
        self.left = [
            _Carried(collective, dtype, size)
            for collective in module
            for dtype, size in collective.shapes
            if collective.kind != "network_send"
        ]
        """The values of the module that are not matched yet."""

    def apply(self, rule: _Rule, *, is_padded: bool = False) -> None:
        """Match collectives by a rule: with the smallest value if padded, else with the first."""
        for i, asked in self._unmatched():
            fitting = (carried for carried in self.left if rule(asked, carried))
            smallest = min(fitting, key=attrgetter("size"), default=None) if is_padded else None
            chosen = smallest or next(fitting, None)
            if chosen is not None:
                is_as_asked = chosen.collective.kind == asked.in_module and not is_padded
                self._take(chosen, [i], asked.size if is_as_asked else chosen.size, is_padded)

    def take_packed(self) -> None:
        """Match all unmatched collectives of a kind with one value of their total size."""
        for kind in dict.fromkeys(asked.in_module for asked in self.asked):
            sizes = {i: asked.size for i, asked in self._unmatched() if asked.in_module == kind}
            total = sum(sizes.values())
            packed = (each for each in self.left if each.collective.kind == kind)
            carried = next((each for each in packed if each.size == total), None)
            if sizes and carried is not None:
                self._take(carried, list(sizes), total)

    def _unmatched(self) -> list[tuple[int, Collective]]:
        return [(i, asked) for i, asked in enumerate(self.asked) if self.found[i] is None]

    def _take(
        self, carried: _Carried, places: list[int], size: int, is_padded: bool = False
    ) -> None:
        self.left = [other for other in self.left if other is not carried]
        in_bytes = size * bytes_of_element(carried.dtype)
        for i in places:
            self.found[i] = Match(carried.collective, in_bytes, len(places), is_padded)
