"""Which group each node is drawn in: rule by rule."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Stage, Value
from graphdist.ir.ops import SCALE
from graphdist.ir.source import UNKNOWN, Frame, Source, at_line
from graphdist.ir.types import PER_REPLICA, Type
from graphdist.viz.groups import CROWD, GroupPath, scope_path
from graphdist.viz.identities import paths
from graphdist.viz.model import model_of
from tests.viz.graphs import nested


def groups_of(*sources: Source, origin: str = "") -> list[tuple[str, ...]]:
    """Return the groups of a chain of nodes with these sources, its input and return left out."""
    builder, value = Builder(origin), Value(Type("f32", (2,), PER_REPLICA), "x")
    first = value
    for source in sources:
        (value,) = builder.add(SCALE, (value,), {"factor": 0.5}, at=source)
    graph = Graph("chain", Stage.SPMD, 2, (first,), tuple(builder.nodes), (value,), (), (True,))
    _, *groups, _ = paths(model_of(graph))
    return groups


def called(*frames: tuple[str, int], scope: str = "") -> Source:
    """Return the source of a node within calls: functions and lines, the innermost first."""
    found = tuple(Frame("step.py", line, function) for function, line in frames)
    return Source(lambda: (found, scope))


def test_a_named_scope_comes_before_functions() -> None:
    in_scope = called(("dense", 3), ("step", 9), scope="encoder/layer1")
    outside = called(("loss", 5), ("step", 8))
    assert groups_of(in_scope, outside)[0] == ("encoder", "layer1")


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ("", ()),
        ("jvp()", ()),
        ("jvp(encoder)", ("encoder",)),
        ("transpose(jvp(encoder))/mlp", ("backward", "encoder", "mlp")),
        ("vmap(transpose(jvp(a)))/jvp(b)", ("backward", "a", "b")),
        ("jvp(mlp/~/linear_0)/a", ("mlp", "~", "linear_0", "a")),
        ("transpose(jvp(mlp/~/linear_0))", ("backward", "mlp", "~", "linear_0")),
        ("dense(3)/mlp", ("dense(3)", "mlp")),
        ("encoder/encoder/mlp", ("encoder", "encoder", "mlp")),
    ],
)
def test_what_differentiation_made_is_below_backward(scope: str, path: GroupPath) -> None:
    assert scope_path(scope) == path


def test_functions_that_all_nodes_share_are_left_out() -> None:
    one_call = called(("dense", 3), ("step", 9), ("train", 20))
    another = called(("dense", 3), ("step", 10), ("train", 20))
    assert groups_of(one_call, another) == [
        ("dense (called in line 9)",),
        ("dense (called in line 10)",),
    ]


def test_without_functions_of_its_own_a_node_goes_by_its_line() -> None:
    assert groups_of(called(("step", 3)), called(("step", 4))) == [("step.py:3",), ("step.py:4",)]


def test_a_node_without_a_line_goes_by_its_pass_or_its_neighbour() -> None:
    assert groups_of(UNKNOWN, origin="shard_update") == [("shard_update",)]
    here = at_line("step.py", 3, "step", "encoder")
    assert groups_of(here, UNKNOWN) == [("encoder",)] * 2
    assert groups_of(UNKNOWN, here) == [("encoder",)] * 2


def test_bodies_are_below_their_nodes() -> None:
    model = model_of(nested())
    for record, path in zip(model.records, paths(model), strict=True):
        if record.parent >= 0:
            parent = model.records[record.parent]
            assert f"{parent.facts.op} {parent.id}" in path


@pytest.mark.parametrize("size", [CROWD, CROWD + 1, CROWD**2 + 1])
def test_no_group_is_crowded(size: int) -> None:
    groups = groups_of(*[called(("step", 3), scope="encoder")] * size)
    assert all(path[0] == "encoder" for path in groups)
    members = Counter(groups)
    inner = Counter(path[:depth] for path in members for depth in range(1, len(path)))
    assert max(members.values()) <= CROWD
    assert max(inner.values(), default=0) <= CROWD**2
    assert (len(members) == 1) == (size <= CROWD)


def test_a_crowd_is_cut_by_lines_first() -> None:
    sources = [called(("step", 1 + number % 2), scope="encoder") for number in range(CROWD + 2)]
    assert set(groups_of(*sources)) == {("encoder", "step.py:1"), ("encoder", "step.py:2")}


def test_recomputed_layers_are_in_their_own_scopes() -> None:
    def layer(weights: jax.Array, x: jax.Array) -> jax.Array:
        with jax.named_scope("dense"):
            return jnp.tanh(x @ weights)

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        with jax.named_scope("model"):
            for number, own in enumerate(weights):
                with jax.named_scope(f"layer{number}"):
                    x = jax.checkpoint(layer)(own, x)
        return jnp.sum(x)

    step = gd.function(lambda weights, x: jax.grad(loss)(weights, x))
    model = model_of(step.trace([jnp.eye(3)] * 2, jnp.ones((2, 3))).graph)
    found = Counter(
        path
        for record, path in zip(model.records, paths(model), strict=True)
        if record.facts.op == "jax.tanh"
    )
    assert found == {
        ("model", "layer0", "dense"): 1,
        ("model", "layer1", "dense"): 1,
        ("backward", "model", "layer0", "recomputed", "dense"): 1,
        ("backward", "model", "layer1", "recomputed", "dense"): 1,
    }


def test_calls_keep_the_scope_around_them() -> None:
    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        with jax.named_scope("inner"):
            return jnp.sin(x)

    def replica(x: jax.Array) -> jax.Array:
        with jax.named_scope("outer"):
            return inner(x)

    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    for step in (replica, lambda x: strategy.run(replica, args=(x,))):
        graph = gd.function(step).trace(jnp.ones(3)).graph
        (sine,) = [node for node in graph.nodes if node.op.name == "jax.sin"]
        assert sine.source.scope == "outer/inner"
