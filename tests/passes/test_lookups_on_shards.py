"""Tables of embeddings: rows are sent in place of tables, with equal results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: pytrees of arrays

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.passes import pipelines
from graphdist.program.stages import Lowered

ROWS, WIDTH, BATCH = 4096, 32, 16
NUMBERS = np.random.default_rng(0)
EMBED = flax.linen.Embed(ROWS, WIDTH)

Lookup = Callable[[Any, Any], Any]


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send rows of small tables, too."""
    monkeypatch.setattr(pipelines, "FEWEST_BYTES_SAVED", 0)


def table_of(*shape: int) -> np.ndarray:
    return NUMBERS.normal(0, 0.1, shape).astype("f")


def trained(
    lookup: Lookup, table: np.ndarray, indices: np.ndarray, strategy: gd.Strategy
) -> tuple[Lowered, np.ndarray]:
    """Train a table for two steps; return the lowered step and the trained table."""
    optimizer = optax.adam(0.1)
    with strategy.scope():
        params: Any = gd.variables(table)
        slots = gd.variables(optimizer.init(table))

    @gd.function
    def step(indices: Any) -> Any:
        def replica_fn(indices: Any) -> Any:
            def loss(table: Any) -> Any:
                rows = lookup(table, indices).astype(jnp.float32)
                return gd.nn.compute_average_loss(jnp.sum(jnp.tanh(rows) ** 2, axis=1))

            gradient = jax.grad(loss)(gd.read(params))
            gradient = gd.get_replica_context().all_reduce("SUM", gradient)
            updates, new = optimizer.update(gradient, gd.read(slots))
            gd.assign(slots, new)
            gd.assign(params, optax.apply_updates(gd.read(params), updates))

        strategy.run(replica_fn, args=(indices,))

    (batch,) = strategy.experimental_distribute_dataset([indices])
    for _ in range(2):
        step(batch)
    return step.trace(batch).lower(), np.asarray(gd.read(params))


