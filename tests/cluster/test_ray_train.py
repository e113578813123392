"""A worker of Ray Train is found by what Ray tells its training function."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from graphdist.cluster.ray_train import RayTrainWorker, ray_train_worker


def context(rank: int | None, size: int | None) -> Any:
    """Return Ray's module with a context."""
    of_worker = SimpleNamespace(get_world_rank=lambda: rank, get_world_size=lambda: size)
    return SimpleNamespace(get_context=lambda: of_worker)


@pytest.mark.parametrize(
    ("rank", "size", "found"), [(1, 3, RayTrainWorker(1, 3)), (None, None, None)]
)
def test_in_a_training_function(
    rank: int | None, size: int | None, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray.train", context(rank, size))
    assert ray_train_worker() == found


def test_outside_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray.train", raising=False)
    assert ray_train_worker() is None

    def outside() -> Any:
        raise RuntimeError("no training function runs")

    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=outside))
    assert ray_train_worker() is None
