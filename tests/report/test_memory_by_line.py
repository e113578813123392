"""The parts of the memory held at each moment, by line, add up to what the analyses count."""

from __future__ import annotations

import pytest

from graphdist.ir.analyses import walk
from graphdist.ir.live_memory import live_memory
from graphdist.ir.parser import parse
from graphdist.report.memory_by_line import (
    ARGUMENTS,
    MOST_LINES,
    OTHERS,
    held_by_graph,
    held_by_module,
)
from graphdist.report.step_memory import UNSEEN
from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.module.line_labels import Labels
from graphdist.runtime.module.memory import ModuleMemory
from tests.ir.real_programs import PROGRAMS

MODULE = """%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %v = f32[8]{0} get-tuple-element(%s), index=1
  %wide = f32[64]{0} broadcast(%v), metadata={op_name="jit(f)/forward(train.py:7)/tanh"}
  %r = f32[8]{0} reduce(%wide)
  ROOT %t = (s32[], f32[8]{0}) tuple(%n, %r)
}

%until (s: (s32[], f32[8])) -> pred[] {
  %s = (s32[], f32[8]{0}) parameter(0)
  ROOT %p = pred[] constant(true)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %c = f32[8]{0} copy(%x), metadata={op_name="jit(f)/forward(train.py:5)/copy"}
  %t = (s32[], f32[8]{0}) tuple(%zero, %c)
  %w = (s32[], f32[8]{0}) while(%t), condition=%until, body=%body
  ROOT %y = f32[8]{0} get-tuple-element(%w), index=1
}
"""


def test_a_graph_that_returns_its_inputs_holds_nothing_at_nodes() -> None:
    text = "graph f on 1 replica, stage spmd\n(%x: f32[4] mirrored) {\n  return %x\n}"
    assert held_by_graph(parse(text)) == {}


def test_a_loop_of_a_module_holds_its_body_beside_its_state() -> None:
    module = CompiledModule(MODULE)
    memory = ModuleMemory(module)
    held = held_by_module(module, memory, Labels(module), unseen=1000)
    parts = {instruction.name: sizes for instruction, sizes in held.items()}
    assert parts["wide"]["train.py:7"] == 4 * 64
    assert parts["wide"]["train.py:5"] == parts["wide"][ARGUMENTS] == 4 * 8
    assert parts["w"] == parts["wide"]  # the loop has the peak of its body
    assert "train.py:7" not in parts["c"]
    for instruction, total in zip(memory.entry.instructions, memory.entry.bytes, strict=True):
        assert sum(held[instruction].values()) == total + 1000
        assert held[instruction][UNSEEN] == 1000


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_parts_add_up_to_what_is_held(name: str) -> None:
    graph = PROGRAMS[name]().lower().graph
    memory, held = live_memory(graph), held_by_graph(graph)
    assert set(graph.nodes) <= set(held) <= set(walk(graph))
    for node, total in zip(graph.nodes, memory.during, strict=True):
        assert sum(held[node].values()) == total
        assert len(held[node]) <= MOST_LINES + 1
    if memory.position >= 0:
        assert max(sum(parts.values()) for parts in held.values()) == memory.peak


def test_lines_are_named() -> None:
    held = held_by_graph(PROGRAMS["train_digits"]().lower().graph)
    lines = {line for parts in held.values() for line in parts}
    assert {ARGUMENTS, OTHERS} <= lines
    assert len([line for line in lines if line.startswith("train_digits.py:")]) >= 3
