"""Other words for a loop over a dataset: in chunks where that is sound, else told once, and why."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, wraps
from itertools import islice
from typing import Any
from unittest.mock import Mock

import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from tests.program.test_looping_functions import ROWS, STRATEGIES, distributed, sum_of

STRATEGY = STRATEGIES["mirrored"]()
A_STEP = Mock()
DATASET = distributed(STRATEGY)
"""13 batches of 8 rows, and one of 3."""


def loss(batch: Any) -> Any:
    A_STEP()
    return sum_of(STRATEGY, batch)


def epoch(dataset: Any) -> Any:
    total = 0.0
    for batch in dataset:
        total += loss(batch)
    return total


def two_epochs(dataset: Any) -> Any:
    return epoch(dataset) + epoch(dataset)


class Trainer:
    """Keeps its dataset, as trainers do."""

    def __init__(self) -> None:
        self.dataset = DATASET
        self.seen = jnp.float32(0)

    def epoch(self) -> Any:
        for batch in self.dataset:
            self.seen += loss(batch)
        return self.seen


def by_numbers(dataset: Any) -> Any:
    total = 0.0
    for number, batch in zip(range(2, 20, 3), dataset):  # noqa: B905
        total += number * loss(batch)
    return total


def numbers_behind(dataset: Any) -> Any:
    total = 0.0
    for place, (batch, number) in enumerate(zip(dataset, range(5), strict=False)):
        total += (number + 10 * place) * loss(batch)
    return total


def pairs_and_numbers(dataset: Any) -> Any:
    total = 0.0
    for first, number, second in zip(dataset, range(4), dataset):  # noqa: B905
        total += number * loss(first) + loss(second)
    return total


def first_elements(dataset: Any) -> Any:
    total = 0.0
    for batch in islice(dataset, 6):
        total += loss(batch)
    for batch in itertools.islice(dataset, 3):
        total -= loss(batch)
    return total


def first_with_numbers(dataset: Any) -> Any:
    total = 0.0
    for number, batch in enumerate(islice(dataset, 6), 1):
        total += number * loss(batch)
        if number == 4:
            break
    return total


def by_sum(dataset: Any) -> Any:
    return sum(loss(batch) for batch in dataset) + sum((loss(x) for x in dataset), jnp.float32(2))


def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call


@logged
def decorated(dataset: Any, *, scale: float = 2.0) -> Any:
    total = 0.0
    for batch in dataset:
        total += scale * loss(batch)
    return total


class Epoch:
    """An object that is called, of a class whose method has the loop."""

    def __call__(self, dataset: Any) -> Any:
        return self.add_up(dataset)

    @staticmethod
    def add_up(dataset: Any) -> Any:
        return epoch(dataset)


class TwoEpochs(Epoch):
    def __call__(self, dataset: Any) -> Any:
        return super().__call__(dataset) + decorated(dataset, scale=3.0)


def in_objects_and_decorated(dataset: Any) -> Any:
    return decorated(dataset) + TwoEpochs()(dataset)


def in_a_helper(dataset: Any) -> Any:
    return two_epochs(dataset)


def in_a_function_of_its_own(dataset: Any) -> Any:
    def add_up() -> Any:
        total = 0.0
        for batch in dataset:
            total += loss(batch)
        return total

    return add_up()


def in_a_method(dataset: Any) -> Any:
    return Trainer().epoch()


CHUNKED: dict[str, Callable[[Any], Any]] = {
    fn.__name__: fn
    for fn in (
        by_numbers,
        numbers_behind,
        pairs_and_numbers,
        first_elements,
        first_with_numbers,
        by_sum,
        in_a_helper,
        in_a_function_of_its_own,
        in_a_method,
        in_objects_and_decorated,
    )
}


@pytest.mark.parametrize("name", CHUNKED)
def test_a_loop_in_other_words_runs_in_chunks(name: str) -> None:
    expected = CHUNKED[name](DATASET)
    inside = gd.function(CHUNKED[name], steps_per_execution=2)
    A_STEP.reset_mock()
    np.testing.assert_allclose(inside(DATASET), expected, rtol=1e-4)
    traced = A_STEP.call_count
    np.testing.assert_allclose(inside(DATASET), expected, rtol=1e-4)
    assert traced < 14, "fewer than batches"
    assert name in ("in_a_method", "in_a_function_of_its_own") or A_STEP.call_count == traced


def by_next(iterator: Any) -> Any:
    total = 0.0
    for _ in range(4):
        total += loss(next(iterator))
    return total


def by_get_next(iterator: Any) -> Any:
    total = 0.0
    for _ in range(4):
        batch = iterator.get_next()
        total += loss(batch)
    return total


def with_a_loop_inside(iterator: Any) -> Any:
    total = 0.0
    for _ in range(4):
        batch = next(iterator)
        for number in range(3):
            if number == 2:
                break
            total += (number + 1) * loss(batch)
    return total


def four_of_it(iterator: Any) -> Any:
    total = 0.0
    for batch in islice(iterator, 4):
        total += loss(batch)
    return total


def four_with_numbers(iterator: Any) -> Any:
    total = 0.0
    for number, batch in zip(range(4), iterator):  # noqa: B905
        total += number * loss(batch)
    return total


def the_sum_of_four(iterator: Any) -> Any:
    return sum(loss(batch) for batch in islice(iterator, 4))


@pytest.mark.parametrize(
    "ask",
    [by_next, by_get_next, with_a_loop_inside, four_of_it, four_with_numbers, the_sum_of_four],
)
@pytest.mark.parametrize("strategy", ["mirrored", "one"])
def test_an_iterator_is_asked_in_chunks_and_goes_on_behind_them(
    ask: Callable[[Any], Any], strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "STRATEGY", STRATEGIES[strategy]())
    iterators = [iter(distributed(STRATEGY)) for _ in range(2)]
    inside = gd.function(ask, steps_per_execution=3)
    for call in range(3):
        expected = ask(iterators[0])
        A_STEP.reset_mock()
        np.testing.assert_allclose(inside(iterators[1]), expected, rtol=1e-4)
        assert A_STEP.call_count <= (0 if call else 4)
        assert iterators[0].get_state() == iterators[1].get_state()
    left = [next(iterator) for iterator in iterators]
    assert loss(left[0]) == loss(left[1])


def test_an_iterator_gives_out_the_batch_of_another_size_by_itself() -> None:
    rows = ROWS[: 8 * 5 + 3]
    inside = gd.function(epoch, steps_per_execution=2)
    total = inside(iter(distributed(STRATEGY, rows)))
    np.testing.assert_allclose(total, rows.sum(), rtol=1e-4, atol=1e-4)


def test_an_element_that_fails_is_told_when_those_before_it_have_been_used() -> None:
    def source() -> Iterator[np.ndarray]:
        for number in range(6):
            if number == 4:
                raise OSError("the disk is gone")
            yield np.full((8, 6), number, np.float32)

    with STRATEGY.scope():
        seen = gd.Variable(0)

    @gd.function(steps_per_execution=3)
    def count(iterator: Any) -> Any:
        for _ in range(6):
            next(iterator)
            seen.assign_add(1)

    with pytest.raises(OSError, match="the disk is gone"):
        count(iter(STRATEGY.experimental_distribute_dataset(source())))
    assert int(seen) == 4


def with_break(iterator: Any) -> Any:
    total = 0.0
    for batch in iterator:
        total += loss(batch)
        if total > 1e9:
            break
    return total


def by_comprehension(dataset: Any) -> Any:
    return sum([loss(batch) for batch in dataset])


def the_largest(dataset: Any) -> Any:
    return max(float(loss(batch)) for batch in dataset)


def with_a_list(dataset: Any) -> Any:
    total = 0.0
    for weight, batch in zip([0.5, 2.0, 3.0], dataset):  # noqa: B905
        total += weight * loss(batch)
    return total


def two_at_once(iterator: Any) -> Any:
    total = 0.0
    for _ in range(3):
        total += loss(next(iterator)) - loss(next(iterator))
    return total


def found(dataset: Any) -> Any:
    total = 0.0
    for batch in dataset:
        total += loss(batch)
        if float(total) > 1e9:
            return total
    return total


def through_what_cannot_be_converted(dataset: Any) -> Any:
    return found(dataset)


def losses_of(dataset: Any) -> Iterator[Any]:
    for batch in dataset:
        yield loss(batch)


def through_a_generator(dataset: Any) -> Any:
    total = 0.0
    for value in losses_of(dataset):
        total += value
    return total


def through_a_partial(dataset: Any) -> Any:
    return partial(epoch)(dataset)


def a_list_of_losses(iterator: Any) -> Any:
    losses = []
    for _ in range(4):
        losses.append(loss(next(iterator)))
    return losses[-1]


ONE_BY_ONE = {
    with_break: "break leaves a loop over an iterator",
    by_comprehension: "the line reads an iterator",
    the_largest: "a generator expression is no loop that is compiled",
    with_a_list: "the line reads an iterator",
    two_at_once: "the line reads an iterator",
    through_what_cannot_be_converted: "found is not converted, since a loop is left by return",
    through_a_generator: "losses_of is not converted, since losses_of is a generator",
    through_a_partial: "the line reads an iterator",
    a_list_of_losses: "losses",
}


@pytest.mark.parametrize("fn", ONE_BY_ONE, ids=lambda fn: fn.__name__)
def test_what_runs_element_by_element_is_right_and_told_once(fn: Callable[[Any], Any]) -> None:
    given = [iter(DATASET) for _ in range(2)] if fn in _OF_ITERATORS else [DATASET] * 2
    expected = fn(given[0])
    inside = gd.function(fn)
    with pytest.warns(gd.ElementByElementWarning) as told:
        np.testing.assert_allclose(inside(given[1]), expected, rtol=1e-4)
    said = str(told[0].message)
    assert said.startswith(f"{fn.__name__} takes elements one by one at {__file__}:")
    assert ONE_BY_ONE[fn] in said
    assert "A loop `for batch in dataset` in the function" in said
    assert len(told) == 1
    if fn in _OF_ITERATORS:
        assert given[0].get_state() == given[1].get_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside(given[1])


_OF_ITERATORS = (with_break, two_at_once, a_list_of_losses)


def test_a_lambda_is_not_converted() -> None:
    with pytest.warns(gd.ElementByElementWarning, match="a lambda is not converted"):
        total = gd.function(lambda dataset: epoch(dataset))(DATASET)
    np.testing.assert_allclose(total, ROWS.sum(), rtol=1e-4, atol=1e-4)


def until_the_end(iterator: Any) -> Any:
    total = 0.0
    with suppress(StopIteration):
        for _ in range(40):
            total += loss(next(iterator))
    return total


def with_an_assignment(dataset: Any) -> Any:
    last = None
    total = sum((last := loss(batch)) for batch in dataset)
    return total + last


@pytest.mark.filterwarnings("ignore::graphdist.ElementByElementWarning")
@pytest.mark.parametrize("fn", [until_the_end, with_an_assignment])
def test_what_ends_or_assigns_by_python_is_as_in_python(fn: Callable[[Any], Any]) -> None:
    given = [iter(DATASET) if fn is until_the_end else DATASET for _ in range(2)]
    expected = fn(given[0])
    np.testing.assert_allclose(gd.function(fn)(given[1]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::graphdist.ElementByElementWarning")
def test_a_loop_that_cannot_be_traced_is_tried_once() -> None:
    inside = gd.function(a_list_of_losses)
    A_STEP.reset_mock()
    for call in range(3):
        inside(iter(DATASET))
        assert A_STEP.call_count == 1 + 4 * (call + 1)


def test_an_element_a_call_is_no_loop() -> None:
    iterator = iter(DATASET)
    step = gd.function(lambda iterator: loss(next(iterator)))
    for _ in range(3):
        step(iterator)


def test_a_source_that_fails_at_once_fails_once() -> None:
    def source() -> Iterator[np.ndarray]:
        yield np.ones((8, 6), np.float32)
        raise gd.ArgumentError("no such file")

    iterator = iter(STRATEGY.experimental_distribute_dataset(source()))
    next(iterator)
    with pytest.raises(gd.ArgumentError, match="no such file"):
        gd.function(by_next)(iterator)


class Fresh:
    """Has another iterator each time that it is asked for one."""

    @property
    def iterator(self) -> Any:
        return iter(DATASET)

    def add_up(self) -> Any:
        total = 0.0
        for _ in range(3):
            total += loss(next(self.iterator))
        return total


def test_a_property_that_makes_iterators_is_read_each_time() -> None:
    fresh = Fresh()
    first = loss(next(iter(DATASET)))
    np.testing.assert_allclose(gd.function(fresh.add_up)(), 3 * first, rtol=1e-4, atol=1e-4)


def test_missing_elements_are_told_when_those_before_have_been_used() -> None:
    iterator = iter(distributed(STRATEGY, ROWS[:24]))
    with pytest.raises(gd.OutOfRangeError, match="past the end"):
        gd.function(by_next)(iterator)
    assert not iterator.get_next_as_optional().has_value()
