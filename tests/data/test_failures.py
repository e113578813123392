"""An element that cannot be made is one: it is raised, counted, and the next one follows."""

from __future__ import annotations

import itertools
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import graphdist as gd
from graphdist.data.chunks import ChunkSize, StepInput, grouped
from graphdist.data.failures import FailedElement
from graphdist.data.worker_input import Agreement
from graphdist.runtime.devices import Devices
from graphdist.runtime.processes.workers import WorkerTimeouts
from tests.data.test_positions import in_turn, split, values

Dataset = gd.data.Dataset


class Broken(Exception):
    pass


def breaks_at(*places: int) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        if int(x) in places:
            raise Broken(f"broken at {x}")
        return x

    return function


def broken(size: int = 12, *places: int) -> Any:
    return Dataset.range(size).map(breaks_at(*places or (3,)))


class Elements:
    """A source of another library's: its iterators go on after they raised."""

    def __iter__(self) -> Iterator[Any]:
        return map(breaks_at(3), np.arange(12))


def drained(iterator: Any) -> list[Any]:
    """Return the elements and in words what was raised."""
    found: list[Any] = []
    for _ in range(100):
        try:
            found.append(values(next(iterator)))
        except StopIteration:
            return found
        except Exception as error:
            found.append(str(error))
    raise AssertionError("it does not end")


DATASETS: dict[str, Callable[[], Any]] = {
    "map": broken,
    "map of map": lambda: broken().map(lambda x: x),
    "filter": lambda: Dataset.range(12).filter(lambda x: breaks_at(3)(x) % 2),
    "filter of map": lambda: broken().filter(lambda x: x % 2),
    "batch": lambda: broken().batch(2),
    "padded": lambda: broken().padded_batch(2),
    "take, skip": lambda: broken().skip(2).take(4),
    "shard": lambda: broken().shard(3, 0),
    "repeat": lambda: broken(4).repeat(3),
    "concatenate": lambda: broken(5).concatenate(broken(4)),
    "zip": lambda: Dataset.zip(broken(9, 3, 5), broken(9, 4, 5)),
    "enumerate": lambda: broken().enumerate(),
    "unbatch": lambda: broken().batch(2).unbatch(),
    "shuffle": lambda: broken().shuffle(4, seed=1).repeat(2),
    "prefetch": lambda: broken().prefetch(2),
    "generator": lambda: Dataset.from_generator(lambda: map(breaks_at(3), range(6))),
    "files": lambda: Dataset.from_files(["1", "3", "5"], lambda name: [breaks_at(3)(int(name))]),
    "unequal shapes": lambda: Dataset.range(6).map(lambda x: np.zeros(2 + (x == 3))).batch(2),
}


def test_the_next_element_follows() -> None:
    iterator = iter(broken(6))
    assert drained(iterator) == [[0], [1], [2], "broken at 3", [4], [5]]
    assert iterator.get_state()["taken"] == 6


def test_what_fails_together() -> None:
    assert drained(iter(broken(6).batch(2))) == [[[0, 1]], "broken at 3", [[4, 5]]]
    assert drained(iter(broken(6).batch(4))) == ["broken at 3", [[4, 5]]]
    assert drained(iter(Dataset.zip(broken(4, 1), broken(4, 2)))) == [
        [[0, 0]], "broken at 1", "broken at 2", [[3, 3]],
    ]  # fmt: skip
    assert drained(iter(broken(6).take(5))) == [[0], [1], [2], "broken at 3", [4]]
    assert drained(iter(broken(6).enumerate().skip(3)))[0] == "broken at 3"
    assert drained(iter(broken(6).enumerate().skip(4)))[0] == [[4, 4]]


def test_a_shuffle_has_a_place_for_it() -> None:
    order = [int(x) for x in Dataset.range(12).shuffle(12, seed=1)]
    found = drained(iter(broken().shuffle(12, seed=1)))
    assert found == [[x] if x != 3 else "broken at 3" for x in order]


@pytest.mark.parametrize("name", DATASETS)
def test_every_position(name: str) -> None:
    iterator = iter(DATASETS[name]())
    whole: list[Any] = []
    states = [iterator.get_state()]
    while not whole or whole[-1] != []:
        whole += drained(itertools.islice(iterator, 1)) or [[]]
        states.append(iterator.get_state())
    whole.pop()
    assert any(isinstance(one, str) for one in whole)
    for taken, state in enumerate(states[:-1]):
        again = iter(DATASETS[name]())
        again.set_state(state)
        assert drained(again) == whole[taken:]


@pytest.mark.parametrize(
    "make",
    [
        lambda: split(broken().batch(2)),
        lambda: in_turn(broken().batch(2)),
        lambda: in_turn(broken()),
        lambda: in_turn(Elements()),
    ],
)
def test_distributed(make: Callable[[], Any]) -> None:
    iterator = iter(make())
    whole: list[Any] = []
    states = [iterator.get_state()]
    while not whole or whole[-1] != []:
        whole += drained(itertools.islice(iterator, 1)) or [[]]
        states.append(iterator.get_state())
    whole.pop()
    assert [one for one in whole if isinstance(one, str)] == ["broken at 3"]
    for taken, state in enumerate(states[:-1]):
        again = iter(make())
        again.set_state(state)
        assert drained(again) == whole[taken:]