def alone(lookup: Lookup, table: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the table that JAX trains for two steps on one device."""
    optimizer = optax.adam(0.1)

    def loss(table: Any) -> Any:
        rows = lookup(table, indices).astype(jnp.float32)
        return jnp.mean(jnp.sum(jnp.tanh(rows) ** 2, axis=1))

    @jax.jit
    def step(table: Any, slots: Any) -> Any:
        updates, slots = optimizer.update(jax.grad(loss)(table), slots)
        return optax.apply_updates(table, updates), slots

    slots = optimizer.init(table)
    for _ in range(2):
        table, slots = step(table, slots)
    return np.asarray(table)


def sent(lowered: Lowered) -> int:
    """Return the bytes of the collectives of a step."""
    return sum(each.bytes for each in lowered.collectives)


def strategy_of(shards: bool | int, replicas: int = 2) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(replicas)], shard_parameters=shards)


def of_tables(tables: Any, indices: Any) -> Any:
    def rows(table: Any, index: Any) -> Any:
        return table[index]

    found = jax.vmap(rows, in_axes=(0, 1), out_axes=1)(tables, indices)
    return found.reshape(indices.shape[0], -1)


PROGRAMS: dict[str, tuple[Lookup, tuple[int, ...], tuple[int, ...]]] = {
    "indexed": (lambda table, indices: table[indices], (ROWS, WIDTH), (BATCH,)),
    "taken": (lambda table, indices: jnp.take(table, indices, axis=0), (ROWS, WIDTH), (BATCH,)),
    "flax": (
        lambda table, indices: EMBED.apply({"params": {"embedding": table}}, indices),
        (ROWS, WIDTH),
        (BATCH,),
    ),
    "of each": (
        lambda table, indices: jax.vmap(lambda index: table[index])(indices),
        (ROWS, WIDTH),
        (BATCH,),
    ),
    "means": (lambda table, indices: table[indices].mean(1), (ROWS, WIDTH), (BATCH, 4)),
    "narrow": (
        lambda table, indices: table[indices].astype(jnp.bfloat16),
        (ROWS, WIDTH),
        (BATCH,),
    ),
    "narrow table": (
        lambda table, indices: table.astype(jnp.bfloat16)[indices],
        (ROWS, WIDTH),
        (BATCH,),
    ),
    "twice": (
        lambda table, indices: table[indices] * table[ROWS - 1 - indices],
        (ROWS, WIDTH),
        (BATCH,),
    ),
    "columns": (lambda table, indices: table[indices], (ROWS + 1, WIDTH), (BATCH,)),
    "stacked": (of_tables, (4, ROWS, WIDTH), (BATCH, 4)),
}


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_are_sent_in_place_of_the_table(name: str, shards: bool) -> None:
    lookup, shape, of_indices = PROGRAMS[name]
    table = table_of(*shape)
    indices = NUMBERS.integers(0, ROWS, of_indices).astype(np.int32)
    lowered, found = trained(lookup, table, indices, strategy_of(shards))
    np.testing.assert_allclose(found, alone(lookup, table, indices), rtol=1e-4, atol=1e-4)
    # A table that is stored unsharded but updated in shards is gathered after its update.
    gathered_after = 0 if shards else table.nbytes // 2
    assert sent(lowered) - gathered_after < table.nbytes // 16


def test_indices_out_of_range_mean_what_they_mean_on_one_device() -> None:
    indices = np.array([0, -1, ROWS, -ROWS - 1, 2**31 - 1, 5, 5, 5], np.int32)
    table = table_of(ROWS, WIDTH)
    for mode in ("fill", "clip", "wrap"):

        def lookup(table: Any, indices: Any, mode: Any = mode) -> Any:
            return jnp.nan_to_num(jnp.take(table, indices, axis=0, mode=mode), nan=0.25)

        lowered, found = trained(lookup, table, indices, strategy_of(shards=True))
        np.testing.assert_allclose(found, alone(lookup, table, indices), rtol=1e-4, atol=1e-4)
        assert "index_on_replica" in str(lowered.graph)


def test_groups_send_rows_of_gradients() -> None:
    """Each group gathers its table, and adds up the rows of all replicas."""
    table, indices = table_of(ROWS, WIDTH), np.arange(BATCH, dtype=np.int32)
    lowered, found = trained(lambda t, i: t[i], table, indices, strategy_of(2, replicas=4))
    expected = alone(lambda t, i: t[i], table, indices)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert "reduce_scatter" not in str(lowered.collectives)
    assert "as_shard" in str(lowered.graph)


def test_tables_that_are_needed_in_full_are_left() -> None:
    def scaled(table: Any, indices: Any) -> Any:
        return table[indices] * jnp.sort(table, axis=0)[0]

    table, indices = table_of(ROWS, WIDTH), np.arange(BATCH, dtype=np.int32)
    lowered, found = trained(scaled, table, indices, strategy_of(shards=True))
    np.testing.assert_allclose(found, alone(scaled, table, indices), rtol=1e-4, atol=1e-4)
    assert "index_on_replica" not in str(lowered.graph)


def test_small_tables_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved would not make up for collectives that join no pack."""
    monkeypatch.undo()
    table, indices = table_of(ROWS // 4, WIDTH), np.arange(BATCH, dtype=np.int32)
    lowered, _ = trained(lambda t, i: t[i], table, indices, strategy_of(shards=True))
    assert "index_on_replica" not in str(lowered.graph)


def test_many_rows_are_left() -> None:
    """The table has fewer bytes than its rows that the replicas look up."""
    table = table_of(ROWS, WIDTH)
    indices = NUMBERS.integers(0, ROWS, (2 * ROWS,)).astype(np.int32)
    lowered, _ = trained(lambda t, i: t[i], table, indices, strategy_of(shards=True))
    assert "index_on_replica" not in str(lowered.graph)


def test_explain_says_what_is_sent() -> None:
    table, indices = table_of(ROWS, WIDTH), np.arange(BATCH, dtype=np.int32)
    lowered, _ = trained(lambda t, i: t[i], table, indices, strategy_of(shards=True))
    told = " ".join(str(lowered.explain()).split())
    assert f"in place of {table.nbytes:,} of f32[{ROWS}, {WIDTH}]" in told
