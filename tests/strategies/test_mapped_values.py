"""A `PerReplica` that `jax.tree` takes apart in a function: as outside, where it is a leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: pytrees of values

import jax
import numpy as np
import pytest

import graphdist as gd
from graphdist.errors import DistributionError

STRATEGY = gd.MirroredStrategy(["cpu:0", "cpu:1"])


def multiples(x: Any) -> Any:
    return {"a": x, "b": (2 * x, 3 * x)}


def results(x: Any) -> Any:
    """Return a tree of values that differ between the replicas."""
    return STRATEGY.run(multiples, args=(x,))


def values() -> Any:
    return STRATEGY.experimental_distribute_values_from_function(
        lambda context: np.array([1, 2], np.float32) * (context.replica_id_in_sync_group + 1)
    )


def mean(leaf: Any) -> Any:
    return STRATEGY.reduce("MEAN", leaf, axis=None)


def total(leaf: Any) -> Any:
    return STRATEGY.reduce("SUM", leaf, axis=None)


def by_structure(x: Any) -> Any:
    leaves: Any
    structure: Any
    leaves, structure = jax.tree.flatten(results(x))
    return jax.tree.unflatten(structure, list(map(total, leaves)))


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: jax.tree.map(mean, results(x)),
    "sum": lambda x: jax.tree.map(total, results(x)),
    "mean along an axis": lambda x: jax.tree.map(
        lambda leaf: STRATEGY.reduce("MEAN", leaf, axis=0), results(x)
    ),
    "gather": lambda x: jax.tree.map(lambda leaf: STRATEGY.gather(leaf, 0), results(x)),
    "leaves": lambda x: list(map(total, jax.tree.leaves(results(x)))),
    "flatten": by_structure,
    "path": lambda x: jax.tree_util.tree_map_with_path(lambda path, leaf: total(leaf), results(x)),
    "fold": lambda x: jax.tree.reduce(lambda added, leaf: added + total(leaf), results(x), 0.0),
    "run": lambda x: total(
        jax.tree.map(lambda leaf: STRATEGY.run(lambda y: y * y, args=(leaf,)), results(x))
    ),
    "reduce_to": lambda x: jax.tree.map(
        lambda leaf: STRATEGY.extended.reduce_to("SUM", leaf, "cpu:0"), results(x)
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_mapped_method_does_the_same_inside_a_function(name: str) -> None:
    program = PROGRAMS[name]
    expected, found = program(values()), gd.function(program)(values())
    structures: list[Any] = [jax.tree.structure(tree) for tree in (found, expected)]
    assert structures[0] == structures[1]
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert not isinstance(one, gd.PerReplica)
        np.testing.assert_array_equal(one, other)


def test_local_results_of_a_mapped_value_are_the_replicas() -> None:
    @gd.function
    def step(x: Any) -> Any:
        return [STRATEGY.experimental_local_results(leaf) for leaf in jax.tree.leaves(results(x))]

    np.testing.assert_array_equal(step(values()), [[[k, 2 * k], [2 * k, 4 * k]] for k in (1, 2, 3)])


def test_leaves_that_are_returned_have_a_value_per_replica() -> None:
    first, second, third = gd.function(lambda x: jax.tree.leaves(results(x)))(values())
    for k, leaf in enumerate((first, second, third), 1):
        assert isinstance(leaf, gd.PerReplica)
        np.testing.assert_array_equal(leaf.values, [[k, 2 * k], [2 * k, 4 * k]])


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA", "NONE"])
def test_mapped_means_are_assigned_as_outside(aggregation: str) -> None:
    def step(variable: gd.Variable, x: Any) -> None:
        grads = jax.tree.map(mean, results(x))
        STRATEGY.run(lambda grads: variable.assign_sub(grads["a"]), args=(grads,))

    ends = []
    for wrapped in (step, gd.function(step)):
        with STRATEGY.scope():
            variable = gd.Variable(
                np.zeros(2, np.float32), aggregation=gd.VariableAggregation[aggregation]
            )
        wrapped(variable, values())
        ends.append(np.asarray(variable.read_value()))
    np.testing.assert_array_equal(ends[0], ends[1])


def test_a_mean_of_what_was_computed_from_a_leaf_is_refused() -> None:
    """Inside a function `leaf * 2` is an array of which nothing says that it differs."""

    def step(x: Any) -> Any:
        means = jax.tree.map(lambda leaf: mean(leaf * 2), results(x))
        return STRATEGY.run(lambda means: means["a"] + 1, args=(means,))

    with pytest.raises(DistributionError, match="per-replica"):
        gd.function(step)(values())
    with pytest.raises(gd.errors.ArgumentError, match="all of a tree at once"):
        gd.function(lambda x: jax.tree.map(lambda leaf: total(leaf * 2), results(x)))(values())
