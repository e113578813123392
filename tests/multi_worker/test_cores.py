"""Replicas of several cores on several workers train as those of one process."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.cores.training import strategy_on
from tests.multi_worker.launch import run
from tests.multi_worker.programs import cores


@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "devices", "num_cores", "stored"),
    [
        (2, 2, 2, "mirrored"),
        (2, 2, 2, "slices"),
        (2, 1, 2, "mirrored"),  # the only replica has a device of each worker
        (4, 1, 2, "slices"),
    ],
)
def test_workers_train_as_one_process(
    workers: int, devices: int, num_cores: int, stored: str, tmp_path: Path
) -> None:
    replicas = workers * devices // num_cores
    alone = cores.train(strategy_on(replicas, num_cores), str(tmp_path / "alone"))
    outcome = run(
        workers, "cores", str(tmp_path / "workers"), stored, str(num_cores), devices=devices
    )
    assert outcome.status == 0, outcome.err
    for worker in range(workers):
        (((*trained,), (total, *refused)),) = outcome.said[worker]
        for (losses, sums, again), (losses_alone, sums_alone, _) in zip(
            trained, alone, strict=True
        ):
            np.testing.assert_allclose(losses, losses_alone, rtol=1e-4)
            assert sums == pytest.approx(sums_alone, rel=1e-3, abs=1e-3)
            assert again == sums
        assert total == sum(range(32))
        is_shared = num_cores > devices
        assert len(refused) == (2 if is_shared and replicas > 1 else 1 if is_shared else 0)
        for words in refused:
            assert re.search(r"worker 0 .* and worker 1 .* have devices of the same replica", words)
