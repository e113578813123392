"""Control flow in the interpreter, against values computed by hand; replicas that disagree too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import ml_dtypes
import numpy as np
import pytest

from graphdist.ir import ops
from graphdist.ir.arrays import Held
from graphdist.ir.builder import Builder
from graphdist.ir.errors import DistributionError
from graphdist.ir.graph import Graph, GraphVariable, Literal, Operand, Stage, Value
from graphdist.ir.interpreter import interpret
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import PER_REPLICA, Type
from graphdist.runtime.bind_primitive import evaluate_jax_node
from graphdist.tracing.jax_ops import resolve

Body = Callable[[Builder, tuple[Value, ...]], Sequence[Operand]]
BF16 = np.dtype(ml_dtypes.bfloat16)
SCALAR = Type("i32", (), PER_REPLICA)
TRUTH = Type("bool", (), PER_REPLICA)


def graph_of(
    types: Sequence[Type],
    body: Body,
    *,
    num_replicas: int = 2,
    stage: Stage = Stage.SPMD,
    variables: tuple[GraphVariable, ...] = (),
) -> Graph:
    inputs = tuple(Value(type) for type in types)
    builder = Builder()
    outputs = tuple(body(builder, inputs))
    nodes = tuple(builder.nodes)
    return Graph("g", stage, num_replicas, inputs, nodes, outputs, variables)


def i32(*values: int) -> Held:
    return [np.asarray(value, np.int32) for value in values]


def f32(*values: object) -> Held:
    return [np.asarray(value, np.float32) for value in values]


def check(held: Held, *wanted: object) -> None:
    assert [array.tolist() for array in held] == list(wanted)


def jax_node(builder: Builder, name: str, type: Type, *operands: Operand) -> Value:
    (result,) = builder.add(resolve(f"jax.{name}"), operands, at=UNKNOWN, types=[type])
    return result


def test_random_keys_pass_through_loops_and_collectives() -> None:
    key_type = Type("key<fry>", (), PER_REPLICA)

    def body(builder: Builder, inputs: tuple[Value, ...]) -> Sequence[Operand]:
        inner = graph_of([SCALAR, key_type], lambda b, values: values)
        params = {"num_consts": 0, "num_carry": 1, "length": 3, "reverse": False}
        _, keys = builder.add(
            ops.SCAN, (Literal.of(0, SCALAR), inputs[0]), params, (inner,), at=UNKNOWN
        )
        return builder.add(ops.ALL_GATHER, (keys,), {"axis": 0, "group_size": 2}, at=UNKNOWN)

    graph = graph_of([key_type.shaped((3,))], body)
    keys = [jax.random.split(jax.random.key(seed), 3) for seed in range(2)]
    (held,) = interpret(graph, [keys], evaluate_jax_node).outputs  # type: ignore[list-item]
    both = jax.random.key_data(jax.numpy.concatenate(keys))
    assert np.array_equal(jax.random.key_data(held[0]), both)


def test_scan_forward_and_reversed() -> None:
    def body(builder: Builder, inputs: tuple[Value, ...]) -> Sequence[Operand]:
        const, carry, x = inputs
        total = jax_node(builder, "add", SCALAR, carry, x)
        return total, jax_node(builder, "mul", SCALAR, total, const)

    inner = graph_of([SCALAR] * 3, body)

    def run(reverse: bool) -> list[Held]:
        params = {"num_consts": 1, "num_carry": 1, "length": 3, "reverse": reverse}
        graph = graph_of(
            [SCALAR, SCALAR, SCALAR.shaped((3,))],
            lambda b, inputs: b.add(ops.SCAN, inputs, params, (inner,), at=UNKNOWN),
        )
        xs = [np.array([1, 2, 3], np.int32), np.array([4, 5, 6], np.int32)]
        return interpret(graph, [i32(10, 100), i32(0, 1), xs], evaluate_jax_node).outputs

    total, ys = run(reverse=False)
    check(total, 6, 16)
    check(ys, [10, 30, 60], [500, 1000, 1600])
    total, ys = run(reverse=True)
    check(total, 6, 16)
    check(ys, [60, 50, 30], [1600, 1200, 700])


def test_scan_of_no_steps() -> None:
    inner = graph_of([SCALAR], lambda b, inputs: [*inputs, Literal.of(1.0, Type("bf16", ()))])
    params = {"num_consts": 0, "num_carry": 1, "length": 0, "reverse": False}
    graph = graph_of(
        [SCALAR], lambda b, inputs: b.add(ops.SCAN, inputs, params, (inner,), at=UNKNOWN)
    )
    carry, ys = interpret(graph, [i32(1, 2)], evaluate_jax_node).outputs
    check(carry, 1, 2)
    assert (ys[0].shape, ys[0].dtype) == ((0,), BF16)


def countdown(body: Body) -> Graph:
    """Return a graph that loops while its first carry is positive; `body` makes the next."""
    condition = graph_of(
        [SCALAR, SCALAR],
        lambda b, inputs: [jax_node(b, "gt", TRUTH, inputs[0], Literal.of(0, SCALAR))],
        num_replicas=3,
    )
    inner = graph_of([SCALAR, SCALAR], body, num_replicas=3)
    return graph_of(
        [SCALAR, SCALAR],
        lambda b, inputs: b.add(
            ops.WHILE,
            inputs,
            {"num_cond_consts": 0, "num_body_consts": 0},
            (condition, inner),
            at=UNKNOWN,
        ),
        num_replicas=3,
    )


def test_while_with_replicas_that_stop_at_different_times() -> None:
    graph = countdown(
        lambda b, inputs: [
            jax_node(b, "sub", SCALAR, inputs[0], Literal.of(1, SCALAR)),
            jax_node(b, "add", SCALAR, *inputs),
        ]
    )
    count, total = interpret(graph, [i32(2, 0, 4), i32(0, 7, 0)], evaluate_jax_node).outputs
    check(count, 0, 0, 0)
    check(total, 3, 7, 10)


def test_while_takes_constants_of_condition_and_body() -> None:
    condition = graph_of([SCALAR] * 2, lambda b, i: [jax_node(b, "lt", TRUTH, i[1], i[0])])
    body = graph_of([SCALAR] * 2, lambda b, i: [jax_node(b, "add", SCALAR, i[1], i[0])])
    params = {"num_cond_consts": 1, "num_body_consts": 1}
    graph = graph_of(
        [SCALAR] * 3,
        lambda b, inputs: b.add(ops.WHILE, inputs, params, (condition, body), at=UNKNOWN),
    )
    arguments = [i32(10, 20), i32(4, 3), i32(0, 0)]
    check(interpret(graph, arguments, evaluate_jax_node).outputs[0], 12, 21)


def test_collective_in_a_loop_that_all_replicas_run() -> None:
    graph = countdown(
        lambda b, inputs: [
            jax_node(b, "sub", SCALAR, inputs[0], Literal.of(1, SCALAR)),
            *b.add(ops.ALL_REDUCE, inputs[1:], {"reducer": "sum", "group_size": 3}, at=UNKNOWN),
        ]
    )
    _, total = interpret(graph, [i32(2, 2, 2), i32(1, 2, 3)], evaluate_jax_node).outputs
    check(total, 18, 18, 18)
    with pytest.raises(DistributionError, match="needs all 3 replicas and is reached only by 0, 2"):
        interpret(graph, [i32(2, 0, 2), i32(1, 2, 3)], evaluate_jax_node)


def branching(*bodies: Body, variables: tuple[GraphVariable, ...] = ()) -> Graph:
    """Return a graph of 4 replicas that takes (index, x) and runs the branch of that index on x."""
    branches = tuple(
        graph_of([SCALAR], body, num_replicas=4, stage=Stage.LOGICAL) for body in bodies
    )
    return graph_of(
        [SCALAR, SCALAR],
        lambda b, inputs: b.add(ops.COND, inputs, {}, branches, at=UNKNOWN),
        num_replicas=4,
        stage=Stage.LOGICAL,
        variables=variables,
    )


def test_cond_with_replicas_that_disagree_and_index_out_of_range() -> None:
    graph = branching(
        lambda b, inputs: [jax_node(b, "neg", SCALAR, *inputs)],
        lambda b, inputs: inputs,
        lambda b, inputs: [Literal.of(0, SCALAR)],
    )
    (held,) = interpret(graph, [i32(1, -5, 0, 9), i32(1, 2, 3, 4)], evaluate_jax_node).outputs
    check(held, 1, -2, -3, 0)


def test_assign_in_a_branch_changes_the_replicas_that_took_it() -> None:
    v = GraphVariable("v", SCALAR, synchronization="on_read")

    def assigning(builder: Builder, inputs: tuple[Value, ...]) -> Sequence[Operand]:
        builder.add(ops.ASSIGN, inputs, {"variable": v}, at=UNKNOWN)
        return builder.add(ops.READ, (), {"variable": v}, at=UNKNOWN)

    graph = branching(lambda b, inputs: inputs, assigning)
    state = {"v": i32(0, 0, 0, 0)}
    arguments = [i32(1, 0, 1, 0), i32(1, 2, 3, 4)]
    outcome = interpret(graph, arguments, evaluate_jax_node, state)
    check(outcome.state["v"], 1, 0, 3, 0)
    check(outcome.outputs[0], 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("step", "expected"), [(0, [1, 2]), (1, [3, 4]), (9, [3, 4]), (-3, [1, 2])]
)
def test_take_step(step: int, expected: list[int]) -> None:
    types = [Type("f32", (2, 2), PER_REPLICA), SCALAR]
    graph = graph_of(types, lambda builder, inputs: builder.add(ops.TAKE_STEP, inputs, at=UNKNOWN))
    stacks = [np.asarray(rows, np.float32) for rows in ([[1, 2], [3, 4]], [[5, 6], [7, 8]])]
    held: list[Held] = [[*stacks], [np.asarray(step, np.int32), np.asarray(1, np.int32)]]
    (taken,) = interpret(graph, held, evaluate_jax_node).outputs
    assert [array.tolist() for array in taken] == [expected, [7, 8]]


def test_barrier() -> None:
    types = [Type("f32", (2,), PER_REPLICA), SCALAR]
    graph = graph_of(types, lambda builder, inputs: builder.add(ops.BARRIER, inputs, at=UNKNOWN))
    numbers = [np.asarray(3, np.int32), np.asarray(4, np.int32)]
    vectors = [np.asarray(row, np.float32) for row in ([1, 2], [5, 6])]
    held: list[Held] = [[*vectors], [*numbers]]
    outputs = interpret(graph, held, evaluate_jax_node).outputs
    assert [[array.tolist() for array in value] for value in outputs] == [[[1, 2], [5, 6]], [3, 4]]
