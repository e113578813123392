"""Each invariant, broken on purpose, and what the verifier says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given

from graphdist.ir import ops
from graphdist.ir.errors import VerifyError
from graphdist.ir.graph import Graph, Node, Op, Operand, TypedOp, Value
from graphdist.ir.parser import parse
from graphdist.ir.source import UNKNOWN, at_line
from graphdist.ir.types import Type
from graphdist.ir.verifier import verify
from tests.ir.generators import graphs

GRAPH = parse("""\
graph f on 2 replicas, stage placed
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, \
assigned=true}
  variable @n: i32[] per_replica {synchronization="on_read", aggregation="sum", trainable=true}
(%w: f32[4] mirrored = @w, %n: i32[] per_replica = @n, %x: f32[4] per_replica) {
  %y = all_reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored
  %z = cond(0:i32, %y) : f32[4] mirrored
    branch(%a: f32[4] mirrored) {
      %b = jax.neg(%a) : f32[4] mirrored
      return %b
    }
  return %z -> @w, per_replica %y
}""")
W, N, X = GRAPH.inputs
REDUCE, COND = GRAPH.nodes
Y, Z = REDUCE.results[0], COND.results[0]
(BRANCH,) = COND.graphs
(NEG,) = BRANCH.nodes
F = Op("jax.f")
LOST = Value(Type("f32", (4,), Y.type.layout), "lost")


def node(
    operands: Sequence[Operand], results: Sequence[Value], op: Op = F, **params: object
) -> Node:
    """Return a node as only a broken pass makes one: without a builder."""
    typed = op.parameters.read(params, op.name) if isinstance(op, TypedOp) else params
    return Node(op, tuple(operands), typed, (), tuple(results), at_line("train.py", 7))


def with_nodes(*nodes: Node) -> Graph:
    return GRAPH.replace(nodes=(*GRAPH.nodes, *nodes))


def with_branch(branch: Graph) -> Graph:
    cond = Node(COND.op, COND.operands, {}, (branch,), COND.results, UNKNOWN)
    return GRAPH.replace(nodes=(REDUCE, cond))


def message(graph: Graph, full: bool = False) -> str:
    with pytest.raises(VerifyError) as caught:
        verify(graph, full)
    return str(caught.value)


def value(type: Type, hint: str = "v") -> Value:
    return Value(type, hint)


def variables_with(**changes: object) -> Graph:
    """Return the graph with the first variable changed."""
    w, n = GRAPH.variables
    return GRAPH.replace(variables=(replace(w, **changes), n))  # type: ignore[arg-type]


CASES: dict[str, tuple[Graph, str]] = {
    "a result is defined again": (
        with_nodes(node([X], [Y])),
        "%y is defined before, and again by this node\n"
        "  train.py:7\n"
        "  in graph 'f':\n"
        "    %y = jax.f(%x) : f32[4] mirrored",
    ),
    "an input is defined again": (
        GRAPH.replace(inputs=(W, N, X, X)),
        "%x stands twice among the inputs\n  in graph 'f'",
    ),
    "an operand comes later": (
        GRAPH.replace(nodes=(COND, REDUCE)),
        "operand 1, %y, is not defined before its use\n"
        "  in graph 'f':\n"
        "    %z = cond(0:i32, %?y) : f32[4] mirrored",
    ),
    "an operand comes from nowhere": (
        with_nodes(node([LOST], [])),
        "operand 0, %?lost, is not defined before its use\n"
        "  train.py:7\n"
        "  in graph 'f':\n"
        "    jax.f(%?lost)",
    ),
    "a nested graph uses a value of the outer one": (
        with_branch(BRANCH.replace(nodes=(node([X], NEG.results),))),
        "operand 0, %x, is not defined before its use\n"
        "  train.py:7\n"
        "  in graph 'f':\n"
        "    %b = jax.f(%x) : f32[4] mirrored",
    ),
    "a nested graph returns a value of the outer one": (
        with_branch(BRANCH.replace(outputs=(X,))),
        "output 0, %x, is not defined in the graph that returns it\n  in graph 'f'",
    ),
    "an output comes from nowhere": (
        GRAPH.replace(outputs=(Z, LOST)),
        "output 1, %?lost, is not defined in the graph that returns it\n  in graph 'f'",
    ),
    "a collective spans other replicas": (
        with_nodes(node([X], [value(Y.type)], ops.ALL_REDUCE, reducer="sum", group_size=4)),
        "all_reduce spans 4 replicas, the graph has 2\n"
        "  train.py:7\n"
        "  in graph 'f':\n"
        '    %v = all_reduce(%x) {reducer="sum", group_size=4} : f32[4] mirrored',
    ),
    "a nested replica_id spans other replicas": (
        with_branch(
            BRANCH.replace(nodes=(NEG, node([], [value(N.type)], ops.REPLICA_ID, group_size=3)))
        ),
        "replica_id spans 3 replicas, the graph has 2\n"
        "  train.py:7\n"
        "  in graph 'f':\n"
        "    %v = replica_id() {group_size=3} : i32[] per_replica",
    ),
    "a logical operation is left": (
        with_nodes(node([], [value(W.type)], ops.READ, variable=GRAPH.variables[0])),
        "read has no place at stage placed\n"
        "  train.py:7\n"
        "  in graph 'f':\n"
        "    %v = read() {variable=@w} : f32[4] mirrored",
    ),
    "a result has no layout": (
        with_nodes(node([X], [value(Type("f32", ()))])),
        "%v is f32[], without a layout\n  train.py:7\n  in graph 'f':\n    %v = jax.f(%x) : f32[]",
    ),
    "an input has no layout": (
        GRAPH.replace(inputs=(W, N, X, value(Type("f32", ())))),
        "input %v is f32[], without a layout\n  in graph 'f'",
    ),
    "two variables have one name": (
        variables_with(name="n"),
        "two variables have the name 'n'\n  in graph 'f'",
    ),
    "an output is not declared": (
        GRAPH.replace(outputs=(Z, Y, Y)),
        "outputs of the user's: 2, said to be per replica or not: 1\n  in graph 'f'",
    ),
    "an input of a variable is missing": (
        GRAPH.replace(inputs=(), nodes=(), outputs=(Z, Y)).replace(
            inputs=(W,), nodes=(node([], [Z, Y]),)
        ),
        "variables: 2, inputs: 1\n  in graph 'f'",
    ),
    "an input has not its variable's type": (
        variables_with(type=W.type.shaped((5,))),
        "input %w is f32[4] mirrored, its variable 'w' f32[5] mirrored\n  in graph 'f'",
    ),
    "an output of a variable is missing": (
        GRAPH.replace(
            outputs=(),
            variables=tuple(replace(variable, assigned=True) for variable in GRAPH.variables),
        ),
        "outputs of the user's: -2, said to be per replica or not: 1\n  in graph 'f'",
    ),
    "an output is not what its variable takes": (
        GRAPH.replace(outputs=(X, Y)),
        "output %x is f32[4] per_replica, its variable 'w' f32[4] mirrored\n  in graph 'f'",
    ),
}


def test_the_graph_that_the_tests_break_is_sound() -> None:
    verify(GRAPH)
    verify(GRAPH, full=True)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_broken_invariant_is_named(case: str, full: bool) -> None:
    graph, expected = CASES[case]
    assert message(graph, full) == expected


def test_an_spmd_graph_has_no_operation_across_replicas() -> None:
    text = str(GRAPH).replace("all_reduce", "reduce")
    verify(parse(text))
    assert message(parse(text.replace("stage placed", "stage spmd"))) == (
        "reduce has no place at stage spmd\n"
        "  in graph 'f':\n"
        '    %y = reduce(%x) {reducer="sum", group_size=2} : f32[4] mirrored'
    )


def test_a_logical_graph_needs_no_distributions_and_no_inputs_for_variables() -> None:
    verify(
        parse("""\
