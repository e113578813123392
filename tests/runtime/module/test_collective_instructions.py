"""The replicas of a group, in each form in which modules write groups, and what a start sends."""

from __future__ import annotations

import pytest

from graphdist.runtime.module.collective_instructions import (
    exchange_of,
    members_of,
    module_collectives,
)
from graphdist.runtime.module.instructions import CompiledModule, Instruction


def collective(groups: str) -> Instruction:
    module = CompiledModule(f"""ENTRY %main (x: f32[64]) -> f32[8] {{
      ROOT %r = f32[8]{{0}} reduce-scatter(%x), {groups} dimensions={{0}}, to_apply=%sum
    }}""")
    return module["main"][0]


@pytest.mark.parametrize(
    ("groups", "members"),
    [
        ("replica_groups={{0,1},{2,3}},", [0, 1]),
        ("replica_groups={{0,8,16,24},{1,9,17,25}},", [0, 8, 16, 24]),
        ("replica_groups=[2,4]<=[8],", [0, 1, 2, 3]),
        ("replica_groups=[4,2]<=[2,4]T(1,0),", [0, 4]),
        ("replica_groups=[1,8]<=[8],", list(range(8))),
        ("replica_groups=mesh['replica'=4] {'replica'},", [0, 1, 2, 3]),
        ("replica_groups=mesh['group'=2,'member'=4] {'member'},", [0, 1, 2, 3]),
        ("replica_groups=mesh['group'=2,'member'=4] {'group'},", [0, 4]),
        ("replica_groups=mesh['group'=2,'member'=4] {'member','group'},", list(range(8))),
        ("replica_groups=mesh['group'=2,'member'=2,'core'=2] {'group','core'},", [0, 1, 4, 5]),
        ("", list(range(1024))),
        ("source_target_pairs={{3,2},{2,1},{1,0},{0,3}},", [0, 1, 2, 3]),
        # The groups {0, 16, .., 240} inside each of four slices.
        ("replica_groups=[64,16]<=[4,16,16]T(0,2,1),", list(range(0, 256, 16))),
        ("replica_groups=[256,4]<=[4,256]T(1,0),", list(range(0, 1024, 256))),
    ],
)
def test_the_members_of_a_group(groups: str, members: list[int]) -> None:
    instruction = collective(groups)
    assert list(members_of(instruction, 1024)) == members
    exchange = exchange_of(instruction, "reduce_scatter", 1024)
    assert exchange.bytes == 8 * 4 * len(members)
    assert list(exchange.members) == members


def test_a_start_that_lists_operands_and_results_sends_the_operands() -> None:
    module = CompiledModule("""ENTRY %main (x: f32[8], y: f32[]) -> f32[8] {
      %s = ((f32[8]{0}, f32[]), f32[8]{0}, f32[]) all-reduce-start(%x, %y), to_apply=%sum
      ROOT %d = (f32[8]{0}, f32[]) all-reduce-done(%s)
    }""")
    (found,) = module_collectives(module, 4)
    assert (found.bytes, found.shapes, found.is_async) == (36, (("f32", 8), ("f32", 1)), True)
