"""The memory of a step on its graph, against counts by hand and a plain count of live values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir.graph import Graph, Value
from graphdist.ir.live_memory import live_memory
from graphdist.ir.opaque_placeholders import PLACEHOLDERS
from graphdist.ir.parser import parse
from tests.ir.generators import graphs
from tests.properties.replicated_programs import Distributed, distributed_programs
from tests.properties.test_replicated import Case

ONE = 4 * 100


def held(body: str, inputs: str = "%x: f32[100] mirrored", variables: str = "") -> list[int]:
    """Return the bytes during each node of a graph, in values of 100 numbers."""
    header = f"graph f on 1 replica, stage spmd\n{variables}({inputs}) {{\n"
    during = live_memory(parse(f"{header}{body}\n}}")).during
    return [count // ONE for count in during]


def test_a_value_is_in_memory_from_its_node_to_its_last_reader() -> None:
    assert held("""\
  %a = jax.sort(%x) : f32[100] mirrored
  %b = jax.sort(%a) : f32[100] mirrored
  %c = jax.sort(%b) : f32[100] mirrored
  return %c""") == [2, 3, 3]


def test_fused_values_take_no_memory_until_one_is_returned() -> None:
    assert held("""\
  %a = jax.exp(%x) : f32[100] mirrored
  %b = jax.neg(%a) : f32[100] mirrored
  %c = jax.add(%a, %b) : f32[100] mirrored
  %unused = jax.sin(%c) : f32[100] mirrored
  return %c""") == [1, 1, 1, 2]


def test_a_sum_that_frees_its_terms_is_kept_in_the_place_of_one() -> None:
    assert held("""\
  %a = jax.sort(%x) : f32[100] mirrored
  %b = jax.sort(%x) : f32[100] mirrored
  %c = jax.add(%a, %b) : f32[100] mirrored
  %d = jax.sort(%c) : f32[100] mirrored
  %e = jax.sort(%c) : f32[100] mirrored
  return %d, %e""") == [2, 3, 3, 3, 4]


def test_what_a_barrier_reads_is_in_memory_from_where_it_is_computed() -> None:
    """So are the residuals of `jax.checkpoint` whose layers are written out."""
    assert held("""\
  %a = jax.exp(%x) : f32[100] mirrored
  %b = jax.sort(%x) : f32[100] mirrored
  %c = jax.sort(%b) : f32[100] mirrored
  %d, %e = jax.optimization_barrier(%a, %c) : f32[100] mirrored, f32[100] mirrored
  return %d, %e""") == [2, 3, 4, 3]


VARIABLE = """\
  variable @v: f32[100] mirrored {synchronization="on_write", aggregation="none", trainable=true, \
assigned=true}
"""


def test_the_new_value_of_a_variable_is_written_in_its_place() -> None:
    body = """\
  %a = jax.add(%v, 1.0:f32) : f32[100] mirrored
  return %a -> @v"""
    assert held(body, "%v: f32[100] mirrored = @v", VARIABLE) == [1]
    later = body.replace("  return", "  %b = jax.sort(%v) : f32[100] mirrored\n  return") + ", %b"
    assert held(later, "%v: f32[100] mirrored = @v", VARIABLE) == [1, 2]


def test_an_update_is_in_place_if_nobody_reads_the_operand_later() -> None:
    body = """\
  %a = jax.sort(%x) : f32[100] mirrored
  %b = jax.dynamic_update_slice(%a, 1.0:f32, 0:i32) : f32[100] mirrored
  %c = jax.sort(%b) : f32[100] mirrored
  return %c"""
    assert held(body) == [2, 2, 3]
    assert held(body.replace("return %c", "return %c, %a")) == [2, 3, 4]


def test_a_stack_is_one_buffer_and_the_hosts_stack_none() -> None:
    def saved(kind: str) -> Graph:
        def step(x: jax.Array) -> jax.Array:
            def body(c: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
                c = jnp.sort(c)
                return c, jax.device_put(c, jax.memory.Space.Host) if kind == "host" else c

            return jax.lax.scan(body, x, None, length=8)[1]

        function = gd.function(lambda x: gd.get_strategy().run(step, args=(x,)))
        return function.trace(jax.ShapeDtypeStruct((100,), jnp.float32)).lower().graph

    device, host = live_memory(saved("device")), live_memory(saved("host"))
    assert device.host_peak == 0
    assert host.host_peak == 8 * ONE
    assert device.peak - host.peak == 8 * ONE


@pytest.mark.parametrize(
    ("read", "slices"),
    [
        ("jax.dot_general(%w, %c) {dimension_numbers=(((1,), (0,)), ((), ()))}", 0),
        ("jax.mul(%w, %c)", 0),
        ("jax.sort(%w)", 1),
    ],
)
def test_products_read_the_slices_of_a_stack_where_they_are(read: str, slices: int) -> None:
    type, loop = (
        "f32[64,64] mirrored",
        "length=8, reverse=false, unroll=1, num_consts=0, num_carry=1",
    )
    graph = parse(f"""graph f on 1 replica, stage spmd
    (%x: {type}, %ws: f32[8,64,64] mirrored) {{
      %a = scan(%x, %ws) {{{loop}}} : {type}
        body(%c: {type}, %w: {type}) {{
          %y = {read} : {type}
          %z = jax.sort(%y) : {type}
          return %z
        }}
      return %a
    }}""")
    one = 64 * 64 * 4
    without = parse(str(graph).replace("(%w", "(%c"))
    assert live_memory(graph).peak - live_memory(without).peak == slices * one


@st.composite
def sorted_values(draw: st.DrawFn) -> Graph:
    """Draw a graph without fused values, updates, loops and variables."""
    names, lines = ["x", "y"], []
    sizes = draw(st.lists(st.integers(1, 50), min_size=1, max_size=12))
    for number, size in enumerate(sizes):
        operands = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        used = ", ".join(f"%{name}" for name in operands)
        lines.append(f"  %v{number} = jax.sort({used}) : f32[{size}] mirrored")
        names.append(f"v{number}")
    outputs = draw(st.lists(st.sampled_from(names[2:]), min_size=1, unique=True))
    returned = ", ".join(f"%{name}" for name in outputs)
    head = "graph f on 1 replica, stage spmd\n(%x: f32[7] mirrored, %y: f32[9] mirrored) {"
    return parse("\n".join([head, *lines, f"  return {returned}", "}"]))


@given(sorted_values())
def test_without_rules_the_count_is_that_of_live_values(graph: Graph) -> None:
    end = len(graph.nodes)
    last = {result: at for at, node in enumerate(graph.nodes) for result in node.results}
    first = dict(last)
    for at, node in enumerate(graph.nodes):
        last.update((each, at) for each in node.operands if each in last)
    last.update((each, end) for each in graph.outputs if isinstance(each, Value))
    inputs = sum(value.type.bytes for value in graph.inputs)
    expected = tuple(
        inputs + sum(value.type.bytes for value in first if first[value] <= at <= last[value])
        for at in range(end)
    )
    found = live_memory(graph)
    assert found.during == expected
    assert found.peak == max(expected) == sum(size for _, size in found.alive)
    assert expected[found.position] == found.peak


def least(graph: Graph) -> int:
    """Return the bytes of a graph's inputs and of the outputs that are no variables."""
    assigned = len(graph.assigned) if graph.is_placed else 0
    outputs = (each for each in graph.outputs[assigned:] if isinstance(each, Value))
    return sum(value.type.bytes for value in (*graph.inputs, *outputs))


