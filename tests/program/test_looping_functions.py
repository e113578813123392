"""Functions that loop over distributed datasets, against the same loops outside of functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

ROWS = np.random.default_rng(0).standard_normal((8 * 13 + 3, 6)).astype("f")
STRATEGIES: dict[str, Callable[[], Any]] = {
    "mirrored": lambda: gd.MirroredStrategy(["cpu:0", "cpu:1"]),
    "in slices": lambda: gd.FullyShardedStrategy(["cpu:0", "cpu:1"]),
    "one": lambda: gd.OneDeviceStrategy("cpu:0"),
    "central": lambda: gd.experimental.CentralStorageStrategy(["cpu:0", "cpu:1"]),
}


def distributed(strategy: Any, rows: Any = ROWS) -> Any:
    return strategy.experimental_distribute_dataset(
        gd.data.Dataset.from_tensor_slices(rows).batch(8)
    )


class Training:
    """A variable, and functions that train it for an epoch."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.w = gd.Variable(np.full((6, 4), 0.1, "f"), name="w")

    def replica_fn(self, x: Any) -> Any:
        def loss_fn(w: Any) -> Any:
            return gd.nn.compute_average_loss(jnp.sum(jnp.tanh(x @ w) ** 2, 1))

        loss, gradient = jax.value_and_grad(loss_fn)(self.w[...])
        self.w.assign_sub(0.1 * gd.get_replica_context().all_reduce("SUM", gradient))
        return loss

    def epoch(self, dataset: Any) -> Any:
        total, batches = 0.0, 0
        for batch in dataset:
            losses = self.strategy.run(self.replica_fn, args=(batch,))
            total += self.strategy.reduce("SUM", losses, axis=None)
            batches += 1
        return total, batches

    inside = gd.function(epoch)

    def outside(self, dataset: Any) -> Any:
        """Do the same, with a function called for each batch."""
        step = gd.function(
            lambda total, batch: (
                total
                + self.strategy.reduce(
                    "SUM", self.strategy.run(self.replica_fn, args=(batch,)), axis=None
                )
            )
        )
        total, batches = np.float32(0), 0
        for batch in dataset:
            total = step(total, batch)
            batches += 1
        return total, batches


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_an_epoch_is_that_of_the_loop_outside(name: str) -> None:
    strategy = STRATEGIES[name]()
    inside, outside = Training(strategy), Training(strategy)
    for rows in (ROWS, ROWS[:64], ROWS[:8], ROWS[:5]):
        dataset = distributed(strategy, rows)
        found, expected = inside.inside(dataset), outside.outside(dataset)
        assert (float(found[0]), int(found[1])) == (float(expected[0]), expected[1])
        np.testing.assert_array_equal(np.asarray(inside.w), np.asarray(outside.w))


def test_what_the_loop_reads_may_change_from_call_to_call() -> None:
    strategy = STRATEGIES["mirrored"]()
    traced = Mock()

    @gd.function
    def scaled(dataset: Any, factor: Any, power: int) -> Any:
        shift = jnp.asarray(factor) * 0 + 1.0
        total = 0.0

        def value(x: Any) -> Any:
            traced()
            return jnp.sum(x**power * factor + shift)

        for batch in dataset:
            total += strategy.reduce("SUM", strategy.run(value, args=(batch,)), axis=None)
        return total

    dataset = distributed(strategy, ROWS[:96])
    for factor in (1.0, 2.0, 3.0):
        found = scaled(dataset, jnp.float32(factor), 2)
        np.testing.assert_allclose(found, np.sum(ROWS[:96] ** 2 * factor + 1), rtol=1e-4)
    count = traced.call_count
    scaled(dataset, jnp.float32(4.0), 2)
    assert traced.call_count == count  # arrays are inputs of the program
    found = scaled(dataset, jnp.float32(4.0), 1)
    np.testing.assert_allclose(found, np.sum(ROWS[:96] * 4 + 1), rtol=1e-3)


def test_numbers_that_change_are_warned_of() -> None:
    strategy = STRATEGIES["one"]()

    @gd.function
    def scaled(dataset: Any, factor: int) -> Any:
        total: Any = 0.0
        for batch in dataset:
            total += jnp.sum(batch) * factor
        return total

    dataset = distributed(strategy, ROWS[:8])
    for factor in range(7):
        expected = factor * ROWS[:8].sum()
        np.testing.assert_allclose(scaled(dataset, factor), expected, rtol=1e-4, atol=1e-5)
    with pytest.warns(gd.RetraceWarning, match="scaled_loop was compiled 8 times"):
        scaled(dataset, 7)


def sum_of(strategy: Any, batch: Any) -> Any:
    return strategy.reduce("SUM", strategy.run(jnp.sum, args=(batch,)), axis=None)


def test_break_continue_and_conditions() -> None:
    strategy = STRATEGIES["mirrored"]()

    def until(dataset: Any, limit: float) -> Any:
        total, taken, left_out = 0.0, 0, 0
        for batch in dataset:
            part = sum_of(strategy, batch)
            if part > 0:
                left_out += 1
                continue
            taken += 1
            total += part
            if total < limit and not taken < 3:
                break
        return total, taken, left_out

    for limit in (-1.0, -30.0, -1e9):
        expected = until(distributed(strategy), limit)
        found = gd.function(until)(distributed(strategy), limit)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
        assert [int(number) for number in found[1:]] == list(expected[1:])


