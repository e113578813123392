"""What tests of checkpoints share: the package they need, and a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import graphdist as gd
from graphdist.train.writing import finish_writing
from tests.train.subjects import objects


@pytest.fixture(autouse=True)
def nothing_is_left_under_way() -> Iterator[None]:
    """Wait for the writes of a test, which may fail in the one after it otherwise."""
    yield
    finish_writing()


@pytest.fixture
def pair() -> gd.Strategy:
    """Return a strategy of two replicas."""
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """Return what the paths of checkpoints start with."""
    return str(tmp_path / "ckpt")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a checkpoint of objects that hold 3."""
    checkpoint = gd.train.Checkpoint(**objects(3))
    checkpoint.write(tmp_path / "ckpt-1")
    checkpoint.sync()
    return tmp_path / "ckpt-1"
