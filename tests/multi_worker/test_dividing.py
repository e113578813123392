"""Workers divide a dataset of another library, and continue it, also where there are fewer."""

from __future__ import annotations

import shutil
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.data.datasets_in_parts import ROWS
from tests.multi_worker.launch import run
from tests.multi_worker.programs.dividing import SIZE


def told(workers: int, folder: Path, kind: str, stop: str) -> tuple[list[list[int]], list[int]]:
    """Return the rows of each step of all workers, and all that they have read."""
    outcome = run(workers, "dividing", str(folder), kind, stop)
    assert outcome.status == 0, outcome.err
    said: list[Any] = [outcome.said[worker][0] for worker in range(workers)]
    steps = zip(*(each["rows"] for each in said), strict=True)
    return [list(chain(*step)) for step in steps], list(chain(*(each["read"] for each in said)))


KINDS = [
    "indexed",
    "sharded",
    "grain",
    "datasets",
    pytest.param("torchdata", marks=pytest.mark.needs("torchdata")),
]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_stop_and_as_many_or_half_go_on(kind: str, tmp_path: Path) -> None:
    whole, read = told(2, tmp_path / "whole", kind, "end")
    assert sorted(chain(*whole)) == list(range(SIZE * ROWS)), "a row was left out or seen twice"
    readers = 2 if kind == "torchdata" else 1  # all workers read a loader
    unit = ROWS if kind in ("indexed", "sharded") else 1  # these count batches
    assert set(Counter(read).values()) == {readers}
    before, _ = told(2, tmp_path / "saved", kind, "4")
    for workers in (2, 1):
        folder = tmp_path / str(workers)
        shutil.copytree(tmp_path / "saved", folder)
        after, read = told(workers, folder, kind, "end")
        assert before + after == whole
        assert set(Counter(read).values()) == {workers if kind == "torchdata" else 1}
        again = set(chain(*before)) & {unit * index for index in read}
        # Hugging Face reads the last batch of each of the two parts again, by itself.
        assert len(again) == (2 * ROWS if kind == "datasets" else 0)
