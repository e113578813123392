"""Sharing out through branches: graphs that no text says, and many nodes in a row."""

from __future__ import annotations

import pytest

from graphdist.ir.builder import Builder
from graphdist.ir.definitions import definitions
from graphdist.ir.graph import Graph, Literal, Node
from graphdist.ir.ops import COND
from graphdist.ir.parser import parse
from graphdist.ir.rewrite import with_graphs
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, Type, sharded
from graphdist.ir.verifier import verify
from graphdist.passes.layouts.place_conversions import PlaceConversions
from graphdist.passes.layouts.sharded_updates import UpdateSharding
from graphdist.passes.layouts.sharding_propagation import is_scanned, propagate_sharding
from graphdist.tracing.jax_ops import resolve

SHARD_UPDATE = PlaceConversions(UpdateSharding())

TEXT = """graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {synchronization="on_write", aggregation="none", assigned=true}
(%m: f32[4] mirrored = @m, %x: f32[4] per_replica, %i: i32[] mirrored) {
  %g = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %a = cond(%i, %m, %g) : f32[4] mirrored
    branch_0(%m0: f32[4] mirrored, %g0: f32[4] mirrored) {
      %sum = jax.add(%m0, %g0) : f32[4] mirrored
      return %sum
    }
    branch_1(%m1: f32[4] mirrored, %g1: f32[4] mirrored) {
      return %m1
    }
  return %a -> @m
}"""


def the_cond(graph: Graph) -> Node:
    (node,) = [node for node in graph.nodes if node.op is COND]
    return node


def with_cond(graph: Graph, branches: tuple[Graph, ...]) -> Graph:
    old = the_cond(graph)
    new = with_graphs(old, old.operands, branches)
    return graph.replace(nodes=tuple(new if node is old else node for node in graph.nodes))


def test_one_graph_as_both_branches_is_left_alone() -> None:
    graph = parse(TEXT, ops=resolve)
    twice = with_cond(graph, (the_cond(graph).graphs[0],) * 2)
    verify(twice, full=True)
    assert SHARD_UPDATE(twice) is twice
    assert SHARD_UPDATE(graph) is not graph


def test_a_branch_may_hold_many_nodes_in_a_row() -> None:
    graph = parse(TEXT, ops=resolve)
    first, second = the_cond(graph).graphs
    builder = Builder()
    value = first.nodes[0].results[0]
    half = Literal.of(0.5, Type("f32", ()))
    params = {"out_dtype": None}
    builder.nodes.extend(first.nodes)
    for _ in range(5000):
        (value,) = builder.add(
            resolve("jax.mul"), (value, half), params, at=graph.nodes[0].source, types=[value.type]
        )
    long = first.replace(nodes=tuple(builder.nodes), outputs=(value,))
    before = with_cond(graph, (long, second))
    after = SHARD_UPDATE(before)
    verify(after)
    assert after.variables[0].sharded_along == 0
    assert len(the_cond(after).graphs[0].nodes) == 5001
    assert SHARD_UPDATE(after) is after


@pytest.mark.parametrize(
    ("returned", "index", "expected"),
    [
        ((sharded(0), sharded(0)), MIRRORED, sharded(0)),
        ((sharded(0), MIRRORED), MIRRORED, sharded(0)),
        ((MIRRORED, MIRRORED), MIRRORED, MIRRORED),
        ((sharded(0), PER_REPLICA), MIRRORED, PER_REPLICA),
        ((sharded(0), sharded(1)), MIRRORED, PER_REPLICA),
        ((sharded(0), sharded(0)), PER_REPLICA, PER_REPLICA),
    ],
)
def test_a_cond_returns_slices_where_all_replicas_take_the_same_branch(
    returned: tuple[Layout, Layout], index: Layout, expected: Layout
) -> None:
    a, b = (Type("f32", (2, 2), layout) for layout in returned)
    graph = parse(
        f"""graph f on 2 replicas, stage spmd
(%i: i32[] {index}, %a: {a}, %b: {b}) {{
  %c = cond(%i, %a, %b) : f32[2,2] {expected}
    branch_0(%a0: {a}, %b0: {b}) {{
      return %a0
    }}
    branch_1(%a1: {a}, %b1: {b}) {{
      return %b1
    }}
  return %c
}}""",
        ops=resolve,
    )
    assert the_cond(graph).results[0].type.layout == expected
    verify(graph, full=True)


