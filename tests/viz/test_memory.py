"""The bytes held over the schedule, against counts made by hand and the peak of the analyses."""

from __future__ import annotations

import re

import pytest

from graphdist.ir.graph import Graph
from graphdist.ir.live_memory import live_memory
from graphdist.ir.parser import parse
from graphdist.ir.types import Type
from graphdist.viz.document import program_document
from graphdist.viz.model import memory_timeline, model_of
from graphdist.viz.program import program_of
from tests.ir.real_programs import PROGRAMS
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
    names = ("%x", "%a", "%b", "%c")
    assert found.live == [(name, BYTES, position, "") for position, name in enumerate(names)]


def test_steps_are_the_records_of_the_nodes() -> None:
    model = model_of(parse(DIAMOND))
    names = [model.records[position].id for position, _ in memory_timeline(model).steps]
    assert names == ["%a", "%b", "%c", "%unused"]


@pytest.mark.parametrize(
    "graph", [chain(30), blocks(60), nested(3)], ids=["chain", "blocks", "nested"]
)
def test_the_peak_is_that_of_the_analyses(graph: Graph) -> None:
    assert memory_timeline(model_of(graph)).peak == live_memory(graph).peak


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_values_at_the_peak_add_up_to_it_those_in_loops_included(name: str) -> None:
    graph = PROGRAMS[name]().lower().graph
    model = model_of(graph)
    found = memory_timeline(model)
    assert sum(size for _, size, *_ in found.live) == found.peak
    for value, size, position, smaller in found.live:
        assert value in model.records[position].results
        if smaller:  # a value that is converted ahead of a loop, beside the value itself
            dtype, shape = re.findall(r"(\w+)\[([\d,]*)\]", smaller)[0]
            assert Type(dtype, tuple(map(int, shape.split(",")))).bytes == size
    document = program_document(program_of(graph))
    rows = document["graphs"][0]["memory"]["live"]
    assert sum(size for _, size, *_ in rows) == found.peak
    assert len(rows) <= 101
