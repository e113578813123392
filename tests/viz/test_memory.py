"""The bytes held over the schedule, against counts made by hand and the peak of the analyses."""

from __future__ import annotations

import pytest

from graphdist.ir.graph import Graph
from graphdist.ir.live_memory import live_memory
from graphdist.ir.parser import parse
from graphdist.viz.model import memory_timeline, model_of
from tests.viz.graphs import blocks, chain, nested

BYTES = 4 * 100
DIAMOND = """graph f on 1 replica, stage spmd
(%x: f32[100] mirrored) {
  %a = jax.sort(%x) : f32[100] mirrored
  %b = jax.cumsum(%x) : f32[100] mirrored
  %c = jax.sort(%a, %b) : f32[100] mirrored
  %unused = jax.sort(%c) : f32[100] mirrored
  return %c
}"""


def test_a_value_is_held_from_its_node_to_its_last_use() -> None:
    graph = parse(DIAMOND)
    held = [bytes_held // BYTES for _, bytes_held in memory_timeline(model_of(graph)).steps]
    assert held == [2, 3, 4, 3]  # x a, x a b, x a b c, x c and what nobody uses


def test_the_peak_is_the_first_and_names_what_is_live() -> None:
    found = memory_timeline(model_of(parse(DIAMOND)))
    assert (found.peak, found.peak_step) == (4 * BYTES, 2)
    assert found.live == [("%x", BYTES), ("%a", BYTES), ("%b", BYTES), ("%c", BYTES)]


def test_steps_are_the_records_of_the_nodes() -> None:
    model = model_of(parse(DIAMOND))
    names = [model.records[position].id for position, _ in memory_timeline(model).steps]
    assert names == ["%a", "%b", "%c", "%unused"]


@pytest.mark.parametrize(
    "graph", [chain(30), blocks(60), nested(3)], ids=["chain", "blocks", "nested"]
)
def test_the_peak_is_that_of_the_analyses(graph: Graph) -> None:
    assert memory_timeline(model_of(graph)).peak == live_memory(graph).peak
