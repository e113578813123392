"""What JAX can do, done inside a gd.function and inside a replica function: same results."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import graphdist as gd
from tests.numerics import features_operations, features_programs, features_transformations
from tests.numerics.feature import FEATURES, Feature, check_same

assert [features_operations, features_programs, features_transformations]  # they fill the table


@pytest.fixture(scope="module")
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.mark.parametrize("feature", FEATURES, ids=str)
def test_passes_through(feature: Feature, strategy: gd.Strategy) -> None:
    of_replica = [feature.arguments(replica) for replica in range(2)]
    jitted = jax.jit(feature.call)
    expected = [jitted(*arguments) for arguments in of_replica]
    check_same(expected[0], gd.function(feature.call)(*of_replica[0]), feature.tolerance)
    per_replica = strategy.experimental_distribute_values_from_function(
        lambda context: of_replica[context.replica_id_in_sync_group]
    )
    results = gd.function(lambda *args: strategy.run(feature.call, args))(*per_replica)
    for replica in range(2):
        given = jax.tree.map(
            lambda leaf: leaf.values[replica] if isinstance(leaf, gd.PerReplica) else leaf,
            results,
            is_leaf=lambda leaf: isinstance(leaf, gd.PerReplica),
        )
        check_same(expected[replica], given, feature.tolerance)
