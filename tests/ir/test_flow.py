"""Paths between values, through loops, branches and cells."""

from __future__ import annotations

from graphdist.ir.flow import computed_of, reachable, uses
from graphdist.ir.graph import Graph, Value
from graphdist.ir.parser import parse
from graphdist.tracing.jax_ops import resolve


def hints(graph: Graph, start: int) -> set[str]:
    found = reachable(uses(graph), [graph.inputs[start]])
    return {vertex.hint for vertex in found if isinstance(vertex, Value)} - {""}


def test_a_carry_leads_to_the_next_turn() -> None:
    graph = parse(
        """graph f on 1 replica, stage spmd
(%a: f32[] mirrored, %b: f32[] mirrored, %xs: f32[4] mirrored) {
  %c, %d = scan(%a, %b, %xs) {num_consts=0, num_carry=2, length=4, reverse=false, unroll=1} : f32[] mirrored, f32[] mirrored
    body(%inner_a: f32[] mirrored, %inner_b: f32[] mirrored, %x: f32[] mirrored) {
      %sum = jax.add(%inner_b, %x) : f32[] mirrored
      return %inner_b, %sum
    }
  return %c, %d
}""",  # noqa: E501 - the printed form is one line
        ops=resolve,
    )
    assert hints(graph, 1) == {"b", "inner_b", "inner_a", "sum", "c", "d"}
    assert hints(graph, 0) == {"a", "inner_a", "c"}
    backwards = reachable(computed_of(graph), [graph.nodes[0].results[0]])
    assert set(graph.inputs) <= backwards


def test_an_index_leads_to_results_and_assignments() -> None:
    graph = parse(
        """graph f on 1 replica, stage logical
  variable @w: f32[] mirrored {synchronization="on_write", aggregation="none", trainable=true}
(%i: i32[] mirrored, %x: f32[] mirrored, %y: f32[] mirrored) {
  %r = cond(%i, %x, %y) : f32[] mirrored
    one(%a: f32[] mirrored, %b: f32[] mirrored) {
      return %a
    }
    two(%c: f32[] mirrored, %d: f32[] mirrored) {
      assign(%d) {variable=@w}
      return %c
    }
  return %r
}""",
        ops=resolve,
    )
    assign = graph.nodes[0].graphs[1].nodes[0]
    assert assign in reachable(uses(graph), [graph.inputs[0]])
    assert assign in reachable(uses(graph), [graph.inputs[2]])
    assert assign not in reachable(uses(graph), [graph.inputs[1]])
    assert graph.nodes[0].results[0] not in reachable(uses(graph), [graph.inputs[2]])


def test_a_cell_leads_from_its_assignment_to_its_reads_and_a_variable_does_not() -> None:
    text = """graph f on 1 replica, stage logical
  variable @w: f32[] mirrored {synchronization="on_write", aggregation="none", trainable=true%s}
(%%x: f32[] mirrored) {
  assign(%%x) {variable=@w}
  %%r = read() {variable=@w} : f32[] mirrored
  return %%r
}"""
    for local, leads in ((", is_local=true", True), ("", False)):
        graph = parse(text % local, ops=resolve)
        (read,) = graph.nodes[1].results
        assert (read in reachable(uses(graph), [graph.inputs[0]])) == leads
