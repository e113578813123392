"""Variables in one buffer: the graph that takes it apart, against the graph of the variables."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphdist.ir.compare import first_difference
from graphdist.ir.parser import parse
from graphdist.ir.verifier import verify
from graphdist.passes.pack_variables import Pack, PackVariables
from graphdist.tracing.jax_ops import resolve
from tests.passes.execution import execute, same_bits

DECLARED = 'synchronization="on_write", aggregation="none", trainable=true'
BEFORE = f"""\
graph f on 2 replicas, stage spmd
  variable @a: f32[2] mirrored {{{DECLARED}, assigned=true}}
  variable @large: f32[9] mirrored {{{DECLARED}, assigned=true}}
  variable @b: f32[2,2] mirrored {{{DECLARED}}}
  variable @c: f32[] mirrored {{{DECLARED}, assigned=true}}
(%a: f32[2] mirrored = @a, %large: f32[9] mirrored = @large, %b: f32[2,2] mirrored = @b, \
%c: f32[] mirrored = @c, %x: f32[2] mirrored) {{
  %a2 = jax.add(%a, %x) : f32[2] mirrored
  %c2 = jax.mul(%c, 2.0:f32) {{out_dtype=none}} : f32[] mirrored
  return %a2 -> @a, %large -> @large, %c2 -> @c, %b
}}"""
AFTER = f"""\
graph f on 2 replicas, stage spmd
  variable @p: f32[10] mirrored {{{DECLARED}, assigned=true}}
  variable @large: f32[9] mirrored {{{DECLARED}, assigned=true}}
(%p: f32[10] mirrored = @p, %large: f32[9] mirrored = @large, %x: f32[2] mirrored) {{
  %0, %a, %1, %c = unpack(%p) {{shapes=((2, 2), (2,), (3,), ())}} : f32[2,2] mirrored, \
f32[2] mirrored, f32[3] mirrored, f32[] mirrored
  %a2 = jax.add(%a, %x) : f32[2] mirrored
  %c2 = jax.mul(%c, 2.0:f32) {{out_dtype=none}} : f32[] mirrored
  %2 = pack(%0, %a2, %1, %c2) : f32[10] mirrored
  return %2 -> @p, %large -> @large, %0
}}"""
PACK = Pack("p", "f32", ((2, 2), (2,), (3,), ()), {"a": 1, "b": 0, "c": 3})
"""With a piece of 3 that the program does not know."""


def graph_of(text: str) -> Any:
    graph = parse(text, ops=resolve)
    verify(graph, full=True)
    return graph


def test_the_step_takes_the_buffer_apart_and_joins_it_again() -> None:
    before = graph_of(BEFORE)
    after = PackVariables([PACK])(before)
    verify(after, full=True)
    assert first_difference(graph_of(AFTER), after) is None
    assert PackVariables([])(before) is before


def test_it_does_what_was_done_to_the_variables() -> None:
    before, numbers = graph_of(BEFORE), np.random.default_rng(0)
    state = {one.name: [numbers.random(one.type.shape, "f")] * 2 for one in before.variables}
    x: list[Any] = [[np.ones(2, "f")] * 2]
    expected = execute(before, x, state)
    unknown = np.full(3, 7, "f")
    held = {"a": state["a"], "b": state["b"], "c": state["c"]}
    pieces = [held["b"][0].ravel(), held["a"][0], unknown, held["c"][0].reshape(1)]
    packed = {"p": [np.concatenate(pieces)] * 2, "large": state["large"]}
    given = execute(PackVariables([PACK])(before), x, packed)
    assert same_bits(given.outputs[0], expected.outputs[0])
    buffer = given.state["p"][0]
    np.testing.assert_array_equal(buffer[:4].reshape(2, 2), expected.state["b"][0])
    np.testing.assert_array_equal(buffer[4:6], expected.state["a"][0])
    np.testing.assert_array_equal(buffer[6:9], unknown)
    np.testing.assert_array_equal(buffer[9], expected.state["c"][0])


def test_what_is_only_read_is_not_given_back() -> None:
    text = BEFORE.replace(", assigned=true", "").replace(
        "%a2 -> @a, %large -> @large, %c2 -> @c, %b", "%a2"
    )
    after = PackVariables([PACK])(graph_of(text))
    verify(after, full=True)
    assert [one.assigned for one in after.variables] == [False, False]
    assert "pack(" not in str(after).replace("unpack(", "")
