"""Properties of distributed rows: all there, in order, and reduced as one batch would be."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphdist as gd
from graphdist.data import Dataset

COUNTS = st.integers(1, 8)


@cache
def replicas(count: int) -> gd.Strategy:
    """Return a strategy; one a count, so that programs are compiled once."""
    if count == 1:
        return gd.OneDeviceStrategy("cpu:0")
    return gd.MirroredStrategy([f"cpu:{index}" for index in range(count)])


def is_distributed(leaf: Any) -> bool:
    return isinstance(leaf, gd.PerReplica)


def parts_of(value: Any) -> list[Any]:
    """Return what each replica holds."""
    return [np.asarray(part) for part in (value.values if is_distributed(value) else [value])]


def joined(value: Any) -> Any:
    """Return the rows of all replicas."""
    return np.concatenate(parts_of(value))


@st.composite
def elements(draw: st.DrawFn, rows: int) -> Any:
    """Draw a pytree of arrays with so many rows, each of its own dtype and inner shape."""
    structure = draw(
        st.recursive(
            st.none(),
            lambda inner: st.one_of(
                st.lists(inner, min_size=1, max_size=3).map(tuple),
                st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2),
            ),
            max_leaves=4,
        )
    )
    numbers = iter(range(100))

    def leaf(_: None) -> Any:
        dtype = draw(st.sampled_from(["int8", "int32", "float32", "bool", "float16"]))
        inner = draw(st.sampled_from([(), (2,), (1, 3), (0,)]))
        first = next(numbers)
        size = rows * int(np.prod(inner))
        return (np.arange(first, first + size) % 100).astype(dtype).reshape(rows, *inner)

    return jax.tree.map(leaf, structure, is_leaf=lambda node: node is None)


@given(st.data(), COUNTS, st.integers(0, 25), st.integers(1, 10), st.booleans())
def test_rows_come_in_order_each_once(
    data: st.DataObject, count: int, rows: int, batch: int, drops: bool
) -> None:
    whole = data.draw(elements(rows))
    dataset = Dataset.from_tensor_slices(whole).batch(batch, drop_remainder=drops)
    found = list(replicas(count).experimental_distribute_dataset(dataset))
    assert len(found) == (rows // batch if drops else -(-rows // batch))
    kept = rows - rows % batch if drops else rows
    for place, expected in enumerate(jax.tree.leaves(whole)):
        values = [jax.tree.leaves(element, is_leaf=is_distributed)[place] for element in found]
        together = [joined(value) for value in values]
        empty = np.zeros((0, *expected.shape[1:]), expected.dtype)
        np.testing.assert_array_equal(np.concatenate([empty, *together]), expected[:kept])
        assert all(array.dtype == expected.dtype for array in together)
        for value, size in zip(values, map(len, together), strict=True):
            part = -(-size // count)  # nobody has more, nobody after one with fewer has any more
            lengths = [len(array) for array in parts_of(value)]
            assert lengths == [max(0, min(part, size - part * i)) for i in range(count)]


@given(COUNTS, st.lists(st.integers(0, 5), max_size=12))
def test_batches_of_single_replicas_come_in_order(count: int, sizes: list[int]) -> None:
    ends = np.cumsum(sizes).astype(int)
    batches = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    dataset = replicas(count).distribute_datasets_from_function(lambda context: batches)
    found = [part.tolist() for element in dataset for part in parts_of(element)]
    assert found[: len(batches)] == [batch.tolist() for batch in batches]
    assert found[len(batches) :] == [[]] * (-len(batches) % count)


@settings(max_examples=12)
@given(st.integers(2, 8), st.integers(1, 20), st.integers(1, 12), st.sampled_from(["SUM", "MEAN"]))
@pytest.mark.long
def test_every_batch_reduces_as_one(count: int, rows: int, batch: int, op: str) -> None:
    strategy = replicas(count)
    whole = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)

    @gd.function
    def step(x: Any) -> Any:
        squares = strategy.run(lambda part: jnp.sin(part) ** 2, args=(x,))
        return strategy.reduce(op, squares, axis=0)

    reduced = np.sum if op == "SUM" else np.mean
    dataset = strategy.experimental_distribute_dataset(
        Dataset.from_tensor_slices(whole).batch(batch)
    )
    for start, element in zip(range(0, rows, batch), dataset, strict=True):
        expected = reduced(np.sin(whole[start : start + batch]) ** 2, axis=0)
        np.testing.assert_allclose(step(element), expected, rtol=1e-5)


@pytest.mark.long
@settings(max_examples=8)
@given(st.integers(2, 5), st.integers(1, 14), st.integers(1, 6))
def test_gradients_over_an_epoch_are_those_of_one_device(count: int, rows: int, batch: int) -> None:
    data = np.random.default_rng(rows).standard_normal((rows, 2)).astype(np.float32)
    targets = np.sum(data, axis=1)
    batches = Dataset.from_tensor_slices((data, targets)).batch(batch)

    def trained(strategy: gd.Strategy) -> Any:
        with strategy.scope():
            weights = gd.Variable(np.ones(2, np.float32))

        def errors(weights: Any, x: Any, y: Any) -> Any:
            return (x @ weights - y) ** 2

        @gd.function
        def step(x: Any, y: Any) -> Any:
            def replica_fn(x: Any, y: Any) -> Any:
                gradient = jax.grad(lambda w: jnp.sum(errors(w, x, y)))(weights.read_value())
                weights.assign_sub(0.05 * gd.get_replica_context().all_reduce("SUM", gradient))
                return errors(weights.read_value(), x, y)

            return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x, y)), axis=0)

        for x, y in strategy.experimental_distribute_dataset(batches):
            loss = step(x, y)
        return loss, weights.read_value()

    for ours, alone in zip(trained(replicas(count)), trained(replicas(1)), strict=True):
        np.testing.assert_allclose(ours, alone, rtol=1e-4, atol=1e-6)
