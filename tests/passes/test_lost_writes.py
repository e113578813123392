"""Updates that servers make, in other words; and those of which writes of others would be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: users' functions

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree

import graphdist as gd
from graphdist.ir.graph import Graph
from graphdist.passes import pipeline
from graphdist.passes.manager import run_passes
from graphdist.passes.servers.lost_writes import lost_writes
from tests.passes.cut_execution import TARGET, check_cut, step_graph

X = jax.ShapeDtypeStruct((5, 3), np.float32)


def variables() -> dict[str, gd.Variable]:
    return {
        "w": gd.Variable(jnp.ones((3, 2)), name="w"),
        "b": gd.Variable(jnp.ones(2), name="b"),
    }


def loss_of(params: Any, x: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ params["w"]) + params["b"] - 1) ** 2)


def graph_of(step: Callable[..., Any], made: Any, *arguments: Any) -> Graph:
    """Return a step on variables as one device runs it, placed and simplified."""
    traced = gd.function(lambda *given: step(made, *given)).trace(*arguments)
    return run_passes(traced.graph, pipeline(TARGET))[-1].graph


def branch(v: Any, x: Any) -> Any:
    loss, grads = jax.value_and_grad(loss_of)(gd.read(v), x)
    finite = jnp.isfinite(loss)
    new = lax.cond(finite, lambda: v["w"] - 0.1 * grads["w"], lambda: v["w"].read_value())
    v["w"].assign(new)
    return loss


def branch_over_a_tree(v: Any, x: Any) -> None:
    params = gd.read(v)
    grads = jax.grad(loss_of)(params, x)
    norm = optax.tree.norm(grads)
    new = lax.cond(
        norm < 10,
        lambda p, g: jax.tree.map(lambda a, b: a - 0.1 * b, p, g),
        lambda p, g: p,
        params,
        grads,
    )
    gd.assign(v, new)


def assigned_in_a_branch(v: Any, x: Any) -> None:
    lax.cond(x[0, 0] > 0, lambda: v["b"].assign_add(x[0, :2], read_value=False), lambda: None)


def branch_in_a_branch(v: Any, x: Any) -> None:
    old = v["b"].read_value()
    inner = lambda: lax.cond(x[0, 1] > 0, lambda: old + x[0, :2], lambda: old * 2)  # noqa: E731
    v["b"].assign(lax.cond(x[0, 0] > 0, inner, lambda: old))


def switch(v: Any, x: Any) -> None:
    old = v["b"].read_value()
    ways = [lambda: old, lambda: old + x[0, :2], lambda: old * 0]
    v["b"].assign(lax.switch(jnp.int32(x[0, 0]), ways))


def best(v: Any, x: Any) -> None:
    old = v["b"].read_value()
    v["b"].assign(jnp.where(x[0, :2] < old, x[0, :2], old))


def raveled(v: Any, x: Any) -> Any:
    flat, unravel = ravel_pytree(gd.read(v))
    loss, gradient = jax.value_and_grad(lambda flat: loss_of(unravel(flat), x))(flat)
    new = jnp.where(jnp.isfinite(loss), flat - 0.1 * gradient, flat)
    gd.assign(v, unravel(new))
    return loss


def flattened(v: Any, x: Any) -> None:
    optimizer = optax.flatten(optax.sgd(0.1))
    params = gd.read(v)
    updates, _ = optimizer.update(jax.grad(loss_of)(params, x), optimizer.init(params))
    gd.assign(v, optax.apply_updates(params, updates))


def joined_by_hand(v: Any, x: Any) -> None:
    rows = jnp.concatenate([v["w"].read_value(), v["b"].read_value()[None]])
    new = rows * 0.9 + x[:4, :2]
    v["w"].assign(new[:3])
    v["b"].assign(new[3])


def added_to_rows(v: Any, x: Any) -> None:
    rows = x[:, 0].astype(jnp.int32)
    v["w"].assign(v["w"].read_value().at[rows].add(x[:, :2]))


@pytest.mark.parametrize(
    "step",
    [
        branch, branch_over_a_tree, assigned_in_a_branch, branch_in_a_branch, switch, best,
        raveled, flattened, joined_by_hand, added_to_rows,
    ],
)  # fmt: skip
def test_servers_make_the_update(step: Callable[..., Any]) -> None:
    graph = graph_of(step, variables(), X)
    cut = check_cut(graph, step.__name__)
    assert lost_writes(cut) == ()
    assert cut.together == ()
    assert all(update.graph.nodes for update in cut.updates)


def loop_over_data(v: Any, x: Any) -> None:
    def add(carry: Any, row: Any) -> Any:
        v["b"].assign_add(row[:2], read_value=False)
        return carry, None

    lax.scan(add, 0, x)


def local_steps(v: Any, x: Any) -> None:
    def turn(params: Any, row: Any) -> Any:
        grads = jax.grad(loss_of)(params, row[None])
        return jax.tree.map(lambda a, b: a - b, params, grads), None

    gd.assign(v, lax.scan(turn, gd.read(v), x)[0])


def gradient_in_a_branch(v: Any, x: Any) -> None:
    params = gd.read(v)
    better = lambda: params["w"] - jax.grad(loss_of)(params, x)["w"]  # noqa: E731
    new = lax.cond(x[0, 0] > 0, better, lambda: params["w"])
    v["w"].assign(new)


def rows_replaced(v: Any, x: Any) -> None:
    rows = x[:2, 0].astype(jnp.int32)
    old = v["w"].read_value()
    v["w"].assign(old.at[rows].set(old[rows] * 0.9 + x[:2, :2]))


def running_sums(v: Any, x: Any) -> None:
    v["b"].assign(jnp.cumsum(v["b"] + x[0, :2]))


def multiplied(v: Any, x: Any) -> None:
    v["w"].assign(x[:3] @ v["w"].read_value())


LOST = [loop_over_data, local_steps, gradient_in_a_branch, rows_replaced, running_sums, multiplied]


@pytest.mark.parametrize("step", LOST)
def test_an_update_that_loses_writes_is_found_with_its_line(step: Callable[..., Any]) -> None:
    graph = graph_of(step, variables(), X)
    found = lost_writes(check_cut(graph, step.__name__))
    assert found
    assert all("the worker computes its new value" in str(lost) for lost in found)
    assert all("test_lost_writes.py:" in str(lost) for lost in found)


def every_second_step(v: Any, x: Any) -> None:
    grads = jax.grad(loss_of)({"w": v["w"].read_value(), "b": v["b"].read_value()}, x)
    for name in "wb":
        old = v[name].read_value()
        is_second = v["n"].read_value() % 2 == 1
        v[name].assign(lax.cond(is_second, lambda a, g: a - g, lambda a, g: a, old, grads[name]))
    v["n"].assign_add(1)


def rate_by_steps(v: Any, x: Any) -> None:
    grads = jax.grad(loss_of)({"w": v["w"].read_value(), "b": v["b"].read_value()}, x)
    rate = jnp.where(v["n"].read_value() < 10, 0.1, 0.01)
    for name in "wb":
        v[name].assign_sub(rate * grads[name], read_value=False)
    v["n"].assign_add(1)


@pytest.mark.parametrize(
    ("step", "is_lost"),
    [(every_second_step, True), (rate_by_steps, False)],
)
def test_a_choice_by_a_count_that_the_worker_has_read(
    step: Callable[..., Any], is_lost: bool
) -> None:
    made = variables() | {"n": gd.Variable(0, name="n")}
    graph = graph_of(step, made, X)
    found = lost_writes(check_cut(graph, step.__name__))
    assert [lost.variable for lost in found] == (["w", "b"] if is_lost else [])
    assert all("is changed or not by what the worker has read" in str(lost) for lost in found)


@pytest.mark.parametrize("lowered", [True, False])
def test_gradients_added_up_by_optax_are_lost(lowered: bool) -> None:
    optimizer = optax.MultiSteps(optax.sgd(0.1), 2)
    graph = step_graph(("dense", "bias"), optimizer, lowered=lowered)
    found = lost_writes(check_cut(graph, "added up"))
    assert {lost.variable for lost in found} == {"dense", "bias"}
    finite = step_graph(("dense", "bias"), optax.apply_if_finite(optax.adam(0.1), 3))
    assert lost_writes(check_cut(finite, "finite")) == ()


def test_what_does_not_depend_on_the_variable_replaces_it() -> None:
    def step(v: Any, x: Any) -> None:
        v["b"].assign(jnp.sum(x) * v["w"].read_value()[0])

    graph = graph_of(step, variables(), X)
    assert lost_writes(check_cut(graph, "replaced")) == ()


def nothing(v: Any, loss: Any, x: Any) -> None:
    return None


def count(v: Any, loss: Any, x: Any) -> Any:
    return v["n"].assign_add(1)


def one_norm(v: Any, loss: Any, x: Any) -> Any:
    return jnp.sum(v["b"] * v["b"])  # before it is changed


def of_batch(v: Any, loss: Any, x: Any) -> Any:
    return jnp.mean(x)


@pytest.mark.parametrize("returned", [nothing, count, one_norm, of_batch, lambda v, loss, x: loss])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_are_sent_whatever_a_step_returns(
    returned: Callable[..., Any], momentum: float
) -> None:
    def step(v: Any, x: Any) -> Any:
        params = {"w": v["w"].read_value(), "b": v["b"].read_value()}
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        result = returned(v, loss, x)
        for name in "wb":
            change = grads[name]
            if momentum:
                v["m" + name].assign(momentum * v["m" + name] + change)
                change = v["m" + name].read_value()
            v[name].assign_sub(0.1 * change, read_value=False)
        return result

    made = variables() | {"n": gd.Variable(0, name="n")}
    slots = {
        f"m{name}": gd.Variable(jnp.zeros(v.shape), name=f"m{name}") for name, v in made.items()
    }
    graph = graph_of(step, made | slots, jax.ShapeDtypeStruct((100, 3), np.float32))
    cut = check_cut(graph, "returned")
    assert cut.bytes_written == 4 * (6 + 2)
    assert not {"mw", "mb"} & cut.variables_read


def test_a_gradient_made_element_by_element_is_sent_where_it_is_smaller() -> None:
    def step(v: Any, x: Any, y: Any) -> None:
        old = v["b"].read_value()
        v["b"].assign_sub(0.1 * (old * x - y) * x, read_value=False)

    vector = jax.ShapeDtypeStruct((2,), np.float32)
    assert check_cut(graph_of(step, variables(), vector, vector), "by element").bytes_written == 8


TABLE = np.arange(24, dtype=np.float32).reshape(8, 3)


def table_in_shards() -> gd.ShardedVariable:
    parts = [TABLE[:3], TABLE[3:6], TABLE[6:]]
    return gd.ShardedVariable([gd.Variable(part, name=f"t{i}") for i, part in enumerate(parts)])


def lookup(table: Any, rows: Any) -> Any:
    return jnp.take(table.read_value(), rows, axis=0).sum()


def lookup_by_index(table: Any, rows: Any) -> Any:
    return gd.read({"t": table})["t"][rows] * 2


def lookup_by_shard(table: Any, rows: Any) -> Any:
    return gd.nn.embedding_lookup(table, rows)


@pytest.mark.parametrize(
    ("step", "most"), [(lookup, 24), (lookup_by_index, 24), (lookup_by_shard, 3 * 24)]
)
def test_rows_of_shards_are_looked_up(step: Callable[..., Any], most: int) -> None:
    graph = graph_of(step, table_in_shards(), jax.ShapeDtypeStruct((2,), np.int32))
    assert check_cut(graph, step.__name__).bytes_read <= most


@pytest.mark.parametrize("optimizer", [optax.sgd(0.1), optax.adam(0.1)])
@pytest.mark.parametrize("returns", [True, False])
def test_shards_are_updated_apart_by_rows(optimizer: Any, returns: bool) -> None:
    table = table_in_shards()
    state = jax.tree.map(
        lambda leaf: gd.Variable(leaf) if leaf.ndim == 0 else table_in_shards(),
        optimizer.init(jnp.asarray(TABLE)),
    )

    def step(table: Any, rows: Any) -> Any:
        def loss_of(table: Any) -> Any:
            return jnp.mean((table[rows] @ jnp.ones(3) - 1) ** 2)

        loss, gradient = jax.value_and_grad(loss_of)(table.read_value())
        updates, new = optimizer.update(gradient, gd.read(state))
        gd.assign(table, optax.apply_updates(table.read_value(), updates))
        gd.assign(state, new)
        return loss if returns else None

    graph = graph_of(step, table, jax.ShapeDtypeStruct((2,), np.int32))
    cut = check_cut(graph, "shards")
    assert lost_writes(cut) == ()
    updates = [update for update in cut.updates if update.variables[0].startswith("t")]
    assert len(updates) == 3
    # Rows and their numbers to each shard, and the rates of an optimizer.
    assert all(update.bytes_written <= 24 + 8 + 8 for update in updates)
    assert cut.bytes_read <= 24 + 4
