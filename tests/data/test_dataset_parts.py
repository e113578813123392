"""Workers that each read a part of a dataset: each element once, the same steps on fewer."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import pytest

import graphdist as gd
from graphdist.data.adapters import other_dataset
from graphdist.data.dataset_parts import DatasetParts, joined_states, resumed_parts
from graphdist.data.positions import SourceStates
from tests.data.datasets_in_parts import ROWS, Counted, Indexed, Sharded


class Job:
    """Workers that read parts of a dataset together."""

    def __init__(self, dataset: Any, workers: int) -> None:
        self.nodes: list[Any] = [
            DatasetParts(other_dataset(dataset), workers, (worker,)) for worker in range(workers)
        ]
        if workers == 1:
            self.nodes = [other_dataset(dataset)]
        self.taken = 0
        self.streams = [node.stream() for node in self.nodes]

    def step(self) -> list[int] | None:
        """Return the rows of the next step, worker after worker; None past the last."""
        rows = [next(stream, None) for stream in self.streams]
        self.taken += 1
        if all(row is None for row in rows):
            return None
        return [int(x) for row in rows if row is not None for x in row["x"]]

    def rest(self) -> list[list[int]]:
        return list(iter(self.step, None))

    def states(self) -> list[Any]:
        return json.loads(json.dumps([stream.state() for stream in self.streams]))

    def resume(self, states: Any, taken: int) -> None:
        state = joined_states([[state] for state in states])
        count = len(self.nodes)
        resumed = [
            resumed_parts(node, SourceStates(taken, state), taken, count, worker)
            for worker, node in enumerate(self.nodes)
        ]
        self.taken, self.nodes = taken, [each.node for each in resumed]
        self.streams = []
        for node, sources in resumed:
            _, of_node = sources.before(taken)
            self.streams.append(node.stream(0, of_node and of_node[0]))


KINDS = [Indexed, Sharded, Counted]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [8, 10, 4])
def test_each_element_is_read_by_one_worker(kind: Any, size: int) -> None:
    read: list[int] = []
    rest = Job(kind(size, read), 4).rest()
    assert sorted(read) == list(range(size))
    assert sorted(chain.from_iterable(rest)) == list(range(size * ROWS))
    whole, incomplete = rest[: 4 * (size // 4)], rest[4 * (size // 4) :]
    assert {len(rows) for rows in whole} == {ROWS}
    assert sum(map(len, incomplete)) == size % 4 * ROWS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [4, 2, 1])
@pytest.mark.parametrize("taken", range(9))
def test_fewer_workers_go_on_with_the_same_steps(kind: Any, workers: int, taken: int) -> None:
    whole = Job(kind(10, []), 4).rest()
    job = Job(kind(10, []), 4)
    for _ in range(taken):
        job.step()
    read: list[int] = []
    resumed = Job(kind(10, read), workers)
    resumed.resume(job.states(), taken)
    if kind is not Counted:
        in_use = range(4 * (taken // 4), 4 * (taken // 4) + (4 if taken % 4 else 0))
        assert read == [index for index in in_use if index < 10]
    again = resumed.states()
    assert joined_states(again) == joined_states(job.states())
    rest = resumed.rest()
    assert rest == whole[taken:]
    if kind is not Counted:
        assert sorted(read) == list(range(4 * (taken // 4), 10))


@pytest.mark.parametrize("workers", [3, 8])
def test_a_number_that_does_not_divide(workers: int) -> None:
    job = Job(Sharded(24, []), 4)
    for _ in range(4):
        job.step()
    with pytest.raises(
        gd.ArgumentError, match=f"4 workers each read a part .* {workers} cannot share 4 parts"
    ) as error:
        Job(Sharded(24, []), workers).resume(job.states(), 4)
    assert "restore on 1, 2, 4 workers" in str(error.value)


@pytest.mark.parametrize("workers", [3, 8])
def test_elements_by_index_are_divided_anew(workers: int) -> None:
    job = Job(Indexed(24, []), 4)
    for _ in range(8):
        job.step()
    read: list[int] = []
    resumed = Job(Indexed(24, read), workers)
    resumed.resume(job.states(), 8)
    taken = 0 if workers == 8 else 3
    rest = [resumed.step() for _ in range(taken)]
    states = resumed.states()
    resumed.resume(states, 8 + taken)
    rest += resumed.rest()
    assert sorted(chain.from_iterable(filter(None, rest))) == list(range(8 * ROWS, 24 * ROWS))
    assert sorted(read) == list(range(8, 24))
    job.step()
    with pytest.raises(gd.ArgumentError, match="save after a multiple of 4 steps"):
        Job(Indexed(24, []), workers).resume(job.states(), 9)


@pytest.mark.parametrize("kind", [Indexed, Sharded])
def test_more_workers_go_on_where_one_was(kind: Any) -> None:
    alone = Job(kind(8, []), 1)
    seen = [alone.step() for _ in range(3)]
    read: list[int] = []
    resumed = Job(kind(8, read), 2)
    resumed.resume(alone.states(), 3)
    rest = resumed.rest()
    if kind is Sharded:  # its stream cannot be divided on the way: each worker reads all of it
        assert read == sorted(2 * list(range(3, 8)))
        return
    assert sorted(read) == list(range(3, 8))
    assert sorted(chain.from_iterable(filter(None, [*seen, *rest]))) == list(range(8 * ROWS))


def test_one_worker_lacks_the_states_of_others() -> None:
    job = Job(Indexed(8, []), 2)
    job.step()
    with pytest.raises(gd.ArgumentError, match="has the states of the dataset's parts 0, and"):
        Job(Indexed(8, []), 1).resume(job.states()[:1], 1)
    with pytest.raises(gd.ArgumentError, match="this dataset is not read in parts"):
        Job([1, 2], 1).resume(job.states(), 1)


def test_positions_that_differ_otherwise() -> None:
    with pytest.raises(ValueError, match="differ"):
        joined_states([{"taken": 1}, {"taken": 2}])
