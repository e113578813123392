"""Replicas of several cores on several workers train as those of one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cores.training import strategy_on
from tests.multi_worker.launch import run
from tests.multi_worker.programs import cores


@pytest.mark.long
@pytest.mark.parametrize("stored", ["mirrored", "slices"])
def test_workers_train_as_one_process(stored: str, tmp_path: Path) -> None:
    losses, sums, again = cores.train(strategy_on(2, 2), str(tmp_path / "alone"))
    assert again == sums
    outcome = run(2, "cores", str(tmp_path / "workers"), stored, devices=2)
    assert outcome.status == 0, outcome.err
    for worker in range(2):
        (said,) = outcome.said[worker]
        np.testing.assert_allclose(said[0], losses, rtol=1e-4)
        assert said[1] == pytest.approx(sums, rel=1e-3, abs=1e-3)
        assert said[2] == said[1]
