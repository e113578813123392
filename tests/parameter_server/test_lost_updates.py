"""Updates of two workers at once: all are kept, or the step is refused with words that say why."""

from __future__ import annotations

from typing import Any  # Any: users' functions and pytrees

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree

import graphdist as gd
from graphdist.coordinator import ClusterCoordinator
from tests.passes import test_lost_writes as programs

COUNT = 12


def loop_over_data(strategy: Any) -> tuple[gd.Variable, Any]:
    """Return a variable, and a step that adds to it in a loop."""
    with strategy.scope():
        total = gd.Variable(0.0, name="total")

    @gd.function
    def step(rows: Any) -> None:
        def add(carry: Any, row: Any) -> Any:
            total.assign_add(row, read_value=False)
            return carry, None

        lax.scan(add, 0, rows)

    return total, step


@pytest.mark.long
@pytest.mark.parametrize("in_one", [False, True], ids=["a branch", "raveled"])
def test_gradients_of_two_workers_are_all_subtracted(
    coordinator: ClusterCoordinator, in_one: bool
) -> None:
    with coordinator.strategy.scope():
        made = programs.variables()

    @gd.function
    def step(x: Any) -> Any:
        params = gd.read(made)
        loss, grads = jax.value_and_grad(lambda p: -x * sum(map(jnp.sum, p.values())))(params)
        if in_one:
            flat, unravel = ravel_pytree(params)
            gd.assign(made, unravel(flat - ravel_pytree(grads)[0]))
        else:
            new = lambda: jax.tree.map(jnp.subtract, params, grads)  # noqa: E731
            gd.assign(made, lax.cond(jnp.isfinite(loss), new, lambda: params))
        return loss

    for _ in range(COUNT):
        coordinator.schedule(step, args=(np.float32(1),))
    coordinator.join()
    for variable in made.values():
        np.testing.assert_array_equal(variable, np.full(variable.shape, 1 + COUNT))


@pytest.mark.long
def test_changes_of_two_workers_are_all_kept(coordinator: ClusterCoordinator) -> None:
    with coordinator.strategy.scope():
        made = programs.variables()
    x = np.zeros((5, 3), np.float32)
    x[0] = 1, 1, 0
    for step in (programs.assigned_in_a_branch, programs.branch_in_a_branch, programs.switch):
        before = np.asarray(made["b"])
        on_workers = gd.function(lambda x, step=step: step(made, x))
        for _ in range(COUNT):
            coordinator.schedule(on_workers, args=(x,))
        coordinator.join()
        np.testing.assert_array_equal(made["b"], before + COUNT * x[0, :2])


@pytest.mark.long
def test_an_update_in_a_loop_is_refused_where_two_workers_would_lose_writes(
    coordinator: ClusterCoordinator,
) -> None:
    total, step = loop_over_data(coordinator.strategy)
    coordinator.schedule(step, args=(np.ones(3, np.float32),))
    with pytest.raises(gd.errors.UnsupportedError) as raised:
        coordinator.join()
    said = str(raised.value)
    assert "variable 'total' loses what other workers write meanwhile" in said
    assert "the worker computes its new value, from the value that it has read" in said
    assert "lax.scan(add, 0, rows)" in said
    assert "v.assign(jnp.where(condition, v - change, v))" in said
    assert "gd.ParameterServerStrategy(allow_lost_updates=True)" in said
    assert float(total) == 0
    assert "loses what other workers write" in str(
        coordinator.trace(step, args=(np.ones(3, np.float32),)).lower().explain()
    )


@pytest.mark.long
def test_one_worker_makes_it(alone: gd.ParameterServerStrategy) -> None:
    total, step = loop_over_data(alone)
    ClusterCoordinator(alone).schedule(step, args=(np.ones(3, np.float32),)).fetch()
    assert float(total) == 3


@pytest.mark.long
def test_two_workers_make_it_where_losses_are_allowed() -> None:
    strategy = gd.ParameterServerStrategy(num_workers=2, allow_lost_updates=True)
    total, step = loop_over_data(strategy)
    coordinator = ClusterCoordinator(strategy)
    for _ in range(COUNT):
        coordinator.schedule(step, args=(np.ones(3, np.float32),))
    coordinator.join()
    assert 3 <= float(total) <= 3 * COUNT
    strategy.shutdown()


@pytest.mark.long
def test_shards_stay_where_they_were_placed_and_rows_are_what_is_sent() -> None:
    partitioner = gd.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = gd.ParameterServerStrategy(
        num_workers=1, num_servers=2, variable_partitioner=partitioner
    )
    coordinator = ClusterCoordinator(strategy)
    initial = np.arange(64 * 16, dtype=np.float32).reshape(64, 16) / 100
    with strategy.scope():
        table: Any = gd.Variable(initial, name="table")  # a ShardedVariable

    @gd.function
    def step(rows: Any) -> None:
        gradient = jax.grad(lambda table: jnp.mean(table[rows] ** 2))(table.read_value())
        table.assign_sub(gradient, read_value=False)

    rows = np.array([3, 40], np.int32)
    coordinator.schedule(step, args=(rows,)).fetch()
    assert [strategy.server_of(shard) for shard in table.variables] == [0, 1]
    assert coordinator.traffic.bytes_read == 2 * 64
    # The numbers of the rows for the read; rows and numbers to both servers.
    assert coordinator.traffic.bytes_written <= 8 + 2 * (2 * 64 + 8)
    expected = initial.copy()
    expected[rows] -= 2 * initial[rows] / (2 * 16)
    np.testing.assert_allclose(np.asarray(table), expected, rtol=1e-6)
    strategy.shutdown()
