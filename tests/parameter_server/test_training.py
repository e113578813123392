"""Training with parameter servers: the numbers of one device, and the bytes of the cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any  # Any: pytrees

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.coordinator import ClusterCoordinator
from graphdist.ir.graph import Graph
from graphdist.parameter_server import servers
from graphdist.passes import pipeline
from graphdist.passes.servers.cut_step import graphs_of
from graphdist.runtime import executable

Strategy = gd.ParameterServerStrategy

OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(1e-2),
    "adamw with a global norm": optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2)),
}


def batches(count: int) -> list[tuple[Any, Any]]:
    generator = np.random.default_rng(0)
    return [
        (generator.normal(size=(16, 12)).astype("f"), generator.integers(0, 5, 16).astype("i"))
        for _ in range(count)
    ]


def model() -> dict[str, Any]:
    generator = np.random.default_rng(1)
    shapes = {"a": {"w": (12, 32), "b": (32,)}, "b": {"w": (32, 5), "b": (5,)}}
    return jax.tree.map(
        lambda shape: jnp.asarray(generator.normal(size=shape, scale=0.3), jnp.float32),
        shapes,
        is_leaf=lambda leaf: isinstance(leaf, tuple),
    )


def loss_of(params: Any, x: Any, y: Any) -> Any:
    hidden = jax.nn.relu(x @ params["a"]["w"] + params["a"]["b"])
    logits = hidden @ params["b"]["w"] + params["b"]["b"]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y))


def training(strategy: Any, optimizer: Any) -> tuple[Any, Any]:
    """Return the variables, and a step."""
    with strategy.scope():
        params = gd.variables(model())
        state = gd.variables(optimizer.init(gd.read(params)))

    @gd.function
    def step(x: Any, y: Any) -> Any:
        def of_replica(x: Any, y: Any) -> Any:
            loss, grads = jax.value_and_grad(loss_of)(gd.read(params), x, y)
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            updates, new = optimizer.update(grads, gd.read(state), gd.read(params))
            gd.assign(params, optax.apply_updates(gd.read(params), updates))
            gd.assign(state, new)
            return loss

        return strategy.reduce("MEAN", strategy.run(of_replica, args=(x, y)), axis=None)

    return (params, state), step


@pytest.mark.long
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_one_worker_trains_as_one_device(alone: Strategy, name: str) -> None:
    coordinator = ClusterCoordinator(alone)
    variables, step = training(alone, OPTIMIZERS[name])
    others, other_step = training(gd.OneDeviceStrategy("cpu:0"), OPTIMIZERS[name])
    losses, other_losses = [], []
    for x, y in batches(12):
        losses.append(coordinator.schedule(step, args=(x, y)).fetch())
        other_losses.append(other_step(x, y))
    # To the bit on some processors; on others XLA rounds the two halves otherwise than the whole.
    np.testing.assert_allclose(losses, other_losses, rtol=1e-6)
    for one, other in zip(jax.tree.leaves(variables), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-7)


@pytest.mark.long
def test_one_worker_trains_bit_for_bit_where_nothing_is_rounded(alone: Strategy) -> None:
    def training_of(strategy: Any) -> tuple[Any, Any]:
        with strategy.scope():
            weight = gd.Variable(jnp.arange(8.0))

        @gd.function
        def step(x: Any) -> Any:
            def of_replica(x: Any) -> Any:
                loss, gradient = jax.value_and_grad(lambda w: jnp.sum(x @ w))(weight[...])
                weight.assign_sub(0.25 * gd.get_replica_context().all_reduce("SUM", gradient))
                return loss

            return strategy.reduce("SUM", strategy.run(of_replica, args=(x,)), axis=None)

        return weight, step

    coordinator = ClusterCoordinator(alone)
    weight, step = training_of(alone)
    other_weight, other_step = training_of(gd.OneDeviceStrategy("cpu:0"))
    for number in range(12):
        x = np.arange(16, dtype=np.float32).reshape(2, 8) + number
        assert coordinator.schedule(step, args=(x,)).fetch() == other_step(x)
    np.testing.assert_array_equal(np.asarray(weight), np.asarray(other_weight))


@pytest.mark.long
def test_what_gradients_need_together_stays_on_the_worker(alone: Strategy) -> None:
    # XLA rounds a product and a sum as one or as two, as it fuses them: not the same to the bit.
    coordinator = ClusterCoordinator(alone)
    optimizer = OPTIMIZERS["adamw with a global norm"]
    variables, step = training(alone, optimizer)
    others, other_step = training(gd.OneDeviceStrategy("cpu:0"), optimizer)
    for x, y in batches(6):
        coordinator.schedule(step, args=(x, y)).fetch()
        other_step(x, y)
    for one, other in zip(jax.tree.leaves(variables), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-7)


@pytest.mark.long
def test_what_is_sent_are_the_parameters_read_and_the_gradients_written(alone: Strategy) -> None:
    coordinator = ClusterCoordinator(alone)
    (params, _), step = training(alone, OPTIMIZERS["momentum"])
    (batch,) = batches(1)
    coordinator.schedule(step, args=batch).fetch()
    before = vars(coordinator.traffic).copy()
    for _ in range(3):
        coordinator.schedule(step, args=batch)
    coordinator.join()
    num_bytes = sum(4 * v.size for v in jax.tree.leaves(params))
    assert coordinator.traffic.bytes_read - before["bytes_read"] == 3 * num_bytes
    assert coordinator.traffic.bytes_written - before["bytes_written"] == 3 * num_bytes


def lookups(strategy: Any, optimizer: Any, table: Any) -> Any:
    """Return a step with rows of a table, and a function that computes the same without servers."""
    weights = jnp.linspace(-1, 1, 3)

    def loss_of(table: Any, rows: Any) -> Any:
        found = jnp.take(table, rows, axis=0) if isinstance(table, jax.Array) else None
        found = gd.nn.embedding_lookup(table, rows) if found is None else found
        return jnp.mean((found @ weights - 1) ** 2)

    state = gd.variables(optimizer.init(table.read_value()))

    # On one device, rows that repeat would be added to the table one by one, without their sum.
    @gd.function(allow_reassociation=False)
    def step(rows: Any) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(table.read_value(), rows)
        updates, new = optimizer.update(gradient, gd.read(state))
        table.assign(optax.apply_updates(table.read_value(), updates), read_value=False)
        gd.assign(state, new)
        return loss

    return step


@pytest.mark.long
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_rows_that_a_step_looks_up_are_all_that_is_read_and_sent(
    alone: Strategy, name: str
) -> None:
    coordinator = ClusterCoordinator(alone)
    initial = np.random.default_rng(3).normal(size=(1000, 3)).astype("f")
    steps, tables = [], []
    for strategy in (alone, gd.OneDeviceStrategy("cpu:0")):
        with strategy.scope():
            tables.append(gd.Variable(initial, name="table"))
            steps.append(lookups(strategy, OPTIMIZERS[name], tables[-1]))
    rows = np.array([7, 999, 7, -1, 0, 7], np.int32)  # -1 is the last
    for _ in range(4):
        before = vars(coordinator.traffic).copy()
        loss = coordinator.schedule(steps[0], args=(rows,)).fetch()
        assert loss == float(steps[1](rows))
        read = coordinator.traffic.bytes_read - before["bytes_read"]
        written = coordinator.traffic.bytes_written - before["bytes_written"]
        assert read == 3 * (3 * 4)  # each row once
        assert written == 3 * 4 + 6 * (3 * 4 + 4)  # their numbers, and gradients with numbers
    np.testing.assert_array_equal(tables[0], tables[1])


@pytest.mark.long
def test_rows_of_a_variable_in_shards_are_read_of_the_shard_that_has_them() -> None:
    partitioner = gd.experimental.partitioners.FixedShardsPartitioner(4)
    strategy = Strategy(num_workers=1, num_servers=2, variable_partitioner=partitioner)
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        table = gd.Variable(np.arange(4000, dtype="f").reshape(1000, 4))
    step = gd.function(lambda rows: gd.nn.embedding_lookup(table, rows))
    rows = np.array([3, 260, 3, 511], np.int32)
    found = coordinator.schedule(step, args=(rows,)).fetch()
    np.testing.assert_array_equal(found, np.arange(4000).reshape(1000, 4)[rows])
    # One row of each shard stands for the rows that other shards have.
    assert 3 * 16 <= coordinator.traffic.bytes_read <= (3 + 4) * 16
    strategy.shutdown()


@pytest.mark.long
def test_rows_that_are_not_there_are_as_without_servers(alone: Strategy) -> None:
    coordinator = ClusterCoordinator(alone)
    with alone.scope():
        table = gd.Variable(np.arange(300, dtype="f").reshape(100, 3))
    rows = np.array([99, 100, -101, 3], np.int32)
    for mode, fill in (("fill", None), ("fill", 5.0), ("clip", None)):
        step = gd.function(
            lambda x, mode=mode, fill=fill: jnp.take(
                table.read_value(), x, axis=0, mode=mode, fill_value=fill
            )
        )
        expected = jnp.take(jnp.asarray(table), rows, axis=0, mode=mode, fill_value=fill)
        given = coordinator.schedule(step, args=(rows,)).fetch()
        np.testing.assert_array_equal(given, expected)


def test_a_step_says_how_it_is_cut(alone: Strategy) -> None:
    coordinator = ClusterCoordinator(alone)
    batch = batches(1)[0]
    (params, _), step = training(alone, optax.adam(0.1))
    lowered = coordinator.trace(step, args=batch).lower()
    requests = lowered.explain().servers
    coordinator.schedule(step, args=batch).fetch()
    before = vars(coordinator.traffic).copy()
    coordinator.schedule(step, args=batch).fetch()
    written = sum(request.bytes for request in requests if request.kind == "update")
    read = sum(request.bytes for request in requests if request.kind == "read")
    assert coordinator.traffic.bytes_written - before["bytes_written"] == written
    assert coordinator.traffic.bytes_read - before["bytes_read"] == read
    updates = [request for request in requests if request.kind == "update"]
    assert len(updates) == len(jax.tree.leaves(params)) + 1  # and the count of steps
    assert {request.server for request in updates} == {0, 1}
    of_parameters = [request for request in updates if len(request.variables) == 3]
    assert all("test_training.py:" in request.place for request in of_parameters)
    assert len(of_parameters) == len(updates) - 1
    assert "parameter servers: a worker reads" in str(lowered.explain())
    assert lowered.explain().to_json()["servers"][0]["variables"]


def test_the_graphs_that_are_shown_are_what_runs(
    alone: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone.scope():
        table = gd.Variable(np.ones((100, 3), np.float32), name="table")
        w = gd.Variable(np.ones(3, np.float32), name="w")

    @gd.function
    def step(rows: Any) -> Any:
        loss = jnp.sum(gd.nn.embedding_lookup(table, rows) @ w.read_value())
        w.assign_sub(jnp.full(3, 0.1) * loss, read_value=False)
        return loss

    run: list[Graph] = []
    for module, name in ((executable, "emit"), (servers, "emit")):
        emit = vars(module)[name]

        def noted(graph: Graph, arrays: Any, emit: Any = emit) -> Any:
            run.append(graph)
            return emit(graph, arrays)

        monkeypatch.setattr(module, name, noted)
    rows = np.array([3, 99], np.int32)
    with alone.scope():
        lowered = step.trace(rows).lower()
        step(rows)
    assert lowered.cut is not None
    shown = graphs_of(lowered.cut)
    assert [graph.name for graph in shown] == ["step_rows", "step", "update_w"]
    for graph in run:
        (same,) = [one for one in shown if one.name == graph.name]
        assert str(graph.replace(variables=same.variables)) == str(same)
    assert {graph.name for graph in run} == {graph.name for graph in shown}
    assert str(lowered.cut) == lowered.as_text()
    assert "step_rows" not in lowered.as_text("stablehlo")


def test_a_step_is_not_saved(alone: Strategy, tmp_path: Path) -> None:
    with alone.scope():
        w = gd.Variable(np.ones(3, np.float32), name="w")
        step = gd.function(lambda x: w.assign_add(x, read_value=False))
        compiled = step.trace(np.ones(3, np.float32)).lower().compile()
    with pytest.raises(gd.UnsupportedError, match="uses variables on parameter servers"):
        gd.aot.save(tmp_path / "step.gdx", compiled)


def test_a_users_passes_are_what_is_shown(alone: Strategy) -> None:
    with alone.scope():
        w = gd.Variable(np.ones(3, np.float32), name="w")
    passes = pipeline(gd.OneDeviceStrategy("cpu:0").target)
    step = gd.function(lambda x: w.assign_add(x, read_value=False), passes=passes)
    with alone.scope():
        lowered = step.trace(np.ones(3, np.float32)).lower()
        assert "cut_updates" in [record.pass_name for record in lowered.history]
        step(np.ones(3, np.float32))
    np.testing.assert_array_equal(w, [2, 2, 2])


def test_a_step_says_what_could_not_be_cut(alone: Strategy) -> None:
    with alone.scope():
        w, v, m, n = (gd.Variable(jnp.ones(2), name=name) for name in "wvmn")

    @gd.function
    def step() -> Any:
        def turn(_: Any, carry: Any) -> Any:
            m.assign(m[...] + w[...])
            n.assign(n[...] + v[...])
            w.assign(w[...] - m[...])
            v.assign(v[...] - n[...])
            return carry

        found = w.read_value() + v.read_value()
        jax.lax.fori_loop(0, 3, turn, 0)
        return found

    said = str(ClusterCoordinator(alone).trace(step).lower().explain())
    assert "declined: variable 'm' is read by the worker: scan at" in said
    assert "test_training.py:" in said


@pytest.mark.long
def test_updates_where_gradients_are_finite_are_made_by_servers(alone: Strategy) -> None:
    coordinator = ClusterCoordinator(alone)
    optimizer = optax.apply_if_finite(OPTIMIZERS["adam"], 3)
    variables, step = training(alone, optimizer)
    others, other_step = training(gd.OneDeviceStrategy("cpu:0"), optimizer)
    data = batches(4)
    data[1] = (data[1][0] * np.nan, data[1][1])
    for batch in data:
        coordinator.schedule(step, args=batch).fetch()
        other_step(*batch)
    for given, expected in zip(jax.tree.leaves(variables), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-7)
    requests = coordinator.trace(step, args=data[0]).lower().explain().servers
    read = {name for request in requests if request.kind == "read" for name in request.variables}
    assert not any("mu" in name or "nu" in name for name in read)


def test_a_step_with_an_iterator_is_traced_with_its_elements(alone: Strategy) -> None:
    coordinator = ClusterCoordinator(alone)
    with alone.scope():
        total = gd.Variable(jnp.zeros(3), name="total")
    step = gd.function(lambda batches, k: total.assign_add(next(batches) * k, read_value=False))
    dataset = coordinator.create_per_worker_dataset(
        lambda: gd.data.Dataset.from_tensor_slices(np.ones((4, 3), np.float32))
    )
    traced = coordinator.trace(step, args=(iter(dataset), 2.0))
    (request,) = traced.lower().explain().servers
    assert (request.kind, request.variables, request.bytes) == ("update", ("total",), 12)
    assert [value.type.shape for value in traced.graph.inputs] == [(3,), ()]


def test_slots_are_brought_to_their_variables(alone: Strategy) -> None:
    (params, state), step = training(alone, OPTIMIZERS["momentum"])
    ClusterCoordinator(alone).schedule(step, args=batches(1)[0]).fetch()
    traces = jax.tree.leaves(state)
    homes = [alone.server_of(v) for v in jax.tree.leaves(params)]
    assert [alone.server_of(v) for v in traces] == homes
    assert set(homes) == {0, 1}


def test_a_variable_that_is_only_changed_is_not_read(alone: Strategy) -> None:
    coordinator = ClusterCoordinator(alone)
    with alone.scope():
        v = gd.Variable(jnp.zeros(100))
    before = coordinator.traffic.bytes_read
    step = gd.function(lambda x: v.assign_add(x, read_value=False))
    coordinator.schedule(step, args=(np.ones(100, np.float32),)).fetch()
    assert coordinator.traffic.bytes_read == before
    np.testing.assert_array_equal(v, np.ones(100))


def test_updates_in_loops_and_branches_replace_the_value(alone: Strategy) -> None:
    coordinator = ClusterCoordinator(alone)
    with alone.scope():
        v, w = gd.Variable(1.0), gd.Variable(5.0)

    @gd.function
    def step(x: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            v.assign(v[...] * 2 + i)
            return carry + 1

        count = jax.lax.fori_loop(0, 3, body, jnp.int32(0))
        jax.lax.cond(x > 0, lambda: w.assign_add(x, read_value=False), lambda: None)
        return count

    assert coordinator.schedule(step, args=(2.0,)).fetch() == 3
    assert float(v) == ((1 * 2 + 0) * 2 + 1) * 2 + 2
    assert float(w) == 7
    coordinator.schedule(step, args=(-2.0,)).fetch()
    assert float(w) == 7


def test_one_variable_is_made_of_another(alone: Strategy) -> None:
    coordinator = ClusterCoordinator(alone)
    with alone.scope():
        w, mean, copy = gd.Variable([4.0, 8.0]), gd.Variable([0.0, 0.0]), gd.Variable([0.0, 0.0])

    @gd.function
    def step() -> None:
        w.assign_add(jnp.ones(2), read_value=False)
        mean.assign(0.5 * mean + 0.5 * w, read_value=False)
        copy.assign(w, read_value=False)

    coordinator.schedule(step).fetch()
    np.testing.assert_array_equal(w, [5, 9])
    np.testing.assert_array_equal(mean, [2.5, 4.5])
    np.testing.assert_array_equal(copy, [5, 9])


def test_extended_update(alone: Strategy) -> None:
    coordinator = ClusterCoordinator(alone)
    with alone.scope():
        v = gd.Variable([1.0, 2.0])

    @gd.function
    def step(gradient: Any) -> None:
        def change(v: Any, gradient: Any) -> None:
            v.assign_sub(0.5 * gradient, read_value=False)

        alone.extended.update(v, change, args=(gradient,))

    coordinator.schedule(step, args=(jnp.ones(2),)).fetch()
    np.testing.assert_array_equal(v, [0.5, 1.5])


@pytest.mark.long
def test_a_worker_with_several_devices_runs_replicas() -> None:
    strategy = gd.ParameterServerStrategy(num_workers=1, devices_per_worker=2)
    coordinator = ClusterCoordinator(strategy)
    variables, step = training(strategy, OPTIMIZERS["adam"])
    mirrored = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    others, other_step = training(mirrored, OPTIMIZERS["adam"])
    data = batches(3)

    def of_workers() -> Any:
        return strategy.experimental_distribute_dataset(data)

    iterator = iter(coordinator.create_per_worker_dataset(of_workers))
    on_elements = gd.function(lambda i: step(*next(i)))
    found = [coordinator.schedule(on_elements, args=(iterator,)).fetch() for _ in data]
    expected = [other_step(*batch) for batch in mirrored.experimental_distribute_dataset(data)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for one, other in zip(jax.tree.leaves(variables), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-7)
    strategy.shutdown()


@pytest.mark.long
def test_a_checkpoint_goes_on_under_another_strategy(alone: Strategy, tmp_path: Any) -> None:
    coordinator = ClusterCoordinator(alone)
    variables, step = training(alone, OPTIMIZERS["adam"])
    for batch in batches(3):
        coordinator.schedule(step, args=batch).fetch()
    path = gd.train.Checkpoint(variables=variables).save(str(tmp_path / "c"))
    others, other_step = training(gd.OneDeviceStrategy("cpu:0"), OPTIMIZERS["adam"])
    gd.train.Checkpoint(variables=others).restore(path).assert_consumed()
    batch = batches(4)[3]
    assert coordinator.schedule(step, args=batch).fetch() == other_step(*batch)
