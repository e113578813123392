"""A worker of Ray Train is found by what Ray tells its training function."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

import graphdist as gd
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


@pytest.mark.parametrize(
    "make",
    [
        gd.MirroredStrategy,
        gd.CentralStorageStrategy,
        lambda: gd.function(lambda x: x + 1)(jnp.ones(3)),
    ],
    ids=["mirrored", "central storage", "without a strategy"],
)
def test_one_worker_of_several_is_refused(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.train", context(0, 2))
    with pytest.raises(gd.errors.ContextError, match="Ray Train has 2 workers: each would compute"):
        make()
    # On purpose, and where it is the only worker.
    gd.MirroredStrategy(["cpu:0"])
    monkeypatch.setitem(sys.modules, "ray.train", context(0, 1))
    make()
