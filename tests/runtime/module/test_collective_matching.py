"""Collectives of a graph are found in a compiled module, also where XLA made others of them."""

from __future__ import annotations

import pytest

from graphdist.ir.collective_bytes import Collective
from graphdist.ir.source import UNKNOWN
from graphdist.runtime.module.collective_instructions import ModuleCollective
from graphdist.runtime.module.collective_matching import Match, match_collectives


def made(name: str, kind: str, *shapes: tuple[str, int]) -> ModuleCollective:
    size = sum(4 * count for _, count in shapes)
    return ModuleCollective(name, kind, shapes, size, 4, 1, is_async=False, is_fused=False)


def asked_for(kind: str, dtype: str, size: int, group_size: int) -> Collective:
    return Collective(kind, "", dtype, size, 4 * size, group_size, 1, "", UNKNOWN)


def names(matches: tuple[Match | None, ...]) -> list[str | None]:
    return [match and match.collective.name for match in matches]


def test_each_value_is_taken_once_and_by_the_strictest_rule() -> None:
    module = [
        made("r.1", "all_reduce", ("f32", 8), ("f32", 8), ("s32", 1)),
        made("s.1", "reduce_scatter", ("f32", 16)),
        made("s.2", "reduce_scatter", ("f32", 17)),
        made("send", "network_send", ("f32", 5)),
    ]
    asked = [
        asked_for("all_reduce", "f32", 8, 4),
        asked_for("all_reduce", "f32", 16, 4),  # only the scattering half is left of it
        asked_for("reduce_scatter", "f32", 16, 4),
        asked_for("all_reduce", "i32", 1, 4),
        asked_for("all_reduce", "f32", 8, 4),
        asked_for("all_reduce", "f32", 8, 4),
        asked_for("all_gather", "f32", 5, 4),
    ]
    found = names(match_collectives(module, asked))
    # The reduce_scatter is its own match before it can be half of an all_reduce.
    assert found == ["r.1", None, "s.1", "r.1", "r.1", None, None]


def test_a_gather_may_have_become_a_sum_of_the_joined_value() -> None:
    module = [made("r.1", "all_reduce", ("f32", 8)), made("r.2", "all_reduce", ("f32", 32))]
    [match] = match_collectives(module, [asked_for("all_gather", "f32", 8, 4)])
    assert match is not None
    assert (match.collective.name, match.bytes) == ("r.2", 128)
    assert names(match_collectives(module[:1], [asked_for("all_gather", "f32", 8, 4)])) == [None]


def test_a_gather_over_slices_has_larger_parts_of_fewer_replicas() -> None:
    module = [made("r.1", "all_reduce", ("f32", 64)), made("g.1", "all_gather", ("f32", 16))]
    asked = [asked_for("reduce_scatter", "f32", 64, 8), asked_for("all_gather", "f32", 8, 8)]
    scatter, gather = match_collectives(module, asked)
    assert names((scatter, gather)) == ["r.1", "g.1"]
    assert gather is not None
    assert gather.bytes == 32  # half of the part is from the other slice


@pytest.mark.parametrize(
    ("size", "is_it"), [(1000, True), (1024, True), (1125, True), (1126, False), (999, False)]
)
def test_padding_is_an_eighth_at_most(size: int, is_it: bool) -> None:
    module = [made("s.1", "reduce_scatter", ("f32", size))]
    [match] = match_collectives(module, [asked_for("reduce_scatter", "f32", 1000, 4)])
    assert (match is not None) == is_it
    if match is not None:
        assert (match.bytes, match.is_padded) == (4 * size, size > 1000)


def test_the_least_padding_is_taken() -> None:
    module = [
        made("s.1", "reduce_scatter", ("f32", 1100)),
        made("r.1", "all_reduce", ("f32", 1040)),
    ]
    module.append(made("s.2", "reduce_scatter", ("f32", 1020)))
    asked = [asked_for("reduce_scatter", "f32", 1000, 4), asked_for("all_gather", "f32", 256, 4)]
    assert names(match_collectives(module, asked)) == ["s.2", "r.1"]


def test_values_in_one_buffer_share_its_bytes() -> None:
    module = [made("g.1", "all_gather", ("f32", 12))]
    asked = [asked_for("all_gather", "f32", 4, 4), asked_for("all_gather", "f32", 8, 4)]
    assert match_collectives(module, asked) == (Match(module[0], 48, 2), Match(module[0], 48, 2))
