"""The builder runs type rules, and keeps what a rewrite must not lose."""

from __future__ import annotations

import pytest

from graphdist.ir import ops
from graphdist.ir.builder import Builder
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graph, Literal, Op, Stage, Value
from graphdist.ir.source import UNKNOWN, at_line
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, Type, sharded

ADD = Op("jax.add")
RANDOM = Op("jax.random", varies=True)


def value(layout: Layout | None = None, *shape: int) -> Value:
    """Return a value of dtype f32."""
    return Value(Type("f32", shape, layout), "x")


def test_a_node_has_what_it_was_given() -> None:
    builder, x, source = Builder("fuse"), value(PER_REPLICA, 2), at_line("train.py", 3)
    params = {"factor": 2}
    (y,) = builder.add(ops.SCALE, [x], params, at=source, hint="y")
    (node,) = builder.nodes
    assert (node.op, node.operands, node.params, node.graphs) == (ops.SCALE, (x,), params, ())
    assert (node.results, node.source, node.origin) == ((y,), source, "fuse")
    assert (y.type, y.hint) == (x.type, "y")


def test_an_ill_typed_node_cannot_be_made() -> None:
    builder = Builder()
    with pytest.raises(TypeRuleError, match=r"reshape of f32\[2\] to f32\[3\]: 2 is not 3"):
        builder.add(ops.RESHAPE, (value(None, 2),), {"shape": (3,)}, at=UNKNOWN)
    assert builder.nodes == []


def test_a_jax_node_states_its_types() -> None:
    with pytest.raises(TypeError, match=r"jax\.add has no type rule: state the types"):
        Builder().add(ADD, (value(),), at=UNKNOWN)


@pytest.mark.parametrize(
    ("layouts", "expected"),
    [
        ([], MIRRORED),
        ([MIRRORED, MIRRORED], MIRRORED),
        ([MIRRORED, PER_REPLICA], PER_REPLICA),
        ([sharded(0), MIRRORED], sharded(0)),
        ([sharded(0), sharded(1)], PER_REPLICA),
        ([sharded(0), PER_REPLICA], PER_REPLICA),
        ([PER_REPLICA, None], None),
    ],
)
def test_the_result_of_a_jax_node_is_the_join_of_its_operands(
    layouts: list[Layout | None], expected: Layout | None
) -> None:
    operands = [value(layout, 2, 3) for layout in layouts]
    # What is stated of the layout does not count.
    stated = [Type("i8", (2, 3), sharded(0)), Type("f32", (2, 3))]
    results = Builder().add(ADD, operands, at=UNKNOWN, types=stated)
    assert [result.type for result in results] == [
        Type("i8", (2, 3), expected),
        Type("f32", (2, 3), expected),
    ]


def test_the_result_of_a_node_that_varies_is_per_replica() -> None:
    types = [Type("f32", ())]
    (known,) = Builder().add(RANDOM, (value(MIRRORED),), at=UNKNOWN, types=types)
    (unknown,) = Builder().add(RANDOM, (value(None),), at=UNKNOWN, types=types)
    assert (known.type.layout, unknown.type.layout) == (PER_REPLICA, None)


def test_a_literal_is_mirrored() -> None:
    literal = Literal.of(1.0, Type("f32", (), PER_REPLICA))
    (result,) = Builder().add(ADD, (literal,), at=UNKNOWN, types=[literal.type])
    assert result.type.layout is MIRRORED


def test_a_node_that_does_not_change_is_kept_itself() -> None:
    x = value(MIRRORED, 2)
    first, second = Builder("first"), Builder("second")
    results = first.add(ops.SCALE, (x,), {"factor": 2}, at=UNKNOWN)
    node = first.nodes[0]
    assert second.keep(node, (x,), ()) is results
    assert second.nodes == [node]


def test_a_node_with_other_operands_keeps_source_origin_and_hint() -> None:
    first, second = Builder("first"), Builder("second")
    source = at_line("train.py", 3)
    first.add(ADD, (value(MIRRORED),), at=source, types=[Type("f32", (2,))], hint="loss")
    (result,) = second.keep(first.nodes[0], (value(PER_REPLICA),), ())
    (node,) = second.nodes
    assert (node.source, node.origin, result.hint) == (source, "first", "loss")
    assert result.type == Type("f32", (2,), PER_REPLICA)
    assert result is not first.nodes[0].results[0]


def test_a_node_with_other_operands_of_the_same_types_keeps_its_results() -> None:
    first, second = Builder(), Builder()
    results = first.add(ADD, (value(MIRRORED),), at=UNKNOWN, types=[Type("f32", (2,))])
    assert second.keep(first.nodes[0], (value(MIRRORED),), ()) == results
    assert second.nodes[0] is not first.nodes[0]


def test_a_node_with_other_nested_graphs_is_derived_again() -> None:
    def branch(layout: Layout) -> Graph:
        return Graph("b", Stage.SPMD, 2, (), (), (value(layout, 3),))

    first, second = Builder(), Builder()
    index = Literal.of(0, Type("i32", ()))
    first.add(ops.COND, (index,), {}, (branch(MIRRORED),), at=UNKNOWN)
    (result,) = second.keep(first.nodes[0], (index,), (branch(PER_REPLICA),))
    assert result.type.layout is PER_REPLICA
