"""Rows are added to tables, and not to zeros that are added to tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: arrays

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph
from graphdist.passes import pipelines

ROWS, WIDTH, BATCH = 512, 16, 8
NUMBERS = np.random.default_rng(0)
TABLE = NUMBERS.normal(0, 0.1, (ROWS, WIDTH)).astype("f")
INDICES = NUMBERS.integers(0, ROWS, BATCH).astype(np.int32)
OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.1),
    "schedule": lambda: optax.sgd(optax.linear_schedule(0.1, 0.0, 10)),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
}


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send rows of small tables, too."""
    monkeypatch.setattr(pipelines, "FEWEST_BYTES_SAVED", 0)


def zeros_of_tables(graph: Graph, dtype: str = "f32") -> int:
    """Return how many arrays of the table's size are made of a number."""
    return sum(
        node.op.name == "jax.broadcast_in_dim" and node.results[0].type.dtype == dtype
        for node in walk(graph)
        for value in node.results
        if value.type.shape[-2:] == (ROWS, WIDTH)
    )


def stepped(
    loss: Callable[[Any, Any], Any],
    optimizer: optax.GradientTransformation,
    strategy: gd.Strategy,
    table: Any = TABLE,
) -> tuple[Graph, np.ndarray]:
    """Return the graph of a step, and the table behind two steps."""
    with strategy.scope():
        params: Any = gd.variables(table)
        state = gd.variables(optimizer.init(table))

    @gd.function
    def step(indices: Any) -> None:
        def replica_fn(indices: Any) -> None:
            gradient = jax.grad(loss)(gd.read(params), indices)
            gradient = gd.get_replica_context().all_reduce("MEAN", gradient)
            updates, new = optimizer.update(gradient, gd.read(state))
            gd.assign(state, new)
            gd.assign(params, optax.apply_updates(gd.read(params), updates))

        strategy.run(replica_fn, args=(indices,))

    (batch,) = strategy.experimental_distribute_dataset([INDICES])
    for _ in range(2):
        step(batch)
    return step.trace(batch).lower().graph, np.asarray(gd.read(params))


def by_jax(
    loss: Callable[[Any, Any], Any], optimizer: optax.GradientTransformation, table: Any = TABLE
) -> np.ndarray:
    state = optimizer.init(table)
    for _ in range(2):
        updates, state = optimizer.update(jax.grad(loss)(table, INDICES), state)
        table = optax.apply_updates(table, updates)
    return np.asarray(table)


def looked_up(table: Any, indices: Any) -> Any:
    return jnp.mean(jnp.tanh(table[indices]) ** 2)


def tied(table: Any, indices: Any) -> Any:
    return jnp.mean(jax.nn.logsumexp(table[indices] @ table.T, axis=1))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("replicas", [1, 2])
def test_gradient_descent_moves_rows(name: str, replicas: int) -> None:
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])
    graph, found = stepped(looked_up, OPTIMIZERS[name](), strategy)
    np.testing.assert_allclose(found, by_jax(looked_up, OPTIMIZERS[name]()), rtol=1e-5, atol=1e-6)
    assert not zeros_of_tables(graph)


def test_tied_embeddings_get_rows_added_to_the_gradient_of_the_logits() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    graph, found = stepped(tied, optax.adam(0.1), strategy)
    np.testing.assert_allclose(found, by_jax(tied, optax.adam(0.1)), rtol=1e-4, atol=1e-5)
    assert not zeros_of_tables(graph)


def test_loops_add_rows_to_what_they_carry() -> None:
    def in_turn(table: Any, indices: Any) -> Any:
        def turn(h: Any, pair: Any) -> Any:
            return jnp.tanh(h + table[pair]), None

        return jnp.mean(jax.lax.scan(turn, jnp.zeros((2, WIDTH)), indices.reshape(-1, 2))[0])

    strategy = gd.MirroredStrategy(["cpu:0"])
    graph, found = stepped(in_turn, optax.sgd(0.1), strategy)
    np.testing.assert_allclose(found, by_jax(in_turn, optax.sgd(0.1)), rtol=1e-5, atol=1e-6)
    inside = [node for each in graph.nodes for nested in each.graphs for node in walk(nested)]
    assert any(node.op.name == "jax.scatter-add" for node in inside)
    assert not any(
        node.op.name == "jax.broadcast_in_dim" and node.results[0].type.shape == (ROWS, WIDTH)
        for node in inside
    )


def test_gradients_with_another_use_are_left() -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(0.01), optax.sgd(0.1))
    strategy = gd.MirroredStrategy(["cpu:0"])
    graph, found = stepped(looked_up, optimizer, strategy)
    np.testing.assert_allclose(found, by_jax(looked_up, optimizer), rtol=1e-5, atol=1e-6)
    assert zeros_of_tables(graph) == 1


def test_tables_of_16_bits_are_left() -> None:
    """Many small rows that are added one by one would be rounded away."""
    table = TABLE.astype(jnp.bfloat16)
    graph, _ = stepped(looked_up, optax.sgd(0.1), gd.MirroredStrategy(["cpu:0"]), table)
    assert zeros_of_tables(graph, "bf16") == 1
