"""Random programs split over cores leave behind, interpreted, what they do unsplit.

Nothing is compiled: both graphs are interpreted, the split one on all cores. A program is split in
several ways. To look for what the suite does not find, in so many programs and with other numbers:

    pytest tests/properties/test_split_programs.py --hypothesis-profile=long
"""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir.graph import Graph
from graphdist.ir.printer import print_graph
from graphdist.ir.verifier import verify
from graphdist.passes.cores.split_over_cores import SplitOverCores
from tests.passes.execution import Trial, check_outcome, equal, small_integers
from tests.properties.core_programs import VARIABLES, replica_function
from tests.properties.drawn_values import SHAPES
from tests.properties.effort import programs
from tests.properties.evaluated_by_numpy import evaluate
from tests.properties.splits import on_cores

ARGUMENTS = (("float32", SHAPES[3]), ("float32", SHAPES[8]), ("int32", SHAPES[1]))


@cache
def on_replicas(count: int) -> tuple[gd.Strategy, list[gd.Variable]]:
    """Return a strategy of so many replicas, and the variables of programs."""
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(count)])
    with strategy.scope():
        variables = [gd.Variable(np.zeros(shape, "i"), dtype=dtype) for dtype, shape in VARIABLES]
    return strategy, variables


def traced(seed: int, num_replicas: int) -> Graph:
    """Return the program of a seed as it is traced."""
    strategy, variables = on_replicas(num_replicas)
    replica_fn = replica_function(seed, variables)
    step = gd.function(lambda *values: strategy.run(replica_fn, args=values))
    with strategy.scope():
        specs = [gd.PerReplicaSpec(shape, dtype) for dtype, shape in ARGUMENTS]
        return step.trace(*specs).graph


def check_splits(seed: int, num_replicas: int, cores: tuple[int, ...]) -> None:
    """Split the program of a seed over these numbers of cores, and compare what it leaves."""
    graph = traced(seed, num_replicas)
    trial = Trial.at_random(graph, np.random.default_rng(seed), small_integers)
    expected = trial.outcome(graph, evaluate)
    for number, num_cores in enumerate(cores):
        asked = on_cores(graph, num_cores, Random(seed + number))
        try:
            split = SplitOverCores()(asked)
            verify(split, full=True)
            check_outcome(trial.outcome(split, evaluate), expected, equal)
        except Exception as error:
            raise AssertionError(
                f"seed {seed} on {num_replicas} replicas, split {number} over {num_cores} cores:\n"
                f"{print_graph(asked)}"
            ) from error


@programs(12)
@given(st.integers(0, 2**32), st.sampled_from([1, 1, 2]), st.sampled_from([(2, 4, 8), (2, 2, 4)]))
def test_splits_leave_what_the_program_leaves(
    seed: int, num_replicas: int, cores: tuple[int, ...]
) -> None:
    check_splits(seed, num_replicas, cores)
