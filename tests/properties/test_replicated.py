"""Random steps on one to four replicas: compiled, and interpreted, the same.

The interpreter runs the logical graph replica by replica, with no SPMD anywhere. `test_passes.py`
interprets the graphs on the way, and the root's `conftest.py` checks that each survives its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any  # Any: results are pytrees

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir.arrays import Held
from tests.passes.execution import execute
from tests.properties.effort import programs
from tests.properties.exact import check_arrays, random_arrays
from tests.properties.replicated_programs import (
    MIRRORED,
    PER_REPLICA,
    Distributed,
    distributed_programs,
)


@cache
def strategy_of(num_replicas: int, shard_update: bool) -> gd.MirroredStrategy:
    devices = [f"cpu:{number}" for number in range(num_replicas)]
    return gd.MirroredStrategy(devices, shard_update=shard_update)


class Case:
    """A program with a strategy, variables and arguments to run it with."""

    def __init__(self, program: Distributed, num_replicas: int, seed: int) -> None:
        self.strategy = strategy_of(num_replicas, shard_update=bool(seed % 2))
        initial = program.world.make(self.strategy, seed)
        self.function = gd.function(lambda *arguments: program(self.strategy, *arguments))
        of_replica = [random_arrays(PER_REPLICA, seed, replica) for replica in range(num_replicas)]
        mirrored = random_arrays(MIRRORED, seed)
        per_replica = self.strategy.experimental_distribute_values_from_function(
            lambda context: of_replica[context.replica_id_in_sync_group]
        )
        self.arguments = per_replica, mirrored
        of_input = [*zip(*of_replica, strict=True), *((x,) * num_replicas for x in mirrored)]
        self.held: list[Held] = [[np.asarray(x) for x in held] for held in of_input]
        self.traced = self.function.trace(*self.arguments)
        self.state: dict[str, Held] = {
            spec.name: [np.asarray(initial[spec.name])] * num_replicas
            for spec in self.traced.graph.variables
            if not spec.is_local
        }

    def call(self) -> list[Held]:
        """Run the compiled function and return what each replica holds of each result."""
        leaves = jax.tree.leaves(self.function(*self.arguments))
        return [self._held(leaf) for leaf in leaves]

    def _held(self, leaf: Any) -> Held:
        if isinstance(leaf, gd.PerReplica):
            return [np.asarray(value) for value in leaf.values]
        return [np.asarray(leaf)] * self.strategy.num_replicas_in_sync


def check_equal(given: Sequence[Held], expected: Sequence[Held]) -> None:
    """Compare what the replicas hold; at the boundary a number may be an array of one."""
    assert len(given) == len(expected)
    for number, (ours, theirs) in enumerate(zip(given, expected, strict=True)):
        for replica, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            check_arrays(one.reshape(other.shape), other, f"value {number} on replica {replica}")


@pytest.mark.long
@programs(13)  # each is compiled, which is dear
@given(distributed_programs(), st.integers(1, 4), st.integers(0, 9))
def test_compiled(program: Distributed, num_replicas: int, seed: int) -> None:
    """Two steps on devices: what the first leaves in the variables shows in the second."""
    case = Case(program, num_replicas, seed)
    state = case.state
    for _ in range(2):
        expected = execute(case.traced.graph, case.held, state)
        check_equal(case.call(), expected.outputs)
        state = expected.state
