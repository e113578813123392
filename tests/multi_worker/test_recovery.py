"""Training that is killed, and brought back by the launcher from its last checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.multi_worker.drill import Training, run_drill


@pytest.mark.long
@pytest.mark.parametrize("in_slices", [False, True])
def test_nothing_is_lost_when_workers_are_killed(in_slices: bool) -> None:
    drill = run_drill(4, num_kills=3, steps_a_checkpoint=5, in_slices=in_slices)
    drill.check()


@pytest.mark.long
@pytest.mark.parametrize("in_slices", [False, True])
def test_fewer_workers_go_on(tmp_path: Path, in_slices: bool) -> None:
    arguments = ("--steps-a-checkpoint", "5", "--steps", "40", *["--in-slices"] * in_slices)
    options = ("--max-restarts", "1", "--min-workers", "1")
    killed = Training(2, tmp_path / "killed", *arguments, options=options)
    killed.wait_for_steps(0, 12)
    moment, at = killed.kill(1, "at any")
    assert killed.finish() == 0
    kill = killed.outcome(0, 1, moment, at)
    first, second = killed.lives
    assert (len(first.processes), len(second.processes)) == (2, 1)
    assert kill.resumed_at in (5, 10)

    alone = Training(1, tmp_path / "alone", *arguments)
    assert alone.finish() == 0
    losses = first.numbers() | second.numbers()
    expected = alone.lives[0].numbers()
    assert len(expected) == 40
    np.testing.assert_allclose(
        [losses[step] for step in range(40)], [expected[step] for step in range(40)], rtol=1e-3
    )
