"""The example of several workers goes on where it was stopped; here in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import train_multi_worker
from train_digits import Settings
from train_multi_worker import Plan

import graphdist as gd


def losses_of(plan: Plan) -> dict[int, float]:
    strategy = gd.MultiWorkerMirroredStrategy()
    losses: dict[int, float] = {}

    def report(step: int, loss: float) -> None:
        losses[step] = float(loss)

    train_multi_worker.train(strategy, Settings(), plan, report)
    return losses


@pytest.mark.long
def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    whole = losses_of(Plan(str(tmp_path / "whole"), steps=30, steps_a_checkpoint=12))
    first = losses_of(Plan(str(tmp_path / "parts"), steps=26, steps_a_checkpoint=12))
    second = losses_of(Plan(str(tmp_path / "parts"), steps=30, steps_a_checkpoint=12))
    assert list(second) == list(range(24, 30))
    assert {**first, **second} == whole
