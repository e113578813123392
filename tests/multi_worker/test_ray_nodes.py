"""The example of Ray Train on two nodes goes on with the same numbers when a worker is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any  # Any: what pytest compares with

import pytest

import graphdist as gd
from graphdist.passes import Target
from tests.multi_worker.launch import ROOT, SECONDS, environment

PROGRAM = [sys.executable, "-m", "tests.multi_worker.programs.ray_on_two_nodes"]
STEPS, CHECKPOINT, LAST, KILLS = 30, 12, 16, 2


class Unpacked(gd.MultiWorkerMirroredStrategy):
    """Workers store small variables apart; packs change how XLA adds the loss up."""

    @property
    def target(self) -> Target:
        return replace(super().target, packs_variables=False)


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """Return the losses of one process with two devices."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from train_digits import Settings
    from train_multi_worker import Plan, train

    losses: list[float] = []
    plan = Plan(str(tmp_path / "alone"), STEPS, STEPS)
    strategy = Unpacked(devices=["cpu:0", "cpu:1"])
    train(strategy, Settings(), plan, lambda step, loss: losses.append(float(loss)))
    return losses


def about(loss: float) -> Any:
    """Return a loss up to its last bits: processors differ in how XLA rounds the two programs."""
    return pytest.approx(loss, rel=1e-6)


def check_equal_losses(of_ranks: dict[int, list[tuple[int, int, float]]]) -> None:
    """Check that a step has the same loss, to the bit, on all ranks and each time that it runs."""
    losses: dict[int, set[float]] = {}
    for found in of_ranks.values():
        for _, step, loss in found:
            losses.setdefault(step, set()).add(loss)
    assert [len(each) for each in losses.values()] == [1] * STEPS


def trained(
    folder: Path, how: str, starts: int
) -> tuple[str, dict[int, list[tuple[int, int, float]]]]:
    """Return the output of the program, and what each rank wrote: process, step and loss.

    Each of so many starts may take `SECONDS`, of which Ray takes 15 to start two workers.
    """
    done = subprocess.run(
        [*PROGRAM, str(folder), how],
        env=environment(RAY_AUTH_MODE="disabled"),
        capture_output=True,
        text=True,
        timeout=starts * SECONDS,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    (reported,) = (line[5:] for line in said.splitlines() if line.startswith("SAYS "))
    metrics, accuracy = json.loads(reported)
    assert metrics["step"] == STEPS
    assert accuracy > 0.85
    lines = {rank: (folder / f"losses-{rank}").read_text().splitlines() for rank in (0, 1)}
    return said, {rank: [tuple(json.loads(each)) for each in lines[rank]] for rank in lines}


@pytest.mark.long
@pytest.mark.needs("ray_train")
@pytest.mark.parametrize("how", ["killed", "removed"])
def test_workers_go_on_from_the_checkpoint_when_one_is_lost(
    how: str, expected: list[float], tmp_path: Path
) -> None:
    said, of_ranks = trained(tmp_path, how, starts=2)
    for found in of_ranks.values():
        first = found[0][0]  # the process
        before = [step for process, step, _ in found if process == first]
        after = [step for process, step, _ in found if process != first]
        assert before == list(range(LAST + 1))
        assert after == list(range(CHECKPOINT, STEPS))
        assert [loss for _, step, loss in found] == [about(expected[step]) for _, step, _ in found]
    check_equal_losses(of_ranks)
    # Each start says once who the workers are.
    names = [line for line in said.splitlines() if "graphdist: 2 workers of Ray Train" in line]
    assert len(names) == 2


@pytest.mark.long
@pytest.mark.needs("ray_train")
def test_workers_that_are_killed_at_random(expected: list[float], tmp_path: Path) -> None:
    _, of_ranks = trained(tmp_path, "drilled", starts=1 + KILLS)
    assert len(list(tmp_path.glob("kill-*"))) == KILLS
    for found in of_ranks.values():
        assert len({process for process, _, _ in found}) > 1, "some kill came in a step"
        assert {step for _, step, _ in found} == {*range(STEPS)}
        assert [loss for _, step, loss in found] == [about(expected[step]) for _, step, _ in found]
    check_equal_losses(of_ranks)
