"""The interpreter against values computed by hand: the oracle itself is checked here alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import pytest

from graphdist.ir import ops
from graphdist.ir.arrays import Array, Held
from graphdist.ir.builder import Builder
from graphdist.ir.errors import GraphdistError, TypeRuleError, VerifyError
from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Op, Operand, Stage, Value
from graphdist.ir.interpreter import Outcome, interpret
from graphdist.ir.source import UNKNOWN, at_line
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type, dtype_name
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


def type_of(array: Array) -> Type:
    return Type(dtype_name(array.dtype), array.shape, PER_REPLICA)


def apply(op: Op, *arguments: Held, **params: object) -> list[Held]:
    """Run a graph of one node on what the replicas hold of its operands."""
    graph = graph_of(
        [type_of(held[0]) for held in arguments],
        lambda builder, inputs: builder.add(op, inputs, params, at=UNKNOWN),
        num_replicas=len(arguments[0]),
    )
    return interpret(graph, arguments, evaluate_jax_node).outputs


def i32(*values: int) -> Held:
    return [np.asarray(value, np.int32) for value in values]


def f32(*values: object) -> Held:
    return [np.asarray(value, np.float32) for value in values]


def check(held: Held, *wanted: object) -> None:
    assert [array.tolist() for array in held] == list(wanted)


def jax_node(builder: Builder, name: str, type: Type, *operands: Operand) -> Value:
    (result,) = builder.add(resolve(f"jax.{name}"), operands, at=UNKNOWN, types=[type])
    return result


# Collectives.


@pytest.mark.parametrize("op", [ops.REDUCE, ops.ALL_REDUCE])
@pytest.mark.parametrize(
    ("reducer", "wanted"),
    [("sum", [6, 9]), ("mean", [2, 3]), ("max", [3, 6]), ("min", [1, 1])],
)
def test_reduction(op: Op, reducer: str, wanted: list[float]) -> None:
    (held,) = apply(op, f32([1, 2], [2, 6], [3, 1]), reducer=reducer, group_size=3)
    check(held, wanted, wanted, wanted)


def test_sum_of_integers_wraps_around() -> None:
    held: Held = [np.array([100], np.int8), np.array([100], np.int8)]
    check(apply(ops.ALL_REDUCE, held, reducer="sum", group_size=2)[0], [-56], [-56])


def test_sum_of_small_floats_is_rounded_once() -> None:
    # In bf16 itself 256 + 1 is 256, each time; the exact sum is 260.
    held = [np.array([value], BF16) for value in (256, 1, 1, 1, 1)]
    (result,) = apply(ops.ALL_REDUCE, held, reducer="sum", group_size=5)
    assert result[0].dtype == BF16
    assert result[0].tolist() == [260]


def test_max_hands_nan_on() -> None:
    (held,) = apply(ops.ALL_REDUCE, f32([1], [np.nan]), reducer="max", group_size=2)
    assert np.isnan(held[0][0])


@pytest.mark.parametrize("op", [ops.GATHER, ops.ALL_GATHER])
def test_gathering_joins_in_order_along_the_axis(op: Op) -> None:
    operand = f32([[1], [2]], [[3], [4]])
    check(apply(op, operand, axis=1, group_size=2)[0], *[[[1, 3], [2, 4]]] * 2)
    check(apply(op, operand, axis=0, group_size=2)[0], *[[[1], [2], [3], [4]]] * 2)


def test_reduce_scatter_leaves_each_replica_its_slice() -> None:
    operand = f32([[1, 2], [3, 4]], [[10, 20], [30, 40]])
    (held,) = apply(ops.REDUCE_SCATTER, operand, axis=1, reducer="sum", group_size=2)
    check(held, [[11], [33]], [[22], [44]])
    (held,) = apply(ops.REDUCE_SCATTER, operand, axis=0, reducer="mean", group_size=2)
    check(held, [[5.5, 11]], [[16.5, 22]])


def test_permutation_hands_on_and_leaves_zeros() -> None:
    (held,) = apply(
        ops.COLLECTIVE_PERMUTE, f32([1], [2], [3]), pairs=((0, 2), (2, 1)), group_size=3
    )
    check(held, [0], [3], [1])
    (held,) = apply(ops.COLLECTIVE_PERMUTE, f32([1], [2]), pairs=(), group_size=2)
    check(held, [0], [0])


def test_all_to_all_exchanges_slices() -> None:
    operand = f32([[1, 2], [3, 4]], [[10, 20], [30, 40]])
    axes = {"split_axis": 0, "concat_axis": 1}
    (held,) = apply(ops.ALL_TO_ALL, operand, **axes, group_size=2)
    check(held, [[1, 2, 10, 20]], [[3, 4, 30, 40]])
    (held,) = apply(ops.ALL_TO_ALL, operand, split_axis=1, concat_axis=1, group_size=2)
    check(held, [[1, 10], [3, 30]], [[2, 20], [4, 40]])


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (((0, 2),), "replica 2 as a target, of 2 replicas"),
        (((-1, 0),), "replica -1 as a source, of 2 replicas"),
        (((0, 1), (0, 0)), r"one replica as a source twice: \[\(0, 1\), \(0, 0\)\]"),
        (((0, 1), (1, 1)), "one replica as a target twice"),
    ],
)
def test_pairs_that_are_no_permutation_are_refused(pairs: object, message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        apply(ops.COLLECTIVE_PERMUTE, f32([1], [2]), pairs=pairs, group_size=2)


def test_all_to_all_of_what_does_not_divide_is_refused() -> None:
    with pytest.raises(TypeRuleError, match="along dimension 0 over 2 replicas"):
        apply(ops.ALL_TO_ALL, f32([1], [2]), split_axis=0, concat_axis=0, group_size=2)
    with pytest.raises(TypeRuleError, match="along dimension 1"):
        apply(ops.ALL_TO_ALL, f32([1, 2], [2, 3]), split_axis=0, concat_axis=1, group_size=2)


def test_collective_over_another_number_of_replicas_is_refused() -> None:
    with pytest.raises(VerifyError, match="over 4 replicas in a graph of 2"):
        apply(ops.ALL_REDUCE, f32(1, 2), reducer="sum", group_size=4)


# Local operations.


def test_replica_id() -> None:
    graph = graph_of(
        [],
        lambda builder, inputs: builder.add(ops.REPLICA_ID, (), {"group_size": 3}, at=UNKNOWN),
        num_replicas=3,
    )
    (held,) = interpret(graph, [], evaluate_jax_node).outputs
    check(held, 0, 1, 2)
    assert held[0].dtype == np.int32


def test_to_replicas_is_the_value() -> None:
    check(apply(ops.TO_REPLICAS, f32(1, 2), group_size=2)[0], 1, 2)


def test_select_replica() -> None:
    check(apply(ops.SELECT_REPLICA, f32([1], [2]), replica=1, group_size=2)[0], [0], [2])
    held = [np.array([True]), np.array([True])]
    check(apply(ops.SELECT_REPLICA, held, replica=0, group_size=2)[0], [True], [False])


def test_scale_computes_in_the_dtype_of_its_operand() -> None:
    check(apply(ops.SCALE, f32([3, 5]), factor=0.5)[0], [1.5, 2.5])
    (held,) = apply(ops.SCALE, [np.array([3], BF16)], factor=1 / 3)
    assert held[0].dtype == BF16
    assert held[0].tolist() == [(np.array(3, BF16) * np.array(1 / 3, BF16)).item()]
    check(apply(ops.SCALE, i32(7), factor=2)[0], 14)


def test_pack_and_unpack() -> None:
    (packed,) = apply(ops.PACK, f32([[1, 2]], [[5, 6]]), f32(3, 7))
    check(packed, [1, 2, 3], [5, 6, 7])
    matrix, scalar, nothing = apply(ops.UNPACK, packed, shapes=((1, 2), (), (0,)))
    check(matrix, [[1, 2]], [[5, 6]])
    check(scalar, 3, 7)
    check(nothing, [], [])


def test_concatenate_and_reshape() -> None:
    operand = f32([[1, 2]])
    check(apply(ops.CONCATENATE, operand, f32([[3, 4]]), axis=0)[0], [[1, 2], [3, 4]])
    check(apply(ops.CONCATENATE, operand, f32([[3, 4]]), axis=1)[0], [[1, 2, 3, 4]])
    check(apply(ops.RESHAPE, operand, shape=(2, 1))[0], [[1], [2]])


def test_constant_literal_and_passed_on_input() -> None:
    def body(builder: Builder, inputs: tuple[Value, ...]) -> Sequence[Operand]:
        params = {"value": np.array([1, 2], np.int8)}
        half = Literal.of(0.5, Type("bf16", ()))
        return *builder.add(ops.CONSTANT, (), params, at=UNKNOWN), half, inputs[0]

    graph = graph_of([Type("f32", (), PER_REPLICA)], body)
    constant, half, same = interpret(graph, [f32(3, 4)], evaluate_jax_node).outputs
    check(constant, [1, 2], [1, 2])
    assert half[0].dtype == BF16
    check(half, 0.5, 0.5)
    check(same, 3, 4)


# Operations of JAX.


def test_jax_operation_is_evaluated_for_each_replica() -> None:
    vector = Type("f32", (2,), PER_REPLICA)
    graph = graph_of([vector, vector], lambda b, inputs: [jax_node(b, "mul", vector, *inputs)])
    arguments = [f32([1, 2], [3, 4]), f32([5, 6], [7, 8])]
    check(interpret(graph, arguments, evaluate_jax_node).outputs[0], [5, 12], [21, 32])


def test_jax_operation_with_several_results() -> None:
    def body(builder: Builder, inputs: tuple[Value, ...]) -> Sequence[Operand]:
        params = {"dimension": 0, "is_stable": True, "num_keys": 1}
        types = [value.type for value in inputs]
        return builder.add(resolve("jax.sort"), inputs, params, at=UNKNOWN, types=types)

    graph = graph_of([Type("f32", (3,)), Type("i32", (3,))], body, num_replicas=1)
    arguments: list[Held] = [f32([3, 1, 2]), [np.array([30, 10, 20], np.int32)]]
    keys, values = interpret(graph, arguments, evaluate_jax_node).outputs
    check(keys, [1, 2, 3])
    check(values, [10, 20, 30])


def test_equal_arrays_are_computed_once_unless_the_operation_varies() -> None:
    calls: list[str] = []

    def evaluate(node: Node, arrays: Sequence[Array]) -> list[Array]:
        calls.append(node.op.name)
        return [arrays[0]]

    steady, varying = Op("jax.steady"), Op("jax.varying", varies=True)
    type = Type("f32", (), MIRRORED)
    graph = graph_of(
        [type],
        lambda b, inputs: [
            *b.add(steady, inputs, at=UNKNOWN, types=[type]),
            *b.add(varying, inputs, at=UNKNOWN, types=[type]),
        ],
    )
    one = np.ones((), np.float32)
    interpret(graph, [[one, one]], evaluate)
    assert calls == ["jax.steady", "jax.varying", "jax.varying"]


def test_result_of_another_type_than_stated_is_refused() -> None:
    type = Type("f32", (2,))
    graph = graph_of([type], lambda b, i: [jax_node(b, "neg", type.shaped((3,)), *i)])
    with pytest.raises(VerifyError, match=r"gives f32\[2\], the graph says f32\[3\]") as failure:
        interpret(graph, [f32([1, 2], [3, 4])], evaluate_jax_node)
    assert failure.value.__notes__ == ["at jax.neg of graph 'g' (unknown source)"]


# Variables.


def variable(
    aggregation: str = "none", *, on_read: bool = False, is_local: bool = False
) -> GraphVariable:
    type = SCALAR.with_layout(PER_REPLICA if on_read else MIRRORED)
    synchronization = "on_read" if on_read else "on_write"
    return GraphVariable("v", type, synchronization, aggregation, is_local=is_local)


def test_reads_see_the_assigns_before_them() -> None:
    v = variable(on_read=True)

    def body(builder: Builder, inputs: tuple[Value, ...]) -> Sequence[Operand]:
        (before,) = builder.add(ops.READ, (), {"variable": v}, at=UNKNOWN)
        builder.add(ops.ASSIGN, inputs, {"variable": v}, at=UNKNOWN)
        return before, *builder.add(ops.READ, (), {"variable": v}, at=UNKNOWN)

    graph = graph_of([SCALAR], body, stage=Stage.LOGICAL)
    state = {"v": i32(1, 2), "other": i32(0, 0)}
    outcome = interpret(graph, [i32(3, 4)], evaluate_jax_node, state)
    check(outcome.outputs[0], 1, 2)
    check(outcome.outputs[1], 3, 4)
    check(outcome.state["v"], 3, 4)
    check(outcome.state["other"], 0, 0)
    check(state["v"], 1, 2)


@pytest.mark.parametrize(
    ("v", "context", "wanted"),
    [
        (variable("sum"), "replica", (6, 6, 6)),
        (variable("only_first_replica"), "replica", (1, 1, 1)),
        (variable("none"), "replica", (1, 2, 3)),
        (variable("sum", on_read=True), "replica", (1, 2, 3)),
        (variable("sum"), "cross", (1, 2, 3)),
    ],
)
def test_aggregate(v: GraphVariable, context: str, wanted: tuple[int, ...]) -> None:
    params = {"variable": v, "context": context}
    graph = graph_of(
        [SCALAR],
        lambda b, inputs: b.add(ops.AGGREGATE, inputs, params, at=UNKNOWN),
        num_replicas=3,
        stage=Stage.LOGICAL,
    )
    (held,) = interpret(graph, [i32(1, 2, 3)], evaluate_jax_node).outputs
    check(held, *wanted)


def test_aggregate_by_mean() -> None:
    v = GraphVariable("v", Type("f32", (), MIRRORED), aggregation="mean")
    params = {"variable": v, "context": "replica"}
    graph = graph_of(
        [Type("f32", (), PER_REPLICA)],
        lambda b, inputs: b.add(ops.AGGREGATE, inputs, params, at=UNKNOWN),
        stage=Stage.LOGICAL,
    )
    check(interpret(graph, [f32(1, 2)], evaluate_jax_node).outputs[0], 1.5, 1.5)


def test_local_cell_lives_until_the_end_of_the_step() -> None:
    v = variable(is_local=True)

    def body(builder: Builder, inputs: tuple[Value, ...]) -> Sequence[Operand]:
        builder.add(ops.ASSIGN, inputs, {"variable": v}, at=UNKNOWN)
        return builder.add(ops.READ, (), {"variable": v}, at=UNKNOWN)

    graph = graph_of([SCALAR], body, stage=Stage.LOGICAL)
    outcome = interpret(graph, [i32(1, 2)], evaluate_jax_node)
    check(outcome.outputs[0], 1, 2)
    assert outcome.state == {}


def test_read_before_any_value_is_refused() -> None:
    v = variable()
    source = at_line("train.py", 41)
    graph = graph_of(
        [], lambda b, inputs: b.add(ops.READ, (), {"variable": v}, at=source), stage=Stage.LOGICAL
    )
    with pytest.raises(GraphdistError, match="variable 'v' is read before it has a value"):
        interpret(graph, [], evaluate_jax_node)


@pytest.mark.parametrize("stage", [Stage.PLACED, Stage.SPMD])
def test_placed_variables_come_in_first_and_go_out_first(stage: Stage) -> None:
    kept = GraphVariable("kept", SCALAR)
    changed = GraphVariable("changed", SCALAR, assigned=True)

    def body(builder: Builder, inputs: tuple[Value, ...]) -> Sequence[Operand]:
        of_kept, of_changed, x = inputs
        return jax_node(builder, "add", SCALAR, of_changed, x), of_kept

    graph = graph_of([SCALAR] * 3, body, stage=stage, variables=(kept, changed))
    state = {"changed": i32(10, 20), "kept": i32(5, 6)}
    outcome: Outcome = interpret(graph, [i32(1, 2)], evaluate_jax_node, state)
    assert len(outcome.outputs) == 1
    check(outcome.outputs[0], 5, 6)
    check(outcome.state["changed"], 11, 22)
    check(outcome.state["kept"], 5, 6)


# The boundary.


def test_wrong_arguments_are_refused() -> None:
    graph = graph_of([SCALAR], lambda b, inputs: inputs)
    with pytest.raises(GraphdistError, match="takes 1 arguments, not 0"):
        interpret(graph, [], evaluate_jax_node)
    with pytest.raises(GraphdistError, match="has 3 arrays for 2 replicas"):
        interpret(graph, [i32(1, 2, 3)], evaluate_jax_node)
    placed = graph_of([SCALAR], lambda b, inputs: inputs, variables=(variable(),))
    with pytest.raises(GraphdistError, match="'v' has no value on each of 2 replicas"):
        interpret(placed, [], evaluate_jax_node)
