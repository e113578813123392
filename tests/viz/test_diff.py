"""The difference of two graphs is that of their structure, whatever things are called."""

from __future__ import annotations

import pytest

from graphdist.ir.parser import parse
from graphdist.passes import PASSES
from graphdist.viz.diff import diff
from tests.viz.graphs import chain

TEXT = """graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica) {
  %a = jax.neg(%x) : f32[3] per_replica
  %b = all_reduce(%a) {reducer="sum", group_size=2} : f32[3] mirrored
  %c = jax.mul(%b, 2.0:f32) : f32[3] mirrored
  %d = jax.exp(%c) : f32[3] mirrored
  return %d
}"""


def counts(other: str) -> tuple[int, int, int, int, int]:
    change = diff(parse(TEXT), parse(other))
    return (
        len(change.added),
        len(change.removed),
        len(change.rewired),
        len(change.changed),
        change.kept,
    )


def test_a_graph_does_not_differ_from_itself_under_other_names() -> None:
    renamed = TEXT
    for name in "abcd":
        renamed = renamed.replace(f"%{name} ", f"%long_{name} ").replace(
            f"%{name})", f"%long_{name})"
        )
        renamed = renamed.replace(f"%{name},", f"%long_{name},")
    renamed = renamed.replace("return %d", "return %long_d")
    assert counts(renamed) == (0, 0, 0, 0, 4)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("%c = jax.mul(%b, 2.0:f32)", "%c = jax.mul(%b, 3.0:f32)", (0, 0, 1, 0, 3)),
        ('reducer="sum"', 'reducer="max"', (0, 0, 0, 1, 3)),
        ("%d = jax.exp(%c)", "%d = jax.exp(%b)", (0, 0, 1, 0, 3)),
        ("%d = jax.exp(%c)", "%d = jax.sin(%c)", (1, 1, 0, 0, 3)),
    ],
    ids=["literal", "parameter", "wiring", "operation"],
)
def test_each_kind_of_change_is_told(
    old: str, new: str, expected: tuple[int, int, int, int, int]
) -> None:
    assert old in TEXT
    assert counts(TEXT.replace(old, new)) == expected


def test_a_node_put_between_rewires_its_user_alone() -> None:
    line = "  %b = all_reduce"
    other = TEXT.replace(line, f"  %n = jax.sin(%a) : f32[3] per_replica\n{line}", 1)
    assert counts(other.replace("all_reduce(%a)", "all_reduce(%n)")) == (1, 0, 1, 0, 3)


def test_a_pass_that_changes_nothing_has_no_difference() -> None:
    graph = chain(30)
    assert not diff(graph, PASSES["eliminate_dead_code"](graph))


def test_what_a_pass_removes_is_found() -> None:
    dead = parse(TEXT.replace("  return", "  %e = jax.sin(%a) : f32[3] per_replica\n  return"))
    change = diff(dead, PASSES["eliminate_dead_code"](dead))
    assert [node.op.name for node in change.removed] == ["jax.sin"]
    assert not change.added
    assert not change.rewired
