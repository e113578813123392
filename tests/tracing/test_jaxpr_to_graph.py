"""Jaxprs to graphs: the text of the graph, and its numbers by the reference interpreter."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from textwrap import dedent
from typing import Any  # Any: arrays and tracers

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import graphdist as gd
from graphdist.ir.ops import SCAN
from graphdist.runtime.emit import emit, lines_named
from graphdist.tracing.marks import IntegerMeans
from graphdist.tracing.trace_in_progress import TraceError
from tests.tracing.traces import Float32, count, graph_of, run


def body_of(graph: Any) -> str:
    """Return the nodes of a graph as text, without its header."""
    lines = str(graph).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("("))
    return dedent("\n".join(lines[start + 1 : -1]))


def test_calls_in_calls_are_inlined_and_one_called_twice_has_values_of_its_own() -> None:
    inner = jax.jit(lambda x: x * 2.0)
    outer = jax.jit(lambda x, y: inner(x) + inner(y))
    graph = graph_of(lambda x, y: outer(x, y), (2,), (2,))
    assert body_of(graph) == dedent(
        """\
        %0 = jax.mul(%x0, 2.0:f32) {out_dtype=none} : f32[2] per_replica
        %1 = jax.mul(%x1, 2.0:f32) {out_dtype=none} : f32[2] per_replica
        %2 = jax.add(%0, %1) : f32[2] per_replica
        return per_replica %2"""
    )
    outcome = run(graph, [[1, 2], [3, 4]], [[10, 20], [30, 40]])
    assert np.asarray(outcome.outputs).tolist() == [[[22, 44], [66, 88]]]


def test_an_argument_handed_back_by_a_call_is_the_argument() -> None:
    graph = graph_of(lambda x: jax.jit(lambda y: (y, 3.0))(x), ())
    assert body_of(graph) == "return per_replica %x0, per_replica 3.0:f32"


def test_a_scalar_the_function_closes_over_is_a_literal_an_array_a_constant() -> None:
    scalar, array = np.float32(0.1), np.arange(3, dtype=np.float32)
    graph = graph_of(lambda x: x * scalar + array, (3,))
    assert [node.op.name for node in graph.nodes] == ["constant", "jax.mul", "jax.add"]
    assert "0.1:f32" in body_of(graph)
    assert np.allclose(run(graph, [[1, 1, 1]] * 2).outputs, [0.1, 1.1, 2.1])


def test_a_read_after_an_assignment_is_another_value_than_the_one_before() -> None:
    v = Float32("v")

    def fn(x: Any) -> Any:
        before = v.read()
        v.assign(before + x)
        return v.read() - before

    graph = graph_of(fn, ())
    names = [node.op.name for node in graph.nodes]
    assert names == ["read", "jax.add", "aggregate", "assign", "read", "jax.sub"]
    outcome = run(graph, [5, 5], state={"v": [2, 2]})
    assert np.asarray(outcome.outputs).tolist() == [[5, 5]]
    assert np.asarray(outcome.state["v"]).tolist() == [7, 7]


def test_a_write_whose_old_value_nobody_uses_is_no_read() -> None:
    v = Float32("v")
    graph = graph_of(lambda x: (v.assign(x), x)[1], ())
    assert [node.op.name for node in graph.nodes] == ["aggregate", "assign"]


def test_two_variables_of_one_name_are_told_apart() -> None:
    first, second = Float32("v"), Float32("v", (2,))
    graph = graph_of(lambda: first.read() + second.read())
    assert [variable.name for variable in graph.variables] == ["v", "v_1"]
    outcome = run(graph, state={"v": [1, 1], "v_1": [[10, 20], [10, 20]]})
    assert np.asarray(outcome.outputs).tolist() == [[[11, 21], [11, 21]]]


def test_a_ref_of_the_program_is_a_local_variable_with_a_name_of_its_own() -> None:
    taken = Float32("cell_0")

    def fn(x: Any) -> Any:
        ref = jax.new_ref(x)
        ref[...] = ref[...] * 2.0
        jax.ref.addupdate(ref, (...,), jnp.full(2, taken.read()))
        return ref[...]

    graph = graph_of(fn, (2,))
    assert [(v.name, v.is_local) for v in graph.variables] == [("cell_0", False), ("cell_0_", True)]
    outcome = run(graph, [[1, 2], [3, 4]], state={"cell_0": [10, 10]})
    assert np.asarray(outcome.outputs).tolist() == [[[12, 14], [16, 18]]]
    assert set(outcome.state) == {"cell_0"}, "a local variable ends with the step"


def test_a_scan_that_assigns_takes_the_variable_by_name_and_not_as_an_operand() -> None:
    v = Float32("v")

    def fn(xs: Any) -> Any:
        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            v.assign(v.read() + x)
            return carry * x, v.read()

        return lax.scan(step, jnp.float32(1), xs)

    graph = graph_of(fn, (3,))
    (scan,) = [node for node in graph.nodes if node.op.name == "scan"]
    assert SCAN.of(scan).num_consts == 0
    assert len(scan.operands) == 2
    product, seen = run(graph, [[1, 2, 3], [4, 5, 6]], state={"v": [0, 100]}).outputs
    assert np.asarray(product).tolist() == [6, 120]
    assert np.asarray(seen).tolist() == [[1, 3, 6], [104, 109, 115]]


def test_a_while_loop_whose_condition_reads_what_its_body_assigns() -> None:
    v = Float32("v")

    def fn(x: Any) -> Any:
        def body(i: Any) -> Any:
            v.assign(v.read() * 2.0)
            return i + 1.0

        return lax.while_loop(lambda i: v.read() < 10.0, body, x)

    outcome = run(graph_of(fn, ()), [0, 0], state={"v": [1, 3]})
    assert np.asarray(outcome.outputs).tolist() == [[4, 2]]
    assert np.asarray(outcome.state["v"]).tolist() == [16, 12]


def test_a_while_loop_under_vmap_stops_each_example_at_its_own_turn() -> None:
    def doubled_to_ten(y: Any) -> Any:
        return lax.while_loop(lambda z: z < 10.0, lambda z: z * 2.0, y)

    fn = jax.vmap(doubled_to_ten)

    outcome = run(graph_of(fn, (3,)), [[1, 11, 9], [3, 10, 5]])
    assert np.asarray(outcome.outputs).tolist() == [[[16, 11, 18], [12, 10, 10]]]


def test_branches_assign_in_the_replicas_that_take_them() -> None:
    v = Float32("v")

    def fn(x: Any) -> Any:
        def positive() -> Any:
            v.assign(x)
            return x

        return lax.cond(x > 0, positive, lambda: v.read())

    outcome = run(graph_of(fn, ()), [5, -1], state={"v": [1, 2]})
    assert np.asarray(outcome.outputs).tolist() == [[5, 2]]
    assert np.asarray(outcome.state["v"]).tolist() == [5, 2]


def test_the_replay_of_a_checkpoint_stays_behind_a_barrier() -> None:
    fn = jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))))
    graph = graph_of(fn, ())
    assert count(graph, "jax.optimization_barrier") == 1
    x = np.float32(0.5)
    assert np.allclose(run(graph, [x, x]).outputs, np.cos(np.sin(x)) * np.cos(x))


def test_a_checkpoint_may_read_a_variable_that_is_assigned_before_it() -> None:
    v = Float32("v")

    def fn(x: Any) -> Any:
        v.assign(v.read() + 1.0)
        return jax.grad(jax.checkpoint(lambda y: jnp.sin(v.read() * y)))(x)

    outcome = run(graph_of(fn, ()), [0.5, 0.5], state={"v": [1, 1]})
    assert np.allclose(outcome.outputs, 2 * np.cos(1.0))


def test_a_variable_may_be_assigned_after_a_checkpoint() -> None:
    v = Float32("v")

    def fn(x: Any) -> Any:
        v.assign(jax.checkpoint(jnp.sin)(x))
        return x

    assert np.allclose(run(graph_of(fn, ()), [1, 1], state={"v": [0, 0]}).state["v"], np.sin(1))


def assigned_between_the_reads(x: Any) -> Any:
    v = Float32("v")

    def loss(y: Any) -> Any:
        inside = jax.checkpoint(lambda z: jnp.sin(v.read() * z))(y)
        v.assign(jnp.float32(2))
        return inside

    return jax.grad(loss)(x)


def assigned_in_each_turn_of_a_loop(x: Any) -> Any:
    v = Float32("v")

    def loss(y: Any) -> Any:
        def step(carry: Any, _: Any) -> tuple[Any, None]:
            v.assign(carry)
            return jax.checkpoint(lambda z: jnp.sin(v.read() * z))(carry), None

        return lax.scan(step, y, None, length=2)[0]

    return jax.grad(loss)(x)


def assigned_in_a_checkpoint(x: Any) -> Any:
    v = Float32("v")
    return jax.checkpoint(lambda y: (v.assign(y), y)[1])(x)


def assigned_in_a_condition(x: Any) -> Any:
    v = Float32("v")
    return lax.while_loop(lambda y: (v.assign(y), y < 3.0)[1], lambda y: y + 1.0, x)


def read_in_part(x: Any) -> Any:
    ref = jax.new_ref(jnp.stack([x, x]))
    return ref[0]


def leaked_from_a_trace(x: Any) -> Any:
    kept: dict[str, Any] = {}
    jax.make_jaxpr(lambda y: kept.setdefault("tracer", y))(x)
    return jax.jit(lambda z: z + kept["tracer"])(x)


def over_groups(x: Any) -> Any:
    return lax.psum(x, "replica", axis_index_groups=[[0], [1]])


def in_a_linear_solve(x: Any) -> Any:
    matvec = lambda y: lax.psum(y, "replica")  # noqa: E731
    return lax.custom_linear_solve(matvec, x, lambda _, b: b, symmetric=True)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (assigned_between_the_reads, "'v' is read inside jax.checkpoint and assigned before"),
        (assigned_in_each_turn_of_a_loop, "'v' is read inside jax.checkpoint and assigned"),
        (assigned_in_a_checkpoint, "'v' is assigned inside jax.checkpoint"),
        (assigned_in_a_condition, "'v' is assigned in the condition of jax.lax.while_loop"),
        (read_in_part, "a ref of shape \\[2\\] is read or written in part"),
        (leaked_from_a_trace, "computed while another function was traced"),
        (in_a_linear_solve, "psum inside custom_linear_solve"),
        (over_groups, "axis_index_groups=\\[\\[0\\], \\[1\\]\\]"),
    ],
)
def test_what_cannot_mean_the_same_as_a_graph_is_refused_at_its_line(
    fn: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(TraceError, match=message) as raised:
        graph_of(fn, ())
    source = raised.value.source
    assert source is not None
    lines, first = inspect.getsourcelines(fn)
    function = range(first, first + len(lines))
    assert any(f.file == __file__ and f.line in function for f in source.frames)


def test_collectives_by_the_name_of_the_replicas_are_ours() -> None:
    def fn(x: Any) -> Any:
        own = lax.axis_index("replica").astype(jnp.float32)
        return lax.psum(x * own, "replica"), lax.all_gather(x, "replica"), lax.pmax(x, "replica")

    graph = graph_of(fn, (2,))
    ours = {"replica_id", "all_reduce", "all_gather"}
    assert {node.op.name for node in graph.nodes if not node.op.name.startswith("jax.")} == ours
    outcome = run(graph, [[1, 2], [3, 5]])
    both = [[[3, 5]] * 2, [[[1, 2], [3, 5]]] * 2, [[3, 5]] * 2]
    assert [np.asarray(held).tolist() for held in outcome.outputs] == both


def test_over_one_replica_there_is_no_collective() -> None:
    fn = lambda x: (lax.psum(x, "replica"), lax.all_gather(x, "replica"))  # noqa: E731
    graph = graph_of(fn, (2,), num_replicas=1)
    assert [node.op.name for node in graph.nodes] == ["jax.broadcast_in_dim"]


def test_a_collective_in_a_loop_is_in_the_graph_of_the_loop() -> None:
    def fn(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, y: lax.psum(y, "replica"), x)

    graph = graph_of(fn, ())
    assert count(graph, "all_reduce") == 1
    assert not any(node.op.name == "all_reduce" for node in graph.nodes)
    assert np.asarray(run(graph, [1, 2]).outputs).tolist() == [[12, 12]]


def test_the_mark_of_an_integer_mean_leaves_no_node_and_is_noted_where_it_stands() -> None:
    means = IntegerMeans()

    def fn(x: Any) -> Any:
        return means.marked(x.astype(jnp.int32) + 1, means.next_id())

    graph = graph_of(fn, (), means=means)
    assert [node.op.name for node in graph.nodes] == ["jax.convert_element_type", "jax.add"]
    assert means.operands == {(0,): [graph.outputs[0]]}


def test_a_module_tells_the_forward_the_backward_and_the_recomputed_part() -> None:
    def layer(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ weights)

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.checkpoint(layer)(weights, x))

    arguments = jnp.eye(3), jnp.ones((2, 3))
    graph = gd.function(lambda *given: jax.value_and_grad(loss)(*given)).trace(*arguments).graph
    with lines_named(True):
        lowered = jax.jit(lambda *given: emit(graph, given)).lower(*arguments)
    text = lowered.as_text(debug_info=True)
    for part, line in (("forward", "tanh"), ("recomputed", "tanh"), ("backward", "mul")):
        assert re.search(rf'{part}\(test_jaxpr_to_graph.py:\d+\)/[^"]*\b{line}"', text), part
