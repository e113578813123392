"""The difference of two graphs is that of their structure, whatever things are called."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdist.ir.graph import Graph, Node
from graphdist.ir.parser import parse
from graphdist.ir.verifier import verify
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.viz.graph_diff import diff, diffs
from tests.viz.graphs import chain

TEXT = """graph f on 2 replicas, stage spmd
(%x: f32[3] per_replica) {
  %a = jax.neg(%x) : f32[3] per_replica
  %b = all_reduce(%a) {reducer="sum", group_size=2} : f32[3] mirrored
  %c = jax.mul(%b, 2.0:f32) : f32[3] mirrored
  %d = jax.exp(%c) : f32[3] mirrored
  return %d
}"""


def counts(other: str) -> tuple[int, int, int, int, int]:
    change = diff(parse(TEXT), parse(other))
    return (
        len(change.added),
        len(change.removed),
        len(change.rewired),
        len(change.changed),
        change.kept,
    )


def test_a_graph_does_not_differ_from_itself_under_other_names() -> None:
    renamed = TEXT
    for name in "abcd":
        renamed = renamed.replace(f"%{name} ", f"%long_{name} ").replace(
            f"%{name})", f"%long_{name})"
        )
        renamed = renamed.replace(f"%{name},", f"%long_{name},")
    renamed = renamed.replace("return %d", "return %long_d")
    assert counts(renamed) == (0, 0, 0, 0, 4)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("%c = jax.mul(%b, 2.0:f32)", "%c = jax.mul(%b, 3.0:f32)", (0, 0, 1, 0, 3)),
        ('reducer="sum"', 'reducer="max"', (0, 0, 0, 1, 3)),
        ("%d = jax.exp(%c)", "%d = jax.exp(%b)", (0, 0, 1, 0, 3)),
        ("%d = jax.exp(%c)", "%d = jax.sin(%c)", (1, 1, 0, 0, 3)),
    ],
    ids=["literal", "parameter", "wiring", "operation"],
)
def test_each_kind_of_change_is_told(
    old: str, new: str, expected: tuple[int, int, int, int, int]
) -> None:
    assert old in TEXT
    assert counts(TEXT.replace(old, new)) == expected


def test_a_node_put_between_rewires_its_user_alone() -> None:
    line = "  %b = all_reduce"
    other = TEXT.replace(line, f"  %n = jax.sin(%a) : f32[3] per_replica\n{line}", 1)
    assert counts(other.replace("all_reduce(%a)", "all_reduce(%n)")) == (1, 0, 1, 0, 3)


def test_a_pass_that_changes_nothing_has_no_difference() -> None:
    graph = chain(30)
    assert not diff(graph, eliminate_dead_code(graph))


def test_what_a_pass_removes_is_found() -> None:
    dead = parse(TEXT.replace("  return", "  %e = jax.sin(%a) : f32[3] per_replica\n  return"))
    change = diff(dead, eliminate_dead_code(dead))
    assert [node.op.name for node in change.removed] == ["jax.sin"]
    assert not change.added
    assert not change.rewired


def some_graph(rng: random.Random) -> Graph:
    """Return a graph of three inputs and six nodes, many of them equal."""
    names = ["%i0", "%i1", "%i2"]
    text = "graph f on 1 replica, stage spmd\n("
    text += ", ".join(f"{name}: f32[3] mirrored" for name in names) + ") {\n"
    for number in range(6):
        op = rng.choice(["neg", "exp"])
        text += f"  %n{number} = jax.{op}({rng.choice(names)}) : f32[3] mirrored\n"
        names.append(f"%n{number}")
    return parse(f"{text}  return {names[-1]}\n}}")


def part_of(graph: Graph, rng: random.Random) -> Graph:
    """Return some of the nodes of a graph, the very ones, on inputs in some order."""
    defined, nodes = set[object](graph.inputs), []
    for node in graph.nodes:
        if rng.random() < 0.7 and defined.issuperset(node.operands):
            nodes.append(node)
            defined.update(node.results)
    used = {operand for node in nodes for operand in node.operands}
    kept = [one for one in graph.inputs if one in used or rng.random() < 0.3]
    inputs = kept or list(graph.inputs)
    rng.shuffle(inputs)
    outputs = nodes[-1].results if nodes else inputs[:1]
    return graph.replace(inputs=tuple(inputs), nodes=tuple(nodes), outputs=tuple(outputs))


@given(st.integers(0, 2**32))
def test_a_sequence_differs_as_each_two_of_it_do(seed: int) -> None:
    rng = random.Random(seed)
    some = some_graph(rng), some_graph(rng)
    graphs = [part_of(rng.choice(some), rng) for _ in range(20)]
    for graph in graphs:
        verify(graph)
    alone = [str(diff(before, after)) for before, after in pairwise(graphs)]
    assert [str(one) for one in diffs(graphs)] == alone


def test_an_input_of_a_nested_graph_that_is_a_value_of_the_outer_one() -> None:
    text = """graph f on 2 replicas, stage spmd
(%u: f32[3] mirrored, %p: i32[] mirrored, %x: f32[3] mirrored) {
  %y = cond(%p, %x) : f32[3] mirrored
    branch_0(%a: f32[3] mirrored) {
      %b = jax.neg(%a) : f32[3] mirrored
      return %b
    }
  %z = jax.sin(%x) : f32[3] mirrored
  return %z, %y
}"""
    graph = parse(text)
    chosen, sine = graph.nodes
    (branch,) = chosen.graphs
    x = graph.inputs[2]
    (negation,) = branch.nodes
    inner = Node(negation.op, (x,), negation.params, (), negation.results)
    shared = branch.replace(inputs=(x,), nodes=(inner,))
    outer = Node(chosen.op, chosen.operands, chosen.params, (shared,), chosen.results)
    before = graph.replace(nodes=(outer, sine))
    verify(before)
    after = parse(text.replace("  %z", "  %w = jax.sin(%u) : f32[3] mirrored\n  %z"))
    change = diff(before, after)
    assert [node.results[0].hint for node in change.added] == ["w"]
    assert (len(change.rewired), change.kept) == (0, 3)
