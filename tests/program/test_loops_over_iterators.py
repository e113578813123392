"""Iterators of distributed datasets in functions, against the same statements outside of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from tests.program.test_looping_functions import ROWS, STRATEGIES, Training, distributed

pytestmark = pytest.mark.filterwarnings("ignore::graphdist.ElementByElementWarning")
"""Most of these ask for elements one by one: `test_element_by_element.py` has what is told."""


class Loops(Training):
    """The ways in which programs ask an iterator for elements; each returns the sum of losses."""

    def train(self, batch: Any) -> Any:
        losses = self.strategy.run(self.replica_fn, args=(batch,))
        return self.strategy.reduce("SUM", losses, axis=None)

    def by_next(self, iterator: Any, steps: Any) -> Any:
        total = 0.0
        for _ in range(steps):
            total += self.train(next(iterator))
        return total

    def by_get_next(self, iterator: Any, steps: Any) -> Any:
        total, step = jnp.float32(0), jnp.int32(0)
        while step < steps:
            total += self.train(iterator.get_next())
            step += 1
        return total

    def by_optional(self, iterator: Any, steps: Any) -> Any:
        total = 0.0
        for _ in range(steps):
            optional = iterator.get_next_as_optional()
            if not optional.has_value():
                break
            total += self.train(optional.get_value())
        return total

    def while_there_are_any(self, iterator: Any, steps: Any) -> Any:
        total = 0.0
        optional = iterator.get_next_as_optional()
        while optional.has_value():
            total += self.train(optional.get_value())
            optional = iterator.get_next_as_optional()
        return total

    def until_the_loss_is_low(self, iterator: Any, steps: Any) -> Any:
        total = loss = jnp.float32(9)
        while loss > 0.9:
            loss = self.train(next(iterator))
            total += loss
        return total

    def by_for(self, iterator: Any, steps: Any) -> Any:
        total = 0.0
        for batch in iterator:
            total += self.train(batch)
        return total

    def one_of_the_function(self, dataset: Any, steps: Any) -> Any:
        iterator = iter(dataset)
        total = 0.0
        for _ in range(steps):
            total += self.train(next(iterator))
        return total

    def of_several_calls(self, iterator: Any, steps: Any) -> Any:
        step = gd.function(lambda iterator: self.train(next(iterator)))
        total = 0.0
        for _ in range(steps):
            total += step(iterator)
        return total


WAYS = [name for name in vars(Loops) if not name.startswith("_") and name != "train"]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["mirrored", "one"])
@pytest.mark.parametrize("steps", [5, jnp.int32(5)], ids=["number", "array"])
@pytest.mark.parametrize("name", WAYS)
def test_a_loop_is_the_same_inside_as_outside(name: str, steps: Any, strategy: str) -> None:
    found = []
    for wrap in (lambda fn: fn, gd.function):
        loops = Loops(STRATEGIES[strategy]())
        dataset = distributed(loops.strategy)
        given = dataset if name == "one_of_the_function" else iter(dataset)
        total = wrap(getattr(loops, name))(given, steps)
        left = None if given is dataset else given.get_state()
        found.append((np.asarray(total), np.asarray(loops.w), left))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]


def test_two_iterators_are_asked_in_turn_and_go_on_in_the_next_call() -> None:
    strategy = STRATEGIES["mirrored"]()

    @gd.function
    def differences(first: Any, second: Any, steps: Any) -> Any:
        total = jnp.zeros(6)
        for _ in range(steps):
            ahead = strategy.reduce("SUM", next(first), axis=0)
            total += ahead - strategy.reduce("SUM", second.get_next(), axis=0)
        return total

    first, second = iter(distributed(strategy)), iter(distributed(strategy, ROWS[::-1]))
    for call in range(2):
        rows = slice(24 * call, 24 * (call + 1))
        expected = ROWS[rows].sum(0) - ROWS[::-1][rows].sum(0)
        np.testing.assert_allclose(differences(first, second, 3), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("leaves_early", [False, True])
def test_a_loop_over_a_dataset_may_ask_an_iterator(steps: int, leaves_early: bool) -> None:
    """Labeled and other examples, say: the host runs the body, also where steps were stacked."""
    strategy = STRATEGIES["mirrored"]()

    @gd.function(steps_per_execution=steps)
    def pairs(dataset: Any, iterator: Any) -> Any:
        total, count = 0.0, 0
        for batch in dataset:
            other = next(iterator)
            total += strategy.reduce("SUM", batch, axis=0) @ jnp.ones(6)
            total -= 2 * strategy.reduce("SUM", other, axis=0) @ jnp.ones(6)
            count += 1
            if leaves_early and count == 6:
                break
        return total, count

    rows = ROWS[: 8 * 13]
    iterator = iter(distributed(strategy, rows))
    for _ in range(2):  # the second call knows how many steps a program has
        total, count = pairs(distributed(strategy, rows), iterator)
        assert count == (6 if leaves_early else 13)
        taken = 48 if leaves_early else 104
        np.testing.assert_allclose(total, -rows[:taken].sum(), rtol=1e-4)
        if not leaves_early:
            assert not iterator.get_next_as_optional().has_value()
        iterator = iter(distributed(strategy, rows))


def test_a_loop_over_a_dataset_has_a_loop_over_another() -> None:
    strategy = STRATEGIES["mirrored"]()

    @gd.function(steps_per_execution=2)
    def products(outer: Any, inner: Any) -> Any:
        total = 0.0
        for first in outer:
            weight = strategy.reduce("SUM", first, axis=0)[0]
            for second in inner:
                total += weight * strategy.reduce("SUM", second, axis=0)[1]
        return total

    rows = ROWS[:40]
    found = products(distributed(strategy, rows), distributed(strategy, rows[:16]))
    np.testing.assert_allclose(found, rows[:, 0].sum() * rows[:16, 1].sum(), rtol=1e-3)


def test_a_reduction_asks_an_iterator() -> None:
    strategy = STRATEGIES["mirrored"]()
    iterator = iter(distributed(strategy, ROWS[:40]))

    def add(total: Any, batch: Any) -> Any:
        return total + strategy.reduce("SUM", batch, axis=0) * strategy.reduce(
            "SUM", next(iterator), axis=0
        )

    found = distributed(strategy, ROWS[:40]).reduce(jnp.zeros(6), add, steps_per_execution=2)
    sums = ROWS[:40].reshape(5, 8, 6).sum(1)
    np.testing.assert_allclose(found, (sums * sums).sum(0), rtol=1e-4)


@pytest.mark.parametrize("ask", [next, lambda iterator: iterator.get_next()])
def test_past_the_end_the_elements_before_have_been_taken(ask: Callable[[Any], Any]) -> None:
    strategy = STRATEGIES["mirrored"]()
    with strategy.scope():
        seen = gd.Variable(0)

    @gd.function
    def count(iterator: Any, steps: Any) -> Any:
        for _ in range(steps):
            ask(iterator)
            seen.assign_add(1)

    with pytest.raises(gd.OutOfRangeError, match="past the end"):
        count(iter(distributed(strategy, ROWS[:16])), 5)
    assert int(seen) == 2


def test_a_value_that_a_trace_has_not_is_jax_error_without_a_dataset() -> None:
    with pytest.raises(jax.errors.TracerIntegerConversionError):
        gd.function(lambda steps: sum(range(steps)))(5)
