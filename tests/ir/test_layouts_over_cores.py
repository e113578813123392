"""The layouts over cores that are found from the nodes of a split program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: pytrees

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import graphdist as gd
from graphdist.errors import VerifyError
from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph
from graphdist.ir.layouts_over_cores import layouts_over_cores
from graphdist.ir.parser import parse
from graphdist.ir.verifier import verify
from tests.cores.training import Params, strategy_on

ROWS, LENGTH, WIDTH, HEADS = 2, 8, 16, 4


def split_graphs(
    replica_fn: Callable[..., Any], *arguments: Any, cores: int = 2, **shapes: Any
) -> dict[str, Graph]:
    """Return the program behind each pass from the split on; `shapes` are those of variables."""
    strategy = strategy_on(2, cores)
    with strategy.scope():
        variables = {
            name: gd.Variable(np.ones(shape, "f"), name=name, cores=asked)
            for name, (shape, asked) in shapes.items()
        }

    @gd.function
    def step(*arguments: Any) -> Any:
        def replica(*own: Any) -> Any:
            return replica_fn(strategy, gd.read(variables), *own)

        return strategy.run(replica, args=arguments)

    history = step.trace(*arguments).lower().history
    return {each.pass_name: each.graph for each in history if each.graph.is_split}


def found(graph: Graph, name: str) -> list[str]:
    """Return the layouts of the first results of operations of a name, in order."""
    layouts = layouts_over_cores(graph)
    return [
        str(layouts[node.results[0]]).removesuffix(" over core")
        for node in walk(graph)
        if node.op.name == f"jax.{name}"
    ]


def rows(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, "f")


def attention(strategy: gd.MirroredStrategy, p: Params, x: jax.Array) -> Any:
    def loss(qkv: jax.Array, out: jax.Array) -> jax.Array:
        q, k, v = jnp.split(jnp.tanh(x @ qkv), 3, axis=-1)
        q, k, v = (each.reshape(ROWS, LENGTH, HEADS, -1) for each in (q, k, v))
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return jnp.mean((mixed.reshape(ROWS, LENGTH, -1) @ out) ** 2)

    return jax.grad(loss, (0, 1))(p["qkv"], p["out"])


@pytest.mark.parametrize("cores", [2, 4])
def test_heads_of_fused_weights_are_sharded(cores: int) -> None:
    graphs = split_graphs(
        attention,
        rows(ROWS, LENGTH, WIDTH),
        cores=cores,
        qkv=((WIDTH, 3 * WIDTH), (None, "sharded")),
        out=((WIDTH, WIDTH), ("sharded", None)),
    )
    for name, graph in graphs.items():
        assert found(graph, "tanh") == ["sharded(2)"], name
        assert found(graph, "split") == ["sharded(2)"], name
        assert "None" not in found(graph, "reshape"), name
        assert set(found(graph, "exp")) == {"sharded(1)"}, name  # heads
        verify(graph, full=True)


def image_loss(strategy: gd.MirroredStrategy, p: Params, x: jax.Array) -> jax.Array:
    def loss(kernel: jax.Array) -> jax.Array:
        image = strategy.experimental_split_to_logical_devices(x, (1, 2, 1, 1))
        mixed = lax.conv_general_dilated(
            image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        pooled = lax.reduce_window(
            jax.nn.relu(mixed), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
        return jnp.mean(pooled**2)

    return jax.grad(loss)(p["kernel"])


def test_images_stay_sharded_and_gradients_of_their_weights_are_terms() -> None:
    graphs = split_graphs(image_loss, rows(1, 8, 8, 3), kernel=((3, 3, 3, 4), None))
    graph = graphs["split_over_cores"]
    assert found(graph, "conv_general_dilated") == ["sharded(1)", "partial(sum)"]
    assert found(graph, "reduce_window_max") == ["sharded(1)"]
    assert found(graph, "select_and_scatter_add") == ["sharded(1)"]
    assert set(found(graph, "mul")) <= {"sharded(1)", "mirrored"}
    verify(graph, full=True)


def rows_of_a_table(strategy: gd.MirroredStrategy, p: Params, at: jax.Array) -> Any:
    return jax.grad(lambda table: jnp.sum(table[at] ** 2))(p["table"])


def test_rows_that_cores_hold_are_found_and_written_on_their_shards() -> None:
    graphs = split_graphs(
        rows_of_a_table, np.arange(3, dtype="i"), table=((8, 4), ("sharded", None))
    )
    graph = graphs["split_over_cores"]
    assert found(graph, "scatter-add") == ["sharded(0)"]
    verify(graph, full=True)


def loops(strategy: gd.MirroredStrategy, p: Params, x: jax.Array) -> Any:
    def body(sums: Any, w: jax.Array) -> Any:
        hidden, total = sums
        hidden = jnp.tanh(hidden * w)
        return (hidden, total + jnp.sum(hidden)), hidden

    shard = strategy.experimental_split_to_logical_devices(x, (1, 2))
    first = (shard, jnp.float32(0))
    (hidden, total), stacked = lax.scan(body, first, p["layers"])
    counted = lax.while_loop(lambda i: i < 3, lambda i: i + 1, jnp.int32(0))
    chosen = lax.cond(counted > 2, lambda y: y + 1, lambda y: 2 * y, hidden)
    return total, stacked, chosen


def test_carries_of_loops_and_results_of_branches() -> None:
    graph = split_graphs(loops, rows(2, 8), layers=((3, 1, 8), (None, None, "sharded")))[
        "split_over_cores"
    ]
    layouts = layouts_over_cores(graph)
    of_loop = next(node for node in walk(graph) if node.op.name == "scan")
    kinds = [str(layouts[value]).removesuffix(" over core") for value in of_loop.results]
    assert kinds == ["sharded(1)", "partial(sum)", "sharded(2)"]
    branch = next(node for node in walk(graph) if node.op.name == "cond")
    assert str(layouts[branch.results[0]]) == "sharded(1) over core"
    verify(graph, full=True)


TERMS = """graph f on 1 replica split over 2 cores, stage logical
(%x: f32[4,6] mirrored) {{
  %shard = slice_of_core(%x) {{axis=1, num_cores=2}} : f32[4,3] mirrored
  %y = jax.reduce_sum(%shard) {{axes=(1,), out_sharding=none}} : f32[4] mirrored
  %largest = jax.reduce_max(%shard) {{axes=(1,), out_sharding=none}} : f32[4] mirrored
  %z = {operation} : f32[4] mirrored
  return %z
}}"""


@pytest.mark.parametrize(
    ("operation", "what"),
    [
        ("jax.neg(%y)", "%z is partial(sum) on the cores of a replica"),
        ("jax.exp(%y) {accuracy=none}", "%z differs between cores of a replica"),
        ("jax.neg(%largest)", "%z differs between cores of a replica"),
        ("rotate_over_cores(%y) {ahead=1, num_cores=2}", "%z differs between cores of a replica"),
    ],
)
def test_what_leaves_a_program_is_the_same_on_each_core(operation: str, what: str) -> None:
    graph = parse(TERMS.format(operation=operation))
    verify(graph)
    with pytest.raises(VerifyError) as raised:
        verify(graph, full=True)
    assert what in str(raised.value)


def test_a_reduced_term_is_the_same_on_each_core() -> None:
    operation = 'all_reduce_over_cores(%y) {reducer="sum", num_cores=2}'
    verify(parse(TERMS.format(operation=operation)), full=True)


def test_a_program_that_is_not_split_has_no_layouts_over_cores() -> None:
    assert not layouts_over_cores(parse("graph f on 1 replica, stage logical\n() {\n  return\n}"))