def test_an_endless_dataset_is_left_by_break() -> None:
    strategy = STRATEGIES["one"]()
    endless = strategy.experimental_distribute_dataset(
        gd.data.Dataset.from_tensor_slices(ROWS[:16]).repeat().batch(8)
    )

    @gd.function
    def first(count: int) -> Any:
        steps = 0
        for _ in endless:
            steps += 1
            if steps >= count:
                break
        return steps

    assert [int(first(count)) for count in (1, 2, 9, 70)] == [1, 2, 9, 70]


def test_loops_and_conditions_on_traced_values_inside() -> None:
    strategy = STRATEGIES["mirrored"]()

    def nested(dataset: Any, n: Any) -> Any:
        total, largest = 0.0, -1e9
        for batch in dataset:
            part = sum_of(strategy, batch)
            for i in range(n):
                if i == 2:
                    continue
                total += i
            halvings = 0
            while part > 1:
                part = part / 2
                halvings += 1
            total = total + halvings
            largest = part if part > largest or part < -5 else largest
        return total, largest

    dataset = distributed(strategy)
    for n in (4, jnp.int32(4)):
        expected, found = nested(dataset, 4), gd.function(nested)(dataset, n)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_values_of_the_last_step_are_there_after_the_loop() -> None:
    strategy = STRATEGIES["mirrored"]()

    @gd.function
    def last(dataset: Any) -> Any:
        for batch in dataset:
            doubled = strategy.run(lambda x: 2 * x[:1], args=(batch,))
            number = sum_of(strategy, batch)
        return doubled, number

    doubled, number = last(distributed(strategy, ROWS[:24]))
    np.testing.assert_array_equal(np.concatenate(doubled.values), 2 * ROWS[[16, 20]])
    np.testing.assert_allclose(number, ROWS[16:24].sum(), rtol=1e-5)
    with pytest.raises(UnboundLocalError):
        last(distributed(strategy, ROWS[:0]))


def test_two_loops_iterators_and_plain_loops() -> None:
    strategy = STRATEGIES["one"]()

    @gd.function
    def both(train: Any, test: Any) -> Any:
        seen = tested = jnp.float32(0)
        for epoch in range(2):
            for batch in train:
                seen += jnp.sum(batch)
            if epoch:
                for batch in test:
                    tested += jnp.sum(batch)
        return seen, tested

    seen, tested = both(distributed(strategy), distributed(strategy, ROWS[:8]))
    np.testing.assert_allclose([seen, tested], [2 * ROWS.sum(), ROWS[:8].sum()], rtol=1e-4)

    @gd.function
    def two(iterator: Any) -> Any:
        return next(iterator) + iterator.get_next()

    iterator = iter(distributed(strategy, ROWS[:32]))
    np.testing.assert_array_equal(two(iterator), ROWS[:8] + ROWS[8:16])
    np.testing.assert_array_equal(two(iterator), ROWS[16:24] + ROWS[24:32])
    with pytest.raises(gd.OutOfRangeError, match="past the end"):
        two(iterator)


def test_reduce_inside_a_function() -> None:
    strategy = STRATEGIES["mirrored"]()
    dataset = distributed(strategy)
    mean = gd.function(
        lambda: dataset.reduce(0.0, lambda total, x: total + sum_of(strategy, x)) / ROWS.size
    )
    np.testing.assert_allclose(mean(), ROWS.mean(), rtol=1e-4)


def test_functions_are_called_from_functions_and_threads() -> None:
    strategy = STRATEGIES["mirrored"]()

    @gd.function
    def total(dataset: Any) -> Any:
        found = 0.0
        for batch in dataset:
            found += sum_of(strategy, batch)
        return found

    outer = gd.function(lambda dataset: total(dataset) * 2)
    np.testing.assert_allclose(outer(distributed(strategy)), 2 * ROWS.sum(), rtol=1e-4)


def test_items_and_attributes_are_state() -> None:
    class Counts:
        batches = 0

    strategy, counts, totals = STRATEGIES["mirrored"](), Counts(), {"rows": 0}

    @gd.function
    def count(dataset: Any) -> None:
        for _ in dataset:
            counts.batches += 1
            totals["rows"] += 8

    count(distributed(strategy, ROWS[:96]))
    assert (int(counts.batches), int(totals["rows"])) == (12, 96)


def test_without_the_extra_reduce_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = STRATEGIES["mirrored"]()
    for name in [name for name in sys.modules if name.split(".")[0] == "malt"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "malt", None)
    training = Training(strategy)
    with pytest.raises(ImportError, match="diastatic-malt") as at:
        training.inside(distributed(strategy))
    assert "dataset.reduce(" in str(at.value)
    assert "pip install 'graphdist[loops]'" in str(at.value)


@pytest.mark.parametrize("name", ["mirrored", "one"])
def test_pairs_and_numbers_come_in_chunks(name: str) -> None:
    strategy = STRATEGIES[name]()
    a_step = Mock()

    def epoch(first: Any, second: Any) -> Any:
        total, weighted, numbers = 0.0, 0.0, 0
        for x, y in zip(first, second, strict=False):
            a_step()
            total += sum_of(strategy, x) * sum_of(strategy, y)
        for number, x in enumerate(first, 2):
            a_step()
            if number == 9:
                break
            weighted += number * sum_of(strategy, x)
            numbers = number
        return total, weighted, numbers

    first, second = distributed(strategy), distributed(strategy, ROWS[:80] / 2)
    expected = epoch(first, second)
    assert a_step.call_count == 18
    a_step.reset_mock()
    inside = gd.function(epoch, steps_per_execution=4)
    for _ in range(2):
        found = inside(first, second)
        np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-5)
        assert int(found[2]) == expected[2]
    assert a_step.call_count == 2 * 2, "each body is traced for one step, and for four"
    assert isinstance(found[2], jax.Array)
