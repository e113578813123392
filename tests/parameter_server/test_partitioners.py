"""How variables are split, and what a variable in shards is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.parameter_server.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
)
from graphdist.state.sharded_variable import rows_of_shards

ROWS = np.arange(14, dtype=np.float32).reshape(7, 2)


@pytest.mark.parametrize(
    ("partitioner", "shape", "shards"),
    [
        (FixedShardsPartitioner(2), (10, 3), [2, 1]),
        (FixedShardsPartitioner(8), (3, 3), [3, 1]),
        (FixedShardsPartitioner(8), (3,), [3]),
        (MinSizePartitioner(), (1024, 1024), [1, 1]),
        (MinSizePartitioner(256 << 10, 4), (1024, 1024), [4, 1]),
        (MinSizePartitioner(4, 10), (6, 1), [6, 1]),
        (MinSizePartitioner(1 << 20, 10), (6, 1), [1, 1]),
        (MaxSizePartitioner(4), (6, 1), [6, 1]),
        (MaxSizePartitioner(4, 2), (6, 1), [2, 1]),
        (MaxSizePartitioner(1024), (6, 1), [1, 1]),
        (MaxSizePartitioner(1), (6, 100), [6, 1]),
        (MaxSizePartitioner(8), (7, 1), [4, 1]),
    ],
)
def test_shards(partitioner: Partitioner, shape: tuple[int, ...], shards: list[int]) -> None:
    assert partitioner(shape, np.float32) == shards


def test_strings_have_the_size_that_is_given() -> None:
    assert MaxSizePartitioner(32)((6,), "string") == [3]
    assert MaxSizePartitioner(32, bytes_per_string=8)((6,), "string") == [2]


@pytest.mark.parametrize("number", [0, -1])
def test_numbers_below_one_are_refused(number: int) -> None:
    for make in (FixedShardsPartitioner, MinSizePartitioner, MaxSizePartitioner):
        with pytest.raises(ValueError, match=f"is {number}"):
            make(number)


def test_a_scalar_has_no_rows() -> None:
    with pytest.raises(IndexError):
        FixedShardsPartitioner(2)((), np.float32)


def test_rows_are_split_evenly() -> None:
    assert rows_of_shards(13, 5) == [3, 3, 3, 2, 2]
    assert rows_of_shards(4, 2) == [2, 2]


def sharded(*sizes: int) -> gd.ShardedVariable:
    ends = np.cumsum(sizes)
    parts = np.split(ROWS[: ends[-1]], ends[:-1])
    return gd.ShardedVariable([gd.Variable(part) for part in parts])


@pytest.mark.parametrize("sizes", [(7,), (4, 3), (3, 2, 2), (1, 6), (1, 1, 5)])
@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        6,
        np.int64(3),
        slice(None),
        slice(2, 6),
        slice(None, None, 3),
        slice(6, 1, -2),
        slice(None, None, -1),
        slice(3, 3),
        slice(-3, None),
        (slice(1, 5), 1),
        (..., 0),
        (None, 3),
        (slice(2, 5), None, 0),
        (2, 1),
        (2, ...),
        ...,
        None,
    ],
)
def test_an_index_gives_what_numpy_gives(sizes: tuple[int, ...], index: object) -> None:
    found = sharded(*sizes)[index]
    np.testing.assert_array_equal(found, ROWS[index])  # type: ignore[call-overload]
    assert found.dtype == np.float32


@pytest.mark.parametrize("index", [7, -8])
def test_rows_that_are_not_there_are_refused(index: int) -> None:
    with pytest.raises(IndexError, match="has 7 rows"):
        sharded(4, 3)[index]


def test_an_array_of_rows_is_gathered() -> None:
    rows = np.array([[0, 6], [3, 3]])
    np.testing.assert_array_equal(sharded(4, 3)[rows], ROWS[rows])
    np.testing.assert_array_equal(gd.nn.embedding_lookup(sharded(2, 2, 3), rows), ROWS[rows])
    table = gd.Variable(ROWS)
    np.testing.assert_array_equal(gd.nn.embedding_lookup(table, rows), ROWS[rows])


def test_gathering_puts_no_shards_together() -> None:
    v = sharded(4, 3)
    text = gd.function(lambda rows: v.gather(rows)).trace(jnp.arange(3)).as_text()
    assert "concatenate" not in text


def test_gradients_of_gathered_rows_go_to_their_shards() -> None:
    v = sharded(4, 3)

    def loss(parts: list[jax.Array]) -> jax.Array:
        shards = gd.ShardedVariable([gd.Variable(part) for part in np.split(ROWS, [4])])
        rows = [part[0] for part in parts]
        return jnp.sum(rows[0] * shards[1]) + jnp.sum(rows[1] * v[5])

    first, second = jax.grad(loss)([shard.read_value() for shard in v.variables])
    np.testing.assert_array_equal(first[0], ROWS[1])
    np.testing.assert_array_equal(second[0], ROWS[5])


def test_writes_go_to_the_shards() -> None:
    v = sharded(4, 3)
    v.assign(ROWS + 1)
    v.assign_add(ROWS)
    v.assign_sub(jnp.ones_like(ROWS))
    np.testing.assert_array_equal(np.asarray(v), 2 * ROWS)
    np.testing.assert_array_equal(v.variables[1], 2 * ROWS[4:])


def test_a_value_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[7, 2\].*\[2, 7\]"):
        sharded(4, 3).assign(ROWS.T)


@pytest.mark.parametrize("method", ["add", "sub", "mul", "div", "min", "max", "update"])
def test_scatter_updates_change_the_rows_that_one_variable_would(method: str) -> None:
    slices = gd.IndexedSlices(jnp.full((3, 2), 3.0), jnp.array([0, 5, 3]))
    v, other = sharded(4, 3), gd.Variable(ROWS)
    getattr(v, f"scatter_{method}")(slices)
    getattr(other, f"scatter_{method}")(slices)
    np.testing.assert_array_equal(np.asarray(v), np.asarray(other))


def test_scatter_updates_inside_a_function() -> None:
    v = sharded(4, 3)

    @gd.function
    def step(rows: jax.Array) -> None:
        v.scatter_add(gd.IndexedSlices(jnp.ones((2, 2)), rows), read_value=False)

    step(jnp.array([1, 6]))
    expected = ROWS.copy()
    expected[[1, 6]] += 1
    np.testing.assert_array_equal(np.asarray(v), expected)


def test_scatter_updates_of_uneven_shards_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"\[1, 6\]"):
        sharded(1, 6).scatter_add(gd.IndexedSlices(jnp.ones((1, 2)), jnp.array([0])))


def test_shards_must_be_alike() -> None:
    with pytest.raises(ValueError, match="dtype"):
        gd.ShardedVariable([gd.Variable([1.0]), gd.Variable([1])])
    with pytest.raises(ValueError, match="rows differ"):
        gd.ShardedVariable([gd.Variable([[1.0]]), gd.Variable([[1.0, 2.0]])])
    with pytest.raises(TypeError):
        gd.ShardedVariable([])
    with pytest.raises(TypeError):
        gd.ShardedVariable(gd.Variable([1.0]))  # type: ignore[arg-type]


def test_trees_of_variables_in_shards() -> None:
    params = {"table": sharded(4, 3), "b": gd.Variable(1.0)}
    read = gd.read(params)
    np.testing.assert_array_equal(read["table"], ROWS)
    gd.assign(params, jax.tree.map(lambda leaf: leaf * 2, read))
    np.testing.assert_array_equal(np.asarray(params["table"]), 2 * ROWS)


def test_a_checkpoint_has_one_array_whatever_the_shards(tmp_path: object) -> None:
    path = gd.train.Checkpoint(v=sharded(4, 3)).save(f"{tmp_path}/c")
    assert gd.train.list_variables(path) == [("v", [7, 2])]
    zeros = [gd.Variable(jnp.zeros((rows, 2))) for rows in (3, 2, 2)]
    for other in (gd.ShardedVariable(zeros), gd.Variable(jnp.zeros((7, 2)))):
        gd.train.Checkpoint(v=other).restore(path).assert_consumed()
        np.testing.assert_array_equal(np.asarray(other), ROWS)
