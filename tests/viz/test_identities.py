"""Which nodes of several graphs are one node of the picture, and in which group it stays."""

from __future__ import annotations

from itertools import pairwise
from typing import Any  # Any: JSON

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import graphdist as gd
from graphdist.ir.graph import Graph
from graphdist.ir.parser import parse
from graphdist.viz.document import program_document
from graphdist.viz.graph_diff import diff
from graphdist.viz.model import model_of
from graphdist.viz.program import ShownProgram, ShownStep, program_of
from tests.viz.graphs import chain, nested

TEXT = """graph f on 1 replica, stage spmd
(%x: f32[3] mirrored) {
  %a = jax.neg(%x) : f32[3] mirrored
  %b = jax.exp(%a) : f32[3] mirrored
  %c = jax.sin(%b) : f32[3] mirrored
  return %c
}"""


def document_of(*graphs: Graph) -> Any:
    steps = tuple(ShownStep(str(number), graph) for number, graph in enumerate(graphs))
    return program_document(ShownProgram(steps))


def names_of(document: Any) -> list[dict[int, str]]:
    """Return the operations of each graph by their identities."""
    facts = document["facts"]
    return [
        {node["identity"]: facts[node["facts"]]["op"] for node in graph["nodes"]}
        for graph in document["graphs"]
    ]


def traced() -> Any:
    """Return the document of a step with a variable, loops and scopes, after all passes."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        weights = gd.Variable(jnp.ones((4, 4)), name="weights")

    def replica(x: jax.Array) -> None:
        def loss(value: jax.Array) -> jax.Array:
            with jax.named_scope("model"):
                return jnp.sum(lax.scan(lambda c, _: (jnp.tanh(c @ value), None), x, length=3)[0])

        grads = gd.get_replica_context().all_reduce("MEAN", jax.grad(loss)(weights.read_value()))
        weights.assign_sub(grads)

    step = gd.function(lambda x: strategy.run(replica, args=(x,)))
    return program_document(program_of(step.trace(jnp.ones((4, 4))).lower()))


def test_a_node_that_is_kept_has_one_identity() -> None:
    other = TEXT.replace("  %c", "  %n = jax.cos(%b) : f32[3] mirrored\n  %c").replace(
        "jax.sin(%b)", "jax.sin(%n)"
    )
    before, after = names_of(document_of(parse(TEXT), parse(other)))
    assert list(after.values()) == [
        *("input", "jax.neg", "jax.exp", "jax.cos", "jax.sin", "return"),
    ]
    assert before.items() < after.items()
    assert [*sorted(after)] == list(after)  # in the order of the program


def test_a_node_that_comes_back_has_its_identity_again() -> None:
    graph = parse(TEXT)
    other = parse(TEXT.replace("jax.sin", "jax.cos"))
    document = document_of(graph, other, graph)
    assert [step["graph"] for step in document["passes"]] == [0, 1, 0]
    first, second = names_of(document)
    assert len(first.keys() & second.keys()) == 4
    assert "pairs" in document["passes"][2]


def test_identities_are_unique_in_each_graph_and_keep_their_operation() -> None:
    document = traced()
    found: dict[int, str] = {}
    for graph, names in zip(document["graphs"], names_of(document), strict=True):
        assert len(names) == len(graph["nodes"])
        for identity, op in names.items():
            assert found.setdefault(identity, op) == op
    assert len(found) == len(document["identities"])


def test_the_body_of_a_loop_is_named_by_the_identity_of_the_loop() -> None:
    document = traced()
    last = document["graphs"][-1]
    loops = [node for node in last["nodes"] if "trips" in document["facts"][node["facts"]]]
    assert loops
    for loop in loops:
        body = [node for node in last["nodes"] if node.get("parent") == last["nodes"].index(loop)]
        assert body
        for node in body:
            path = document["groups"][document["identities"][node["identity"]]]
            assert loop["identity"] in path


def test_pairs_are_the_partners_of_the_difference() -> None:
    document = traced()
    seen = 0
    for before, step in pairwise(document["passes"]):
        if "pairs" not in step:
            assert before["graph"] == step["graph"]
            continue
        graphs = [document["graphs"][each["graph"]]["nodes"] for each in (before, step)]
        pairs = {
            old + number: new + number
            for old, new, length in step["pairs"]
            for number in range(length)
        }
        change = step.get("diff", {"removed": [], "added": [], "rewired": [], "changed": []})
        assert not set(pairs.values()) & set(change["added"])
        assert {tuple(pair) for pair in change["rewired"]} <= pairs.items()
        assert {tuple(pair) for pair in change["changed"]} <= pairs.items()
        assert pairs[len(graphs[0]) - 1] == len(graphs[1]) - 1
        seen += 1
    assert seen >= 3


def test_a_read_of_a_variable_is_followed_to_its_input() -> None:
    document = traced()
    place = next(n for n, s in enumerate(document["passes"]) if s["name"] == "place_variables")
    before, after = (
        document["graphs"][step["graph"]]["nodes"] for step in document["passes"][place - 1 :][:2]
    )
    ops = [document["facts"][node["facts"]]["op"] for node in before]
    followed = [
        new
        for old, start, length in document["passes"][place]["pairs"]
        for number, new in enumerate(range(start, start + length))
        if ops[old + number] == "read"
    ]
    assert followed
    assert {document["facts"][after[new]["facts"]]["op"] for new in followed} == {"variable"}


def test_every_node_of_a_graph_is_its_own_partner() -> None:
    graph = nested()
    change = diff(graph, graph)
    assert change.partners == {node: node for node in model_of(graph).position_of}
    assert change.kept == len(change.partners)


def test_a_body_that_is_shared_has_partners() -> None:
    graph = nested()
    scan = next(node for node in graph.nodes if node.op.name == "scan")
    copy = type(scan)(
        scan.op, scan.operands, scan.params, scan.graphs, scan.results, scan.source, scan.origin
    )
    other = graph.replace(nodes=tuple(copy if node is scan else node for node in graph.nodes))
    change = diff(graph, other)
    (body,) = scan.graphs
    assert change.partners[scan] is copy
    assert all(change.partners[node] is node for node in body.nodes)


@pytest.mark.parametrize("sizes", [(1, 1), (30, 200), (200, 30), (700, 750)])
def test_groups_of_all_passes_are_small(sizes: tuple[int, int]) -> None:
    document = document_of(*map(chain, sizes))
    members: dict[tuple[str, ...], int] = {}
    for group in document["identities"]:
        path = tuple(document["groups"][group])
        members[path] = members.get(path, 0) + 1
    assert max(members.values()) <= 60
