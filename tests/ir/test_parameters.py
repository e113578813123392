"""Typed parameters: what they are made of, what is refused, how they print, and what mypy knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_type  # Any: operations of all kinds

import numpy as np
import pytest

from graphdist.ir import op_parameters as of
from graphdist.ir import ops
from graphdist.ir.arrays import Array
from graphdist.ir.builder import Builder
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graph, GraphVariable, Node, Op, Stage, TypedOp, Value
from graphdist.ir.parameters import Parameters
from graphdist.ir.parser import parse
from graphdist.ir.printer import print_graph
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED, Type

VARIABLE = GraphVariable("w", Type("f32", (4,), MIRRORED))
VALUE = np.arange(3, dtype=np.float32)
PAIRS = ((0, 1), (1, 0))
ALL: dict[Op, tuple[Parameters, str]] = {
    ops.READ: (of.OfVariable(VARIABLE), "variable"),
    ops.ASSIGN: (of.OfVariable(VARIABLE), "variable"),
    ops.AGGREGATE: (of.Aggregating(VARIABLE, "replica"), "variable context"),
    ops.REPLICA_ID: (of.OverReplicas(group_size=2), "group_size"),
    ops.TO_REPLICAS: (of.OverReplicas(group_size=2), "group_size"),
    ops.REDUCE: (of.Reducing("sum", group_size=2), "reducer group_size"),
    ops.GATHER: (of.AlongAxis(0, group_size=2), "axis group_size"),
    ops.ALL_REDUCE: (
        of.Reducing("sum", group_size=2, num_groups=4),
        "reducer group_size num_groups",
    ),
    ops.ALL_GATHER: (of.Gathering(0, group_size=4, stages=(2, 2)), "axis group_size stages"),
    ops.REDUCE_SCATTER: (
        of.ReduceScattering("sum", 0, group_size=4, num_groups=2, stages=(2, 2)),
        "reducer axis group_size num_groups stages",
    ),
    ops.COLLECTIVE_PERMUTE: (of.Permuting(PAIRS, group_size=2), "pairs group_size"),
    ops.ALL_TO_ALL: (of.Exchanging(0, 1, group_size=2), "split_axis concat_axis group_size"),
    ops.OWN_SLICE: (of.AlongAxis(0, group_size=2, num_groups=2), "axis group_size num_groups"),
    ops.RANDOM_SHARD: (
        of.RandomBits(0, (4, 2), 32, group_size=2),
        "axis shape bit_width group_size",
    ),
    ops.CONSTANT: (of.Holding(VALUE), "value"),
    ops.SELECT_REPLICA: (of.Selecting(0, group_size=2), "replica group_size"),
    ops.TO_PARTIAL: (of.Reducing("sum", group_size=2), "reducer group_size"),
    ops.SCALE: (of.Scaling(0.5), "factor"),
    ops.PACK: (Parameters(), ""),
    ops.UNPACK: (
        of.Unpacking(((2, 3), ()), axes=(0, 1), over="member", starts_at_run_time=True),
        "shapes axes over starts_at_run_time",
    ),
    ops.PACK_SLICES: (of.PackingSlices((0, 1), group_size=2), "axes group_size"),
    ops.UNPACK_SLICES: (
        of.UnpackingSlices(((2,),), (0,), group_size=2),
        "shapes axes group_size",
    ),
    ops.CORE_ID: (of.OverCores(num_cores=2), "num_cores"),
    ops.SPLIT_OVER_CORES: (of.SplittingOverCores(1, num_cores=2), "axis num_cores"),
    ops.ALL_REDUCE_OVER_CORES: (of.ReducingOverCores("max", num_cores=2), "reducer num_cores"),
    ops.ALL_GATHER_OVER_CORES: (of.AlongAxisOverCores(1, num_cores=2), "axis num_cores"),
    ops.REDUCE_SCATTER_OVER_CORES: (of.AlongAxisOverCores(1, num_cores=2), "axis num_cores"),
    ops.ALL_TO_ALL_OVER_CORES: (
        of.ExchangingOverCores(1, 0, num_cores=2),
        "split_axis concat_axis num_cores",
    ),
    ops.SLICE_OF_CORE: (of.AlongAxisOverCores(1, num_cores=2), "axis num_cores"),
    ops.ORDER_BY_CORE: (of.OrderingBlocks(1, (4, 2), num_cores=2), "axis blocks num_cores"),
    ops.ORDER_BY_BLOCK: (of.OrderingBlocks(0, (4,), num_cores=2), "axis blocks num_cores"),
    ops.ROTATE_OVER_CORES: (of.RotatingOverCores(-1, num_cores=2), "ahead num_cores"),
    ops.SLICE_AHEAD: (of.SlicingAhead(1, 3, num_cores=2), "axis ahead num_cores"),
    ops.JOIN_AHEAD: (of.AlongAxisOverCores(1, num_cores=2), "axis num_cores"),
    ops.EXCHANGE_BORDERS: (
        of.ExchangingBorders(1, 2, 1, "max", num_cores=2),
        "axis before after reducer num_cores",
    ),
    ops.ADD_BORDERS: (
        of.ExchangingBorders(1, 2, 1, num_cores=2),
        "axis before after num_cores",
    ),
    ops.INDEX_ON_CORE: (
        of.IndexingOnCore(0, 8, True, True, num_cores=2),
        "component size clamps drops num_cores",
    ),
    ops.KEEP_ROWS_OF_CORE: (
        of.KeepingRowsOfCore(0, 8, False, (1,), 0.0, num_cores=2),
        "component size clamps offset_dims fill num_cores",
    ),
    ops.INDEX_ON_REPLICA: (
        of.IndexingOnReplica(0, 8, True, True, True, group_size=2, num_groups=2),
        "component size clamps drops begins_others group_size num_groups",
    ),
    ops.KEEP_ROWS_OF_REPLICA: (
        of.KeepingRowsOfReplica(0, 8, False, (1,), 0.0, group_size=2),
        "component size clamps offset_dims fill group_size",
    ),
    ops.AS_SHARD: (of.AlongAxis(0, group_size=2, num_groups=2), "axis group_size num_groups"),
    ops.CONCATENATE: (of.Joining(1), "axis"),
    ops.RESHAPE: (of.Reshaping((2, 3)), "shape"),
    ops.TAKE_ALONG: (of.TakingAlong(1, 4, 8), "axis shard added"),
    ops.TAKE_STEP: (Parameters(), ""),
    ops.TAKE_PART: (of.TakingPart(0, 2), "axis count"),
    ops.JOIN_PARTS: (of.Joining(0), "axis"),
    ops.COUNT_STEP: (of.CountingSteps(3), "every"),
    ops.COPY_TO: (of.Copying("host"), "memory"),
    ops.BARRIER: (Parameters(), ""),
    ops.SCAN: (
        of.Scanning(length=3, reverse=False, unroll=1, gather="each", num_consts=0, num_carry=1),
        "length reverse unroll gather num_consts num_carry",
    ),
    ops.WHILE: (of.Looping(0, 1), "num_cond_consts num_body_consts"),
    ops.COND: (of.Branching(every=2), "every"),
}
"""Parameters of each operation, and their names in the order of the text."""


def test_every_operation_has_parameters_here() -> None:
    assert set(ALL) == set(ops.OPS.values())


@pytest.mark.parametrize("op", ops.OPS.values(), ids=lambda op: str(op.name))
def test_they_are_mappings_of_which_they_can_be_made(op: TypedOp[Any]) -> None:
    params, names = ALL[op]
    assert type(params) is op.parameters
    assert list(params) == names.split()
    assert len(params) == len(names.split())
    assert bool(params) == bool(names)
    again = op.parameters.read(dict(reversed([*params.items()])), op.name)
    assert (type(again), again, repr(again)) == (type(params), params, repr(params))


def test_a_field_with_its_default_is_not_in_the_mapping() -> None:
    params = of.Reducing("sum", group_size=2, num_groups=1)
    assert params == {"reducer": "sum", "group_size": 2}
    assert "num_groups" not in params
    assert params.get("num_groups", 7) == 7
    assert replace(params, num_groups=3) == {**params, "num_groups": 3}
    assert of.Branching() == {}


def test_numbers_of_numpy_and_lists_are_taken() -> None:
    items = {"axis": np.int64(1), "group_size": np.int32(4), "stages": [2, np.int64(2)]}
    params = of.Gathering.read(items, "all_gather")
    assert (params.axis, params.group_size, params.stages) == (1, 4, (2, 2))
    assert {type(number) for number in (params.axis, *params.stages)} == {int}
    factor: object = np.float32(0.5)
    assert of.Scaling.read({"factor": factor}, "scale").factor is factor


@pytest.mark.parametrize(
    ("op", "items", "message"),
    [
        (ops.SCALE, {}, "scale lacks its parameter 'factor': float"),
        (
            ops.OWN_SLICE,
            {"axis": 0, "group_size": 2, "stages": (2,)},
            "own_slice has no parameter 'stages'; its parameters: axis, group_size, num_groups",
        ),
        (ops.PACK, {"axis": 0}, "pack has no parameter 'axis'; its parameters: none"),
        (ops.SCALE, {"factor": True}, "scale takes factor as float, not True"),
        (ops.SCALE, {"factor": "2"}, "scale takes factor as float, not '2'"),
        (ops.CONCATENATE, {"axis": True}, "concatenate takes axis as int, not True"),
        (ops.CONCATENATE, {"axis": 1.0}, "concatenate takes axis as int, not 1.0"),
        (ops.RESHAPE, {"shape": 3}, "reshape takes shape as tuple[int, ...], not 3"),
        (ops.RESHAPE, {"shape": ("3",)}, "reshape takes shape as tuple[int, ...], not ('3',)"),
        (
            ops.COLLECTIVE_PERMUTE,
            {"pairs": ((0, 1, 2),), "group_size": 4},
            "collective_permute takes pairs as tuple[tuple[int, int], ...], not ((0, 1, 2),)",
        ),
        (
            ops.AGGREGATE,
            {"variable": VARIABLE, "context": "both"},
            "aggregate takes context as Literal['replica', 'cross'], not 'both'",
        ),
        (ops.READ, {"variable": "w"}, "read takes variable as GraphVariable, not 'w'"),
        (ops.CONSTANT, {"value": 3}, "constant takes value as Array, not 3"),
        (
            ops.SCAN,
            {"length": 1, "reverse": 0, "num_consts": 0, "num_carry": 1},
            "scan takes reverse as bool, not 0",
        ),
        (
            ops.SCAN,
            {"length": 1, "reverse": False, "unroll": "a", "num_consts": 0, "num_carry": 1},
            "scan takes unroll as int | None, not 'a'",
        ),
        (ops.COND, {"every": None}, "cond takes every as int, not None"),
    ],
)
def test_what_does_not_fit_is_refused(op: Op, items: dict[str, object], message: str) -> None:
    operands = [Value(Type("f32", (4,)))]
    with pytest.raises(TypeRuleError) as caught:
        Builder().add(op, operands, items, at=UNKNOWN)
    assert str(caught.value) == message


def node_of(op: Op, params: object) -> Node:
    builder = Builder()
    assert isinstance(params, dict | Parameters)
    builder.add(op, [Value(Type("f32", (4, 4), MIRRORED))], params, at=UNKNOWN)
    return builder.nodes[0]


@pytest.mark.parametrize(
    "params",
    [
        of.AlongAxis(1, group_size=2),
        {"axis": 1, "group_size": 2},
        of.Gathering(1, group_size=2),
    ],
    ids=["theirs", "mapping", "another class"],
)
def test_nodes_have_the_class_of_their_operation(params: object) -> None:
    node = node_of(ops.OWN_SLICE, params)
    assert type(node.params) is of.AlongAxis
    assert ops.OWN_SLICE.of(node) is node.params
    assert of.OverReplicas.of(node) is node.params
    with pytest.raises(AssertionError):
        ops.ALL_GATHER.of(node)
    with pytest.raises(AssertionError):
        of.Reducing.of(node)


def test_the_type_checker_knows_them() -> None:
    node = node_of(ops.ALL_GATHER, {"axis": 1, "group_size": 2})
    params = ops.ALL_GATHER.of(node)
    assert_type(params, of.Gathering)
    assert_type(params.axis, int)
    assert_type(params.stages, tuple[int, ...])
    assert_type(of.OverReplicas.of(node), of.OverReplicas)
    assert_type(of.OverReplicas.of(node).group_size, int)
    assert_type(ops.CONSTANT.of(node_of(ops.CONSTANT, of.Holding(VALUE))).value, Array)
    assert (params.axis, params.mesh) == (1, (2, 1))


def test_the_text_has_them_in_one_order_whatever_the_order_they_were_given_in() -> None:
    texts = [
        '{reducer="sum", axis=1, group_size=2}',
        '{group_size=2, num_groups=1, reducer="sum", axis=1}',
    ]
    printed = set()
    for text in texts:
        graph = parse(f"""graph f on 2 replicas, stage spmd
(%x: f32[4,4] per_replica) {{
  %y = reduce_scatter(%x) {text} : f32[4,2] sharded(1)
  return per_replica %y
}}""")
        assert type(graph.nodes[0].params) is of.ReduceScattering
        printed.add(print_graph(graph))
        assert print_graph(parse(print_graph(graph))) == print_graph(graph)
    assert len(printed) == 1
    assert texts[0] in printed.pop()


def test_parameters_that_print_as_tokens_are_read_back() -> None:
    builder, value = Builder(), np.arange(99.0)
    outputs = builder.add(ops.CONSTANT, (), of.Holding(value), at=UNKNOWN)
    graph = Graph("f", Stage.SPMD, 1, (), tuple(builder.nodes), outputs, (), (False,))
    again = parse(print_graph(graph), [value])
    assert ops.CONSTANT.of(again.nodes[0]).value is value
