"""What is computed from graphs, and their way to networkx."""

from __future__ import annotations

import io

import networkx as nx
from hypothesis import given

from graphdist.ir.analyses import (
    collectives,
    producers,
    users,
    walk,
)
from graphdist.ir.export import to_networkx
from graphdist.ir.graph import Graph
from graphdist.ir.ops import reducer_of
from graphdist.ir.parser import parse
from tests.ir.generators import graphs

NESTED = parse("""\
graph f on 2 replicas, stage spmd
(%x: f32[4] per_replica, %u: f32[100] mirrored) {
  %a = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %b = cond(0:i32, %a) : f32[4] mirrored
    left(%l: f32[4] mirrored) {
      %c = cond(1:i32, %l) : f32[4] mirrored
        inner(%i: f32[4] mirrored) {
          %d = all_reduce(%i) {reducer="max", group_size=2} : f32[4] mirrored
          return %d
        }
      return %c
    }
    right(%r: f32[4] mirrored) {
      %e = all_gather(%r) {axis=0, group_size=2} : f32[8] mirrored
      %s = jax.slice(%e) : f32[4] mirrored
      return %s
    }
  %g = jax.add(%b, %b) : f32[4] mirrored
  return %g, %b
}""")


def test_users_are_listed_once_each_in_order() -> None:
    x, u = NESTED.inputs
    reduce, cond, add = NESTED.nodes
    assert users(NESTED) == {
        x: (reduce,),
        u: (),
        reduce.results[0]: (cond,),
        cond.results[0]: (add,),
        add.results[0]: (),
    }


def test_producers_are_the_nodes_values_come_from() -> None:
    assert producers(NESTED) == {node.results[0]: node for node in NESTED.nodes}


def test_walk_goes_into_nested_graphs_in_order() -> None:
    assert [node.op.name for node in walk(NESTED)] == [
        "all_reduce", "cond", "cond", "all_reduce", "all_gather", "jax.slice", "jax.add",
    ]  # fmt: skip
    assert len(walk(NESTED)) == 7


def test_collectives_are_found_everywhere() -> None:
    found = [(node.op.name, reducer_of(node)) for node in collectives(NESTED)]
    assert found == [("all_reduce", "sum"), ("all_reduce", "max"), ("all_gather", "")]


def test_an_analysis_is_made_once_a_graph() -> None:
    graph = NESTED.replace()
    assert users(graph) is users(graph)
    assert users(graph) is not users(NESTED)
    assert walk(graph) is walk(graph)


def test_networkx_gets_nodes_edges_and_attributes() -> None:
    exported = NESTED.to_networkx()
    assert list(exported.nodes) == ["%x", "%u", "%a", "%b", "%g", "return"]
    assert list(exported.edges) == [
        ("%x", "%a"), ("%a", "%b"), ("%b", "%g"), ("%b", "return"), ("%g", "return"),
    ]  # fmt: skip
    assert exported.nodes["%a"] == {
        "op": "all_reduce",
        "types": "f32[4] mirrored",
        "bytes": 16,
        "source": "",
        "origin": "",
        "index": 0,
    }
    assert (exported.nodes["%u"]["op"], exported.nodes["%u"]["index"]) == ("input", -1)


def test_a_node_without_results_has_a_name() -> None:
    graph = parse("""\
graph f on 2 replicas, stage logical
  variable @w: f32[] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%x: f32[]) {
  assign(%x) {variable=@w}
  return
}""")
    assert list(to_networkx(graph).edges) == [("%x", "assign#0")]


@given(graphs())
def test_every_graph_is_exported_without_cycles(graph: Graph) -> None:
    exported = to_networkx(graph)
    assert nx.is_directed_acyclic_graph(exported)
    assert len(exported) == len(graph.inputs) + len(graph.nodes) + 1
    nx.write_gml(exported, io.BytesIO())  # which takes attributes of simple types only