graph f on 2 replicas, stage logical
  variable @w: f32[4] {synchronization="on_write", aggregation="none", trainable=true}
(%x: f32[4]) {
  %w = read() {variable=@w} : f32[4]
  assign(%x) {variable=@w}
  return %w
}""")
    )


@pytest.mark.parametrize(
    ("input", "variable"),
    [
        ("i32[] per_replica", "i32[] per_replica"),
        ("i32[1] per_replica", "i32[] per_replica"),  # as `shard_inputs` makes it
    ],
)
def test_a_scalar_a_replica_may_have_a_dimension_at_the_boundary(input: str, variable: str) -> None:
    text = f"""\
graph f on 2 replicas, stage spmd
  variable @n: {variable} {{synchronization="on_read", aggregation="sum", trainable=true, \
assigned=true}}
(%n: {input} = @n) {{
  return %n -> @n
}}"""
    verify(parse(text))


def test_a_mirrored_value_may_be_written_to_a_per_replica_variable() -> None:
    text = str(GRAPH).replace("%w: f32[4] mirrored", "%w: f32[4] per_replica")
    verify(parse(text.replace("variable @w: f32[4] mirrored", "variable @w: f32[4] per_replica")))


def test_only_a_full_check_derives_types_again() -> None:
    wrong = node([X], [value(Y.type)], ops.SCALE, factor=2)
    graph = with_nodes(wrong)
    verify(graph)
    assert message(graph, full=True) == (
        "scale gives f32[4] per_replica by its rule, not f32[4] mirrored\n"
        "  train.py:7\n"
        "  in graph 'f':\n"
        "    %v = scale(%x) {factor=2} : f32[4] mirrored"
    )


def test_a_full_check_tells_what_a_rule_refuses() -> None:
    graph = with_nodes(node([X, X], [value(X.type)], ops.SCALE, factor=2))
    assert message(graph, full=True).splitlines()[0] == "scale takes 1 operand, not 2"
    scan = {"length": 1, "reverse": False, "num_consts": 0, "num_carry": 1}
    graph = with_nodes(node([X], [], ops.SCAN, **scan))
    assert message(graph, full=True).splitlines()[0] == (
        "the rule of scan fails on this node: "
        "ValueError('not enough values to unpack (expected 1, got 0)')"
    )


@given(graphs())
def test_drawn_graphs_are_sound(graph: Graph) -> None:
    verify(graph, full=True)


@pytest.mark.parametrize("groups", [0, 3])
def test_replicas_that_form_no_groups(groups: int) -> None:
    graph = GRAPH.replace(num_groups=groups)
    assert f"2 replicas form no {groups} groups of one size" in message(graph)
