"""Workers agree on the step to stop after: the same one, and one that each of them reaches."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from graphdist.runtime.processes.step_agreement import StepAgreement
from graphdist.runtime.processes.workers import Workers

SECONDS = 10.0


class ThreadWorker(Workers):
    """A worker on a thread of this process: all of them share what is said."""

    def __init__(self, index: int, count: int, said: dict[str, str]) -> None:
        self.index, self.count, self._said = index, count, said


@contextmanager
def agreements(count: int) -> Iterator[list[StepAgreement]]:
    said: dict[str, str] = {}
    made = [
        StepAgreement(ThreadWorker(index, count, said), "training", SECONDS)
        for index in range(count)
    ]
    yield made
    for agreement in made:
        agreement.close()


@pytest.mark.parametrize("noticed", ["inside a step", "between two steps"])
def test_all_stop_after_the_same_step(noticed: str) -> None:
    count, step_of_notice = 3, 5
    collective = threading.Barrier(count)  # a step ends when all have begun it
    stopped_after: dict[int, int] = {}

    def run(index: int, agreement: StepAgreement) -> None:
        for step in itertools.count(1):
            agreement.begin_step()
            if index == 1 and step == step_of_notice and noticed == "inside a step":
                agreement.request()
            collective.wait(SECONDS)
            if agreement.end_step():
                stopped_after[index] = step
                return
            if index == 1 and step == step_of_notice and noticed == "between two steps":
                agreement.request()

    with agreements(count) as made, ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count), made))
    assert len(set(stopped_after.values())) == 1, stopped_after
    assert stopped_after[0] >= step_of_notice


def test_a_step_under_way_is_the_last() -> None:
    with agreements(1) as (only,):
        only.begin_step()
        only.request()
        assert only.end_step()


def test_between_two_steps_the_next_is_the_last() -> None:
    with agreements(1) as (only,):
        only.begin_step()
        assert not only.end_step()
        only.request()
        only.begin_step()
        assert only.end_step()
