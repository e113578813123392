"""Graph to text and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from graphdist.ir import ops
from graphdist.ir.builder import Builder
from graphdist.ir.compare import first_difference
from graphdist.ir.errors import ParseError
from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Op, Operand, Stage, Value
from graphdist.ir.opaque_placeholders import PLACEHOLDERS
from graphdist.ir.parser import parse
from graphdist.ir.printer import names, opaques, print_graph, print_literal, print_node
from graphdist.ir.source import UNKNOWN, at_line
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type
from graphdist.ir.verifier import verify
from tests.ir.generators import Dimensions, Mode, graphs

LOGICAL = """\
graph train_step on 2 replicas, stage logical
  variable @w: f32[4,3] mirrored {synchronization="on_write", aggregation="mean", trainable=true}
  variable @"count:0": i32[] {synchronization="on_read", aggregation="sum", trainable=false, \
assigned=true, is_local=true}
(%x: f32[2,4] per_replica, %lr: f32[]) {
  %w = read() {variable=@w} : f32[4,3] mirrored
  %0 = jax.dot_general(%x, %w) {dimension_numbers=(((1,), (0,)), ((), ())), precision=none, \
preferred_element_type=dtype<f32>} : f32[2,3] per_replica
  %1 = jax.scatter-add(%0, 0.1:f32) {mode="clip", limit=-inf} : f32[2,3] per_replica
  %k = constant() {value=array<bf16[5]: 0.1, 2.0, 3.0, -inf, nan>} : bf16[5] mirrored
  %c, %ys = scan(%lr, %k) {length=5, reverse=false, num_consts=0, num_carry=1} : \
f32[], bf16[5] mirrored
    body(%a: f32[], %b: bf16[] mirrored) {
      %2 = jax.cumsum(%a, true:bool, complex(1.0, nan):c64) {options={axes=[0, 1], "a b"="\\n#"}} \
: f32[]
      return %2, %b
    }
  %3 = replica_id() {group_size=2} : i32[] per_replica
  %y = cond(%3, %1) : f32[2,3] per_replica
    "branch 0"(%v: f32[2,3] per_replica) {
      return %v
    }
    "branch 1"(%v_1: f32[2,3] per_replica) {
      %4 = all_reduce(%v_1) {reducer="sum", group_size=2} : f32[2,3] mirrored
      return %4
    }
  assign(%w) {variable=@w}
  return per_replica %1, %c, -3:i8, %k
}"""

SPMD = """\
graph "<lambda>" on 1 replica, stage spmd
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, \
assigned=true}
  variable @n: i32[] per_replica {synchronization="on_read", aggregation="sum", trainable=true}