@given(graphs())
def test_the_count_is_at_least_inputs_and_outputs(graph: Graph) -> None:
    found = live_memory(graph)
    assert found.peak >= least(graph)
    assert len(found.during) == len(graph.nodes)


@pytest.mark.long
@given(distributed_programs(), st.integers(2, 4), st.integers(0, 2**16))
def test_programs_need_at_least_variables_and_outputs(
    program: Distributed, num_replicas: int, seed: int
) -> None:
    graph = Case(program, num_replicas, seed).traced.lower().graph
    found = live_memory(graph)
    assert found.peak >= least(graph)
    assert found.peak >= max(found.during, default=0)


@pytest.mark.parametrize(
    ("numbers", "is_padded"),
    [
        ("(0, 1, 2, 3) (0, 1, 2, 3) (0, 1, 2, 3)", True),
        ("(0, 9, 2, 3) (0, 1, 2, 3) (0, 1, 2, 3)", False),
        ("", False),
    ],
)
def test_a_convolution_is_padded_as_far_as_the_text_says(numbers: str, is_padded: bool) -> None:
    label = f"<0: ConvDimensionNumbers {numbers}".strip() + ">"
    graph = parse(
        f"""graph f on 1 replica, stage spmd
(%x: f32[100,3,4,4] mirrored, %w: f32[3,3,1,1] mirrored) {{
  %a = jax.sort(%x) : f32[100,3,4,4] mirrored
  %y = jax.conv_general_dilated(%a, %w) {{dimension_numbers={label}}} : f32[100,3,4,4] mirrored
  %z = jax.sort(%y) : f32[100,3,4,4] mirrored
  return %z
}}""",
        PLACEHOLDERS,
    )
    images, kernel = (value.type.bytes for value in graph.inputs)
    assert (live_memory(graph).peak > 3 * images + kernel) == is_padded
