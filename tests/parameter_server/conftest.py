"""One cluster for the tests of a file: starting the processes takes seconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import graphdist as gd
from graphdist.coordinator import ClusterCoordinator


@pytest.fixture(scope="module")
def strategy() -> Iterator[gd.ParameterServerStrategy]:
    """Return a strategy of two workers and two servers."""
    pytest.importorskip("ray")
    made = gd.ParameterServerStrategy(num_workers=2, num_servers=2)
    yield made
    made.shutdown()
    gc.collect()


@pytest.fixture(scope="module")
def coordinator(strategy: gd.ParameterServerStrategy) -> ClusterCoordinator:
    """Return its coordinator."""
    return ClusterCoordinator(strategy)