(%w: f32[4] mirrored = @w, %n: i32[1] per_replica = @n, %x: f32[4] sharded(0)) {
  %w_1 = jax.add(%w, 1.0:f32) : f32[4] mirrored
  return %w_1 -> @w, per_replica %x
}"""


@pytest.mark.parametrize("text", [LOGICAL, SPMD])
def test_every_form_reads_and_prints_as_it_stands(text: str) -> None:
    assert print_graph(parse(text)) == text


def test_what_the_text_says_is_in_the_graph() -> None:
    graph = parse(SPMD)
    assert (graph.name, graph.stage, graph.num_replicas) == ("<lambda>", Stage.SPMD, 1)
    assert graph.variables == (
        GraphVariable("w", Type("f32", (4,), MIRRORED), assigned=True),
        GraphVariable("n", Type("i32", (), PER_REPLICA), "on_read", "sum"),
    )
    assert graph.returns_per_replica == (True,)
    assert graph.inputs[0].type.layout is MIRRORED  # the object itself: passes compare by `is`
    (node,) = graph.nodes
    assert node.operands == (graph.inputs[0], Literal.of(1.0, Type("f32", ())))
    assert [value.hint for value in graph.inputs] == ["w", "n", "x"]


def test_the_example_in_the_documents_is_what_is_printed() -> None:
    document = Path(__file__).parents[2] / "docs" / "ir.md"
    example = document.read_text(encoding="utf-8").split("```")[1].strip("\n")
    graph = parse(example, [Dimensions((1,))])
    verify(graph, full=True)
    assert print_graph(graph) == example


@given(graphs())
def test_text_gives_the_graph_back(graph: Graph) -> None:
    text = print_graph(graph)
    again = parse(text, opaques(graph))
    assert first_difference(graph, again) is None
    assert print_graph(again) == text
    verify(again, full=True)


def one_node(operands: Sequence[Operand] = (), **params: object) -> Graph:
    """Return a graph of one JAX node with these parameters."""
    builder = Builder()
    types = [Type("f32", ())]
    (value,) = builder.add(Op("jax.f"), operands, params, at=UNKNOWN, types=types, hint="y")
    return Graph("f", Stage.LOGICAL, 2, (), tuple(builder.nodes), (value,), (), (False,))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (True, "true"),
        (-3, "-3"),
        (1e-05, "1e-05"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (1 - 0j, "complex(1.0, 0.0)"),
        ('a "b"\n', r'"a \"b\"\n"'),
        ((), "()"),
        ((1,), "(1,)"),
        ([1, (2, 3)], "[1, (2, 3)]"),
        ({"a": 1, "b c": {}}, '{a=1, "b c"={}}'),
        (np.dtype("bool"), "dtype<bool>"),
        (np.dtype(ml_dtypes.float8_e4m3fn), "dtype<float8_e4m3fn>"),
        (np.array([[0.1], [-0.0]], np.float32), "array<f32[2,1]: 0.1, -0.0>"),
        (np.array([2**64 - 1], np.uint64), "array<u64[1]: 18446744073709551615>"),
        (np.int64(-3), "-3:i64"),
        (np.float32(0.1), "0.1:f32"),
        (np.bool_(True), "true:bool"),
        (ml_dtypes.bfloat16(2), "2.0:bf16"),
        (np.array(True), "array<bool[]: true>"),
        (np.array([1j], np.complex64), "array<c64[1]: complex(0.0, 1.0)>"),
        (np.zeros((0, 3), np.int8), "array<i8[0,3]>"),
    ],
)
def test_parameters_with_a_text_form(value: object, text: str) -> None:
    graph = one_node(p=value)
    assert f"{{p={text}}}" in print_graph(graph)
    assert opaques(graph) == ()
    (node,) = parse(print_graph(graph)).nodes
    assert type(node.params["p"]) is type(value)
    assert first_difference(graph, parse(print_graph(graph))) is None


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (Dimensions((1,)), "<0: Dimensions>"),
        (Mode.CLIP, "<0: Mode>"),
        (np.str_("a"), "<0: str_ _U1[]>"),
        (np.zeros((3, 6), np.float32), "<0: ndarray f32[3,6]>"),
        (
            np.array([0xFFC00001], np.uint32).view(np.float32),
            "<0: ndarray f32[1]>",
        ),  # a nan with a payload
        ({1: 2}, "<0: dict>"),
        (len, "<0: builtin_function_or_method>"),
        (np.dtype([("a", "i4")]), "<0: VoidDType>"),
        (GraphVariable("nobody's", Type("f32", ())), "<0: GraphVariable nobody_s>"),
        (GraphVariable("<f> -> <", Type("f32", ())), "<0: GraphVariable <f> -_ _>"),
    ],
)
def test_parameters_without_one_come_from_the_side_table(value: object, token: str) -> None:
    graph = one_node(p=value, q=(value,))
    assert f"{{p={token}, q=({token},)}}" in print_graph(graph)
    assert opaques(graph) == (value,)
    (node,) = parse(print_graph(graph), opaques(graph)).nodes
    assert node.params["p"] is value
    shown = parse(print_graph(graph), PLACEHOLDERS)
    assert print_graph(shown) == print_graph(graph)
    assert first_difference(shown, parse(print_graph(graph), PLACEHOLDERS)) is None


def test_placeholders_of_other_parameters_differ() -> None:
    one, other = len, GraphVariable("w", Type("f32", ()))
    alike = [parse(print_graph(one_node(p=one, q=q)), PLACEHOLDERS) for q in (one, print, other)]
    assert [first_difference(alike[0], graph) is None for graph in alike] == [True, True, False]
    assert [print_graph(graph).count("<1: ") for graph in alike] == [0, 1, 1]


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.10000000149011612, "f32", "0.1:f32"),
        (0.1, "bf16", "0.1:bf16"),
        (2, "f16", "2.0:f16"),
        (-0.0, "f32", "-0.0:f32"),
        (0.0, "f32", "0.0:f32"),
        (math.nan, "f64", "nan:f64"),
        (1e300, "f32", "inf:f32"),
        (1 / 3, "f64", "0.3333333333333333:f64"),
        (1, "c128", "complex(1.0, 0.0):c128"),
        (True, "bool", "true:bool"),
        (-128, "i8", "-128:i8"),
    ],
)
def test_literals_are_short_and_exact_in_their_dtype(value: complex, dtype: str, text: str) -> None:
    literal = Literal.of(value, Type(dtype, ()))
    assert print_literal(literal) == text
    (node,) = parse(print_graph(one_node([literal]))).nodes
    assert isinstance(node.operands[0], Literal)
    assert print_literal(node.operands[0]) == text


def test_an_edited_literal_is_another_graph() -> None:
    text = LOGICAL.replace("0.1:f32", "1e-3:f32")
    assert first_difference(parse(LOGICAL), parse(text)) == (
        "node 2, jax.scatter-add: operand 1: 0.1:f32, 0.001:f32"
    )


def test_comments_and_empty_lines_mean_nothing() -> None:
    text = SPMD.replace("\n", "  # a {comment}\n\n  # another\n")
    assert print_graph(parse(text)) == SPMD


def test_names_are_hints_made_identifiers_and_unique() -> None:
    hints = ["x", "x", "", "x_1", "layer/w:0", "3", "", "λ"]
    inputs = tuple(Value(Type("f32", ()), hint) for hint in hints)
    graph = Graph("f", Stage.LOGICAL, 1, inputs, (), ())
    assert list(names(graph).values()) == [
        "%x", "%x_1", "%0", "%x_1_1", "%layer_w_0", "%_3", "%1", "%λ",
    ]  # fmt: skip
    assert first_difference(parse(print_graph(graph)), graph) is None


def test_a_nested_graph_that_two_nodes_share_is_two_in_the_text() -> None:
    graph = parse(LOGICAL)
    cond = next(node for node in graph.nodes if node.op is ops.COND)
    builder = Builder()
    builder.nodes += graph.nodes
    branches = (cond.graphs[1], cond.graphs[1])
    (value,) = builder.add(ops.COND, cond.operands, {}, branches, at=UNKNOWN, hint="y")
    shared = graph.replace(nodes=tuple(builder.nodes), outputs=(value, *graph.outputs[1:]))
    text = print_graph(shared)
    assert '"branch 1"(%v_1: ' in text
    assert '"branch 1"(%v_1_1: ' in text
    assert '"branch 1"(%v_1_2: ' in text
    assert first_difference(parse(text), shared) is None


def test_sources_stand_once_above_each_run_of_nodes(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    file = tmp_path_factory.mktemp("user") / "train.py"
    file.write_text("h = x @ w\n\nloss = h.sum()\n")
    builder = Builder()
    x = Value(Type("f32", ()), "x")
    for line in (1, 1, 3):
        (y,) = builder.add(ops.SCALE, (x,), {"factor": 2}, at=at_line(str(file), line))
    builder.add(ops.SCALE, (x,), {"factor": 2}, at=UNKNOWN)
    graph = Graph("f", Stage.LOGICAL, 1, (x,), tuple(builder.nodes), (y,))
    text = print_graph(graph, sources=True)
    assert text.replace(str(file), "train.py") == (
        "graph f on 1 replica, stage logical\n"
        "(%x: f32[]) {\n"
        "  # train.py:1: h = x @ w\n"
        "  %0 = scale(%x) {factor=2} : f32[]\n"
        "  %1 = scale(%x) {factor=2} : f32[]\n"
        "  # train.py:3: loss = h.sum()\n"
        "  %2 = scale(%x) {factor=2} : f32[]\n"
        "  %3 = scale(%x) {factor=2} : f32[]\n"
        "  return %2\n"
        "}"
    )
    assert print_graph(parse(text)) == print_graph(graph)


def test_a_node_is_printed_under_the_names_of_its_graph() -> None:
    graph = parse(LOGICAL)
    inner = graph.nodes[-2].graphs[1].nodes[0]
    line = ' = all_reduce(%{}) {{reducer="sum", group_size=2}} : f32[2,3] mirrored'
    assert print_node(inner, graph) == "%4" + line.format("v_1")
    assert print_node(inner) == "%0" + line.format("v_1")
    assert print_node(inner, parse(SPMD)) == "%0" + line.format("v_1")


def test_a_broken_graph_prints() -> None:
    lost = Value(Type("f32", ()), "lost")
    node = Node(ops.SCALE, (lost,), {"factor": 1}, (), ())
    variable = GraphVariable("w", Type("f32", ()), assigned=True)
    graph = Graph("f", Stage.SPMD, 2, (), (node,), (lost,), (variable, variable), (True, True))
    assert print_graph(graph).splitlines()[3:] == [
        "() {",
        "  scale(%?lost) {factor=1}",
        "  return %?lost -> @w",
        "}",
    ]


def test_operations_of_jax_come_from_the_caller() -> None:
    varying, steady = Op("jax.rng", varies=True), Op("jax.rng")
    text = SPMD.replace("jax.add", "jax.rng").replace(
        "1.0:f32) : f32[4] mirrored", "1.0:f32) : f32[4] per_replica"
    )
    assert parse(text, ops={"jax.rng": varying}.__getitem__).nodes[0].op is varying
    with pytest.raises(ParseError, match="by the rule of jax"):
        parse(text, ops={"jax.rng": steady}.__getitem__)
    with pytest.raises(ParseError, match="no operation 'jax"):
        parse(SPMD, ops={"jax.rng": varying}.__getitem__)


@pytest.mark.parametrize("layout", ["", " mirrored", " per_replica", " sharded(0)"])
def test_of_an_unknown_operation_of_jax_the_text_knows_the_distribution(layout: str) -> None:
    text = SPMD.replace("1.0:f32) : f32[4] mirrored", f"1.0:f32) : f32[4]{layout}")
    assert print_graph(parse(text)) == text


def test_an_unknown_operation_of_jax_is_one_object() -> None:
    graph = parse(LOGICAL.replace("scatter-add", "dot_general"))
    assert graph.nodes[1].op is graph.nodes[2].op


def test_length_costs_neither_recursion_nor_much_time() -> None:
    lines = [f"  %h_{i + 1} = jax.neg(%h_{i}) : f32[] mirrored\n" for i in range(20_000)]
    text = (
        "graph long on 1 replica, stage spmd\n(%h_0: f32[] mirrored) {\n"
        f"{''.join(lines)}  return %h_20000\n}}"
    )
    graph = parse(text)
    assert print_graph(graph) == text
