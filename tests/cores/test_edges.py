"""What lies at the edge of a rule: indices out of range, narrow dtypes, effects, nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import graphdist as gd
from graphdist.ir.analyses import walk
from graphdist.ir.parser import parse
from graphdist.runtime.buffers import BufferStore
from graphdist.tracing.jax_ops import resolve
from tests.cores.test_partitioner_failures import results
from tests.cores.training import PROGRAMS, step_of, strategy_on, trained

Program = Callable[[Any, Any], Any]
BYTES = np.array([0, 3, 130, 255], np.uint8)


def _table(split: Any, x: Any, rows: int = 256) -> Any:
    return split(jnp.resize(jnp.arange(rows, dtype=jnp.float32), (rows, 1)) * x[0, :2], 0)


PROGRAMS_AT_THE_EDGE: dict[str, Program] = {
    "several components, filled": lambda split, x: (
        split(x, 0).at[jnp.array([0, 5]), jnp.array([9, 2])].get(mode="fill", fill_value=0.5)
    ),
    "several components, clamped": lambda split, x: (
        split(x, 0).at[jnp.array([0, 15]), jnp.array([9, 2])].get(mode="clip")
    ),
    "several components, added": lambda split, x: (
        split(x, 0).at[jnp.array([0, 15]), jnp.array([9, 2])].add(100.0, mode="clip")
    ),
    "several components, dropped": lambda split, x: (
        split(x, 1).at[jnp.array([0, 15]), jnp.array([9, 2])].set(3.0, mode="drop")
    ),
    "gradient of clamped": lambda split, x: jax.grad(
        lambda x: jnp.sin(
            split(x, 0).at[jnp.array([0, 15]), jnp.array([9, 2])].get(mode="clip")
        ).sum()
    )(x),
    "indices of 8 bits": lambda split, x: jnp.take(_table(split, x), jnp.asarray(BYTES), axis=0),
    "indices of 8 bits, a larger table": lambda split, x: jnp.take(
        _table(split, x, 512), jnp.asarray(BYTES), axis=0, mode="clip"
    ),
    "filled with a complex number": lambda split, x: jnp.take(
        split(x.astype(jnp.complex64), 0), jnp.array([1, 9]), axis=0, mode="fill", fill_value=1 + 2j
    ),
    "in order and different": lambda split, x: (
        split(x, 0).at[jnp.arange(0, 8, 2)].add(1.0, indices_are_sorted=True, unique_indices=True)
    ),
    "float16 beyond its range": lambda split, x: jnp.sum(
        split(jnp.array([60000, 60000, -60000, -50000], jnp.float16), 0)
    ),
    "no elements": lambda split, x: (jnp.sort(split(x[:0], 0), axis=0), split(x[:0], 0) + 1),
    "a long chain from a broadcast": lambda split, x: split(x, 0) * _chain(x[0], 300),
    "a wide chain from a broadcast": lambda split, x: split(x, 0) * _doubled(x[0], 40),
    "gathered in a loop": lambda split, x: jax.lax.fori_loop(
        0, 4, lambda i, carry: carry + jnp.cumsum(split(x, 0), axis=0)[0], jnp.zeros(8)
    ),
}


def _chain(row: Any, length: int) -> Any:
    y = jnp.broadcast_to(row, (8, 8))
    for _ in range(length):
        y = jnp.sin(y)
    return y


def _doubled(row: Any, length: int) -> Any:
    y = jnp.broadcast_to(row, (8, 8))
    for _ in range(length):
        y = y * 0.5 + jnp.sin(y) * 0.5
    return y


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize("name", PROGRAMS_AT_THE_EDGE)
def test_values(name: str, cores: int) -> None:
    program = PROGRAMS_AT_THE_EDGE[name]
    expected = results(program, 1)
    for found, wanted in zip(results(program, cores), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_value_that_a_loop_needs_in_full_is_gathered_once() -> None:
    strategy = strategy_on(1, 2)
    with strategy.scope():
        variable = gd.Variable(jnp.ones((8, 4)), cores=("sharded", None))

    def replica_fn() -> Any:
        w = variable.read_value()
        return jax.lax.fori_loop(0, 10, lambda i, c: c + jnp.cumsum(w, axis=0)[i % 8], jnp.zeros(4))

    lowered = gd.function(lambda: strategy.run(replica_fn)).trace().lower()
    assert [(each.kind, each.times) for each in lowered.collectives] == [
        ("all_gather_over_cores", 1)
    ]


def test_programs_agree_on_how_a_variable_is_stored() -> None:
    """A program that was compiled before another sharded a variable takes it in shards."""
    strategy = strategy_on(1, 2)
    with strategy.scope():
        weights = gd.Variable(jnp.ones((4, 2)), cores=("sharded", None))
        slot = gd.Variable(jnp.zeros((4, 2)))
    evaluate = gd.function(lambda: strategy.run(lambda: (slot.read_value() * 2).sum()))

    def update() -> None:
        slot.assign(slot.read_value() + weights.read_value())

    train = gd.function(lambda: strategy.run(update))
    assert float(evaluate()) == 0
    for _ in range(2):
        train()
        evaluate()
    before = BufferStore.version
    train()
    assert (float(evaluate()), slot.stored.on_devices.layout.core) == (2.0 * 8 * 3, 0)
    assert BufferStore.version == before, "the variable is moved to and fro"


def test_a_callback_runs_once_for_each_replica_and_its_cores_agree() -> None:
    strategy, calls = strategy_on(2, 2), []
    with strategy.scope():
        total = gd.Variable(jnp.zeros(4), aggregation=gd.VariableAggregation.SUM)

    def count(x: Any) -> Any:
        calls.append(float(x))
        return np.float32(len(calls))

    def replica_fn() -> None:
        number = io_callback(count, jax.ShapeDtypeStruct((), jnp.float32), 1.0)
        total.assign_add(number * jnp.ones(4))

    gd.function(lambda: strategy.run(replica_fn))()
    held = [np.asarray(s.data) for s in total.stored.on_devices.held.addressable_shards]
    assert len(calls) == 2
    assert all(np.array_equal(each, held[0]) for each in held)
    np.testing.assert_array_equal(held[0], np.full(4, 3.0))


@pytest.mark.parametrize("name", ["mlp", "decoder"])
def test_interpreted_training(name: str) -> None:
    with jax.disable_jit():
        found = trained(PROGRAMS[name], strategy_on(2, 2), steps=2)
    expected = trained(PROGRAMS[name], strategy_on(2, 2), steps=2)
    for key, array in expected.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-3, atol=1e-4, err_msg=key)


def test_interpreted_values_of_replicas() -> None:
    strategy = strategy_on(2, 2)
    with strategy.scope():
        variable = gd.Variable(jnp.ones((3, 4)), cores=(None, "sharded"))

    def replica_fn() -> Any:
        variable.assign(variable.read_value() * 2)
        return variable.read_value() + gd.get_replica_context().replica_id_in_sync_group

    with jax.disable_jit():
        values = strategy.experimental_local_results(strategy.run(replica_fn))
    np.testing.assert_array_equal(variable.read_value(), np.full((3, 4), 2.0))
    assert [np.asarray(each).tolist() for each in values] == [
        np.full((3, 4), 2.0 + replica).tolist() for replica in range(2)
    ]


def test_every_graph_of_a_split_step_is_read_back() -> None:
    step, batch, _ = step_of(PROGRAMS["mlp"], strategy_on(2, 2))
    step(batch)
    lowered = step.trace(batch).lower()
    for graph in (lowered.traced.graph, lowered.graph):
        text = str(graph)
        assert str(parse(text, ops=resolve)) == text
        assert len(walk(graph)) > 10


@pytest.mark.parametrize("given", [None, 2, ["a", 1], [2.5, 1], [-1, -2]])
def test_parts_are_integers(given: Any) -> None:
    strategy = strategy_on(1, 2)
    with pytest.raises(gd.ArgumentError, match="partition_dimensions"):
        strategy.run(
            lambda: strategy.experimental_split_to_logical_devices(jnp.ones((2, 2)), given)
        )


def test_one_core_splits_arrays_too() -> None:
    strategy = strategy_on(1, 1)
    doubled = strategy.run(
        lambda: strategy.experimental_split_to_logical_devices([1.0, 2.0], [1]) * 2
    )
    np.testing.assert_array_equal(doubled, [2.0, 4.0])


def test_another_strategy_splits_nothing() -> None:
    other, strategy = strategy_on(1, 2), strategy_on(1, 1)
    with pytest.raises(gd.ContextError, match="strategies do not mix"):
        strategy.run(lambda: other.experimental_split_to_logical_devices(jnp.ones(2), [2]))


def test_indices_out_of_range_are_clamped_as_on_one_device() -> None:
    table, rows = np.arange(32.0, dtype=np.float32).reshape(16, 2), np.array([3, 99, -40])

    def read(cores: int) -> list[Any]:
        strategy = strategy_on(1, cores)
        with strategy.scope():
            e = gd.Variable(table, cores=("sharded", None))

        def replica_fn(rows: Any) -> Any:
            value = e.read_value()
            return value[rows], value[rows, np.array([0, 1, 0])]

        return strategy.run(gd.function(replica_fn), args=(rows,))

    for found, wanted in zip(read(4), read(1), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_logits_in_shards_are_searched_where_they_are() -> None:
    strategy = strategy_on(1, 4)

    def best(x: Any) -> Any:
        x = strategy.experimental_split_to_logical_devices(x, [1, 4])
        return jnp.argmax(x, axis=1), jax.lax.top_k(x, 5), jax.lax.top_k(x, 20)

    function = gd.function(lambda x: strategy.run(best, args=(x,)))
    sent = function.trace(jnp.zeros((2, 128))).lower().collectives
    # An index and a value of each row and core; 5 of each; all elements of a row.
    assert sorted(each.bytes_sent for each in sent) == [24, 24, 120, 120, 768]