@pytest.mark.parametrize(
    ("reduces", "reduction", "is_shared_out"),
    [(True, "sum", True), (False, "sum", False), (False, "max", True), (False, "min", True)],
)
def test_rounded_as_written_extremes_are_shared_out_and_sums_are_not(
    reduces: bool, reduction: str, is_shared_out: bool
) -> None:
    graph = parse(
        f"""graph f on 2 replicas, stage spmd
  variable @m: f32[4] mirrored {{synchronization="on_write", aggregation="none", assigned=true}}
(%m: f32[4] mirrored = @m, %x: f32[4] per_replica) {{
  %g = all_reduce(%x) {{reducer="mean", group_size=2}} : f32[4] mirrored
  %n = jax.reduce_{reduction}(%g) {{axes=(0,), out_sharding=none}} : f32[] mirrored
  %new = jax.mul(%g, %n) {{out_dtype=none}} : f32[4] mirrored
  return %new -> @m
}}""",
        ops=resolve,
    )
    shared_out = PlaceConversions(UpdateSharding(reduces=reduces))(graph)
    assert (shared_out is not graph) == is_shared_out


SMALL_BESIDE_LARGE = """\
graph step on 2 replicas, stage spmd
  variable @v: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, \
assigned=true, sharded_along=0}
  variable @w: f32[8,4] mirrored {synchronization="on_write", aggregation="none", trainable=true, \
assigned=true, sharded_along=0}
(%v: f32[2] sharded(0) = @v, %w: f32[4,4] sharded(0) = @w) {
  %all_v = all_gather(%v) {axis=0, group_size=2} : f32[4] mirrored
  %all_w = all_gather(%w) {axis=0, group_size=2} : f32[8,4] mirrored
  %wide = jax.broadcast_in_dim(%all_v) {shape=(8, 4), broadcast_dimensions=(1,), sharding=none} \
: f32[8,4] mirrored
  %new = jax.mul(%all_w, %wide) : f32[8,4] mirrored
  %v_new = own_slice(%all_v) {axis=0, group_size=2} : f32[2] sharded(0)
  %w_new = own_slice(%new) {axis=0, group_size=2} : f32[4,4] sharded(0)
  return %v_new -> @v, %w_new -> @w
}"""


def test_a_large_value_decides_before_a_small_one_how_they_are_sharded() -> None:
    graph = parse(SMALL_BESIDE_LARGE, ops=resolve)
    seeds = [(node.results[0], 0) for node in graph.nodes[:2]]
    found = propagate_sharding(definitions(graph), [seeds], 2)
    all_v, all_w, wide, new = (node.results[0] for node in graph.nodes[:4])
    assert [found.get(value) for value in (all_v, all_w, wide, new)] == [0, 0, 0, 0]


def test_a_scalar_is_scanned_by_no_loop() -> None:
    graph = parse(
        """\
graph f on 2 replicas, stage spmd
(%s: f32[] mirrored, %xs: f32[3,4] mirrored) {
  %y, %z = scan(%s, %xs) {length=3, reverse=false, num_consts=0, num_carry=1} : f32[] mirrored, \
f32[3,4] mirrored
    body(%c: f32[] mirrored, %x: f32[4] mirrored) {
      return %c, %x
    }
  return %y, %z
}""",
        ops=resolve,
    )
    scalar, stack = graph.inputs
    assert not is_scanned(definitions(graph), scalar)
    assert is_scanned(definitions(graph), stack)
