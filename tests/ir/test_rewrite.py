"""What the rewrite driver tells rules of the values: which node makes one, how often it is used."""

from __future__ import annotations

from collections.abc import Callable

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.ops import SCALE
from graphdist.ir.parser import parse
from graphdist.ir.rewrite import Rewriter, rewrite
from graphdist.ir.types import Type
from graphdist.tracing.jax_ops import resolve

GRAPH = parse(
    """graph f on 1 replica, stage spmd
(%x: f32[2] mirrored) {
  %a = jax.neg(%x) : f32[2] mirrored
  %b = jax.mul(%a, %a) {out_dtype=none} : f32[2] mirrored
  %c = jax.neg(%b) : f32[2] mirrored
  %d = jax.add(%c, %a) : f32[2] mirrored
  return %d, %d
}""",
    ops=resolve,
)
Observed = Callable[[Node, tuple[Operand, ...], Rewriter], None]


def observe(graph: Graph, take_note: Observed) -> None:
    """Rewrite nothing, and take note of each node."""

    def rule(node: Node, operands: tuple[Operand, ...], rewriter: Rewriter) -> None:
        take_note(node, operands, rewriter)

    assert rewrite(graph, rule, "observe") is graph


def test_a_definition_is_the_node_in_the_new_graph() -> None:
    def rule(node: Node, operands: tuple[Operand, ...], rewriter: Rewriter) -> list[Operand] | None:
        if node.op.name != "jax.neg":
            return None
        return list(rewriter.add(SCALE, operands, {"factor": -1}, at=node.source))

    made: list[str | None] = []

    def both(node: Node, operands: tuple[Operand, ...], rewriter: Rewriter) -> list[Operand] | None:
        definition = rewriter.definition(operands[0])
        made.append(definition.op.name if definition else None)
        return rule(node, operands, rewriter)

    rewrite(GRAPH, both, "scale")
    assert made == [None, "scale", "jax.mul", "scale"]


def test_a_definition_may_be_asked_for_by_operation() -> None:
    found: list[bool] = []

    def take_note(node: Node, operands: tuple[Operand, ...], rewriter: Rewriter) -> None:
        found.append(rewriter.definition(operands[0], "jax.mul", "jax.sub") is not None)

    observe(GRAPH, take_note)
    assert found == [False, False, True, False]


def test_a_literal_has_no_definition() -> None:
    rewriter = Rewriter(GRAPH, "test")
    assert rewriter.definition(Literal.of(1.0, Type("f32", ()))) is None


def test_nodes_taken_back_may_be_added_again() -> None:
    rewriter = Rewriter(GRAPH, "test")
    (first, _, second, *_) = GRAPH.nodes
    rewriter.nodes.append(first)
    assert rewriter.definition(first.results[0]) is first
    rewriter.take_back(0)
    rewriter.nodes.append(second)
    assert rewriter.definition(second.results[0]) is second


def test_uses_are_counted_each_time_and_as_outputs() -> None:
    counts: dict[str, int] = {}

    def take_note(node: Node, operands: tuple[Operand, ...], rewriter: Rewriter) -> None:
        counts.update((value.hint, rewriter.uses(value)) for value in node.results)

    observe(GRAPH, take_note)
    assert counts == {"a": 3, "b": 1, "c": 1, "d": 2}


def test_what_stands_for_a_value_is_used_where_it_was() -> None:
    used: list[int] = []

    def rule(
        node: Node, operands: tuple[Operand, ...], rewriter: Rewriter
    ) -> tuple[Value, ...] | tuple[Operand, ...] | None:
        used.append(rewriter.uses(operands[0]))
        if node.results[0].hint == "a":
            inner = rewriter.add(SCALE, operands, {"factor": 1}, at=node.source)
            assert rewriter.uses(inner[0]) == 1
            return rewriter.add(SCALE, inner, {"factor": -1}, at=node.source)
        return operands if node.results[0].hint == "c" else None

    rewrite(GRAPH, rule, "test")
    # %x once; what stands for %a three times; %b once; %b for %c too, by %c itself and by %d.
    assert used == [1, 3, 1, 2]


def test_a_nested_graph_has_uses_and_definitions_of_its_own() -> None:
    graph = parse(
        """graph f on 1 replica, stage spmd
(%i: i32[] mirrored, %x: f32[2] mirrored) {
  %n = jax.neg(%x) : f32[2] mirrored
  %r = cond(%i, %n) : f32[2] mirrored
    branch_0(%a: f32[2] mirrored) {
      %b = jax.mul(%a, %a) {out_dtype=none} : f32[2] mirrored
      return %b
    }
    branch_1(%c: f32[2] mirrored) {
      return %c
    }
  return %r
}""",
        ops=resolve,
    )
    seen: list[tuple[str, int, bool]] = []

    def take_note(node: Node, operands: tuple[Operand, ...], rewriter: Rewriter) -> None:
        operand = operands[-1]
        defined = rewriter.definition(operand) is not None
        seen.append((node.op.name, rewriter.uses(operand), defined))

    observe(graph, take_note)
    assert seen == [("jax.neg", 1, False), ("jax.mul", 2, False), ("cond", 1, True)]


def test_a_rule_may_be_written_for_any_builder() -> None:
    def rule(node: Node, operands: tuple[Operand, ...], builder: Builder) -> None:
        return None

    assert rewrite(GRAPH, rule, "nothing") is GRAPH
