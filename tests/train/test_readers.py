"""A trainer, an evaluator and one that makes managers; and checkpoints changed at random.

`python -m tests.train.readers` and `python -m tests.train.mutations` are the long forms.
"""

from __future__ import annotations

import pytest

from tests.train import mutations, readers

pytestmark = pytest.mark.slow


def test_one_saves_while_others_read() -> None:
    outcome = readers.run(saves=20)
    assert outcome.train == 20
    assert outcome.evaluate > 1
    assert outcome.make_managers > 1


def test_changed_checkpoints_are_refused_or_read_as_saved() -> None:
    assert mutations.run(60) < mutations.MOST_MEBIBYTES
