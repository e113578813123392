"""Some of the changed files.

`python -m tests.mutations.trial` and `python -m tests.mutations.checkpoints` try as many as asked.
"""

from __future__ import annotations

import pytest

from tests.mutations import checkpoints
from tests.mutations.trial import run_trials


@pytest.mark.long
@pytest.mark.parametrize(("kind", "count"), [("artifacts", 10), ("texts", 250)])
def test_changed_files_are_used_or_refused(kind: str, count: int) -> None:
    result = run_trials(kind, count)
    assert not result.faults, result
    assert result.outcomes.total() == count
    assert len(result.outcomes) > 1, "all were refused, or all used"


@pytest.mark.long
def test_changed_checkpoints_are_refused_or_read_as_saved() -> None:
    assert checkpoints.run(60) < checkpoints.MOST_MEBIBYTES
