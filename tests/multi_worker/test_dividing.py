"""Workers divide a dataset of another library, and continue it, also where there are fewer."""

from __future__ import annotations

from collections import Counter
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
    return [sum(step, []) for step in steps], sum((each["read"] for each in said), [])


KINDS = [
    "indexed",
    "sharded",
    pytest.param("grain", marks=pytest.mark.needs("grain")),
    pytest.param("datasets", marks=pytest.mark.needs("datasets")),
    pytest.param("torchdata", marks=pytest.mark.needs("torchdata")),
]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_stop_and_as_many_or_half_go_on(kind: str, tmp_path: Path) -> None:
    whole, read = told(2, tmp_path / "whole", kind, "end")
    assert sorted(sum(whole, [])) == list(range(SIZE * ROWS)), "a row was left out or seen twice"
    readers = 2 if kind == "torchdata" else 1
    assert set(Counter(read).values()) == {readers}
    for workers in (2, 1):
        folder = tmp_path / str(workers)
        before, _ = told(2, folder, kind, "4")
        after, read = told(workers, folder, kind, "end")
        assert before + after == whole
        assert set(Counter(read).values()) == {workers if kind == "torchdata" else 1}
        seen = set(sum(before, []))
        if kind not in ("indexed", "sharded"):  # these count batches
            assert not seen & set(read), "read again"
