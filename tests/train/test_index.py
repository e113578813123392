"""Which worker writes what of a checkpoint, and what a saved one has for whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.runtime.files.checkpoint_disk import DiskFiles
from graphdist.runtime.processes.workers import Workers
from graphdist.train.index import SavedCheckpoint, can_take, owners
from graphdist.train.leaves import ArrayEntry, StateEntry, ValueEntry


def entry(name: str, size: int) -> ArrayEntry:
    return ArrayEntry(name, "float32", (size,), lambda: np.zeros(size, "f"), lambda array: None)


class SomeWorkers(Workers):
    """One of several workers, as far as a state is chosen for it."""

    def __init__(self, index: int, count: int) -> None:
        super().__init__()
        self.index, self.count = index, count


@pytest.fixture
def saved(path: Path) -> SavedCheckpoint:
    return SavedCheckpoint("ckpt-1", DiskFiles(path))


@given(st.lists(st.integers(0, 1000), max_size=12), st.integers(1, 4))
def test_workers_write_about_the_same(sizes: list[int], count: int) -> None:
    entries = [entry(str(number), size) for number, size in enumerate(sizes)]
    owner = owners(entries, count)
    assert owner == owners(list(reversed(entries)), count)  # all workers find the same
    loads = [0] * count
    for each in entries:
        loads[owner[each.name]] += each.num_bytes
    largest = max((each.num_bytes for each in entries), default=0)
    assert max(loads) - min(loads) <= largest


@pytest.mark.parametrize(
    ("value", "other", "fits"),
    [
        (1, 2, True),
        (1.0, 2, True),
        (1.0, 2**1023, True),
        (1.0, 2**1024, False),
        (1, 2.0, False),
        (True, 1, False),
        (1, True, False),
        ("a", "b", True),
        ("1", 1, False),
    ],
)
def test_a_value_takes_one_of_its_type(value: Any, other: Any, fits: bool) -> None:
    assert can_take(value, other) is fits
    if fits:
        assert type(value)(other) == other


def test_an_alias_names_what_was_saved(path: Path, tmp_path: Path) -> None:
    v = gd.Variable(1.0)
    checkpoint = gd.train.Checkpoint(first=v, second=v)
    checkpoint.write(tmp_path / "shared")
    checkpoint.sync()
    saved = SavedCheckpoint("shared", DiskFiles(tmp_path / "shared"))
    assert saved.names == {"first"}
    assert saved.saved_as("second") == saved.saved_as("first") == "first"
    assert saved.saved_as("third") is None


def test_an_entry_of_another_kind_disagrees(saved: SavedCheckpoint) -> None:
    array = next(iter(saved.arrays))
    state = StateEntry("s", lambda: None, lambda new: None, None)
    value = ValueEntry("v", 1, lambda new: None)
    for kind in (state, value, entry("a", 10**6)):
        text = saved.disagreement(kind, array)
        assert text is not None
        assert f"saved was {saved.arrays[array].dtype}" in text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_worker_has_its_own_state(saved: SavedCheckpoint, count: int) -> None:
    saved.states["iterator"] = [{"taken": 1}, {"taken": 2}]
    if count == 2:
        assert saved.state("iterator", SomeWorkers(1, count)) == {"taken": 2}
    else:
        with pytest.raises(gd.CheckpointError, match=f"by 2 workers .* restored on {count}"):
            saved.state("iterator", SomeWorkers(0, count))


def test_states_that_are_alike_are_for_any_number_of_workers(saved: SavedCheckpoint) -> None:
    saved.states["iterator"] = [{"taken": 2}] * 2
    assert saved.state("iterator", SomeWorkers(2, 3)) == {"taken": 2}
