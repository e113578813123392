"""One cluster for the tests of a file: starting the processes takes seconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import graphdist as gd
from graphdist.coordinator import ClusterCoordinator


def running(num_workers: int) -> Iterator[gd.ParameterServerStrategy]:
    """Yield a strategy of so many workers and two servers, and end its processes."""
    made = gd.ParameterServerStrategy(num_workers=num_workers, num_servers=2)
    yield made
    made.shutdown()
    gc.collect()


@pytest.fixture(scope="module")
def strategy() -> Iterator[gd.ParameterServerStrategy]:
    """Return a strategy of two workers and two servers."""
    yield from running(num_workers=2)


@pytest.fixture(scope="module")
def alone() -> Iterator[gd.ParameterServerStrategy]:
    """Return a strategy of one worker and two servers."""
    yield from running(num_workers=1)


@pytest.fixture(scope="module")
def coordinator(strategy: gd.ParameterServerStrategy) -> ClusterCoordinator:
    """Return its coordinator."""
    return ClusterCoordinator(strategy)