def test_a_generator_has_no_more() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise Broken("at the generator")

    for iterator in (iter(Dataset.from_generator(numbers)), iter(in_turn(numbers()))):
        found = drained(iterator)
        assert found[-1] == "at the generator"
        assert iterator.get_state()["taken"] == len(found)


def test_the_traceback_leads_to_the_function() -> None:
    iterator = iter(broken(6).batch(2).shuffle(1, seed=1))
    next(iterator)
    with pytest.raises(Broken) as error:
        next(iterator)
    assert "function" in [frame.name for frame in traceback.extract_tb(error.tb)]


def test_a_function_that_raises_stop_iteration_ends_nothing() -> None:
    def stops(x: Any) -> Any:
        return next(iter([])) if x == 1 else x

    assert drained(iter(Dataset.range(3).map(stops))) == [
        [0], "a function of the dataset raised StopIteration", [2],
    ]  # fmt: skip


def test_the_spec_is_asked_for() -> None:
    dataset = broken(6, 1)
    with pytest.raises(Broken):
        _ = dataset.element_spec
    distributed = split(broken(4, 0).batch(2))
    with pytest.raises(Broken):
        _ = distributed.element_spec
    iterator = iter(distributed)
    with pytest.raises(Broken):
        next(iterator)
    assert iterator.get_state()["taken"] == 1
    assert values(next(iterator)) == [[2], [3]]
    iterator = iter(split(Elements()))
    with pytest.raises(gd.BatchDimensionError):
        _ = iterator.element_spec
    assert iterator.get_state()["taken"] == 1


class Group:
    """Workers that are threads."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self.said: list[Any] = [None] * size

    def exchange(self, index: int, value: Any) -> list[Any]:
        self.said[index] = value
        self._barrier.wait(30)
        of_all = list(self.said)
        self._barrier.wait(30)
        return of_all


class Member:
    timeouts = WorkerTimeouts(start=1.0, step=2.0)

    def __init__(self, group: Group, index: int) -> None:
        self._group, self.index = group, index

    def __len__(self) -> int:
        return len(self._group.said)

    def name(self, worker: int) -> str:
        return f"worker {worker}"

    def ordinal(self, kind: str) -> int:
        return 0

    def exchange(
        self, key: str, value: Any, what: str, at: Any = None, seconds: float | None = None
    ) -> list[Any]:
        assert seconds == self.timeouts.step  # not what workers may take to start
        return self._group.exchange(self.index, value)


@pytest.mark.parametrize("is_equal", [True, False])
def test_workers_of_a_replica_take_the_same_steps(is_equal: bool) -> None:
    """They may want groups of other sizes, and fail where the other does not."""
    group, sizes = Group(2), (4, 2)
    found: list[list[Any]] = [[], []]

    def work(index: int) -> None:
        steps: list[Any] = [StepInput(None, [[np.full(1, place)]]) for place in range(4)]
        if index == 1:
            steps[1] = FailedElement(Broken("disk on fire"))
        if index == 1 and not is_equal:
            steps[3] = StepInput(None, [[np.full(1, 7)]])
        member: Any = Member(group, index)
        devices = Devices(jax.devices()[:2], workers=member, num_cores=2)
        try:
            for chunk in grouped(
                iter(steps), ChunkSize(sizes[index]), Agreement(devices, lambda: None)
            ):
                found[index].extend(type(step).__name__ for step in chunk)
        except gd.WorkerError as error:
            found[index].append(str(error).splitlines()[0])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    words = "worker 0 and worker 1 have devices of the same replica, and give it different values"
    last = ["StepInput"] * 2 if is_equal else [words]
    assert found == [["StepInput", "FailedElement", *last]] * 2


@pytest.mark.parametrize("size", [1, 4])
def test_a_step_fails_on_all_workers(size: int) -> None:
    """Else workers would pair elements of different steps from there on."""
    group = Group(2)
    found: list[list[Any]] = [[], []]

    def work(index: int) -> None:
        steps: list[Any] = [StepInput(None, [[np.full(1, place)]]) for place in range(4)]
        if index == 1:
            steps[2] = FailedElement(Broken("disk on fire"))
        member: Any = Member(group, index)
        agreement = Agreement(Devices(jax.devices()[:2], workers=member), lambda: None)
        for chunk in grouped(iter(steps), ChunkSize(size), agreement):
            found[index].extend(
                str(step.error).splitlines()[0]
                if isinstance(step, FailedElement)
                else int(step.parts[0][0][0])
                for step in chunk
            )

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found[1] == [0, 1, "disk on fire", 3]
    elsewhere = "worker 1 could not make its part of an element: Broken: disk on fire"
    assert found[0] == [0, 1, elsewhere, 3]
