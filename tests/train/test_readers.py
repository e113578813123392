"""A trainer, an evaluator and a program that makes managers, all in one folder.

`python -m tests.train.readers` is the long form.
"""

from __future__ import annotations

import pytest

from tests.train import readers


@pytest.mark.long
def test_one_saves_while_others_read() -> None:
    outcome = readers.run(saves=20)
    assert outcome.train == 20
    assert outcome.evaluate > 1
    assert outcome.make_managers > 1
