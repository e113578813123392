"""`==` of a variable: by identity with variables, element by element with arrays and numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.values.distributed import Mirrored


def variable(value: Any = (1.0, 2.0)) -> gd.Variable:
    return gd.Variable(np.asarray(value, np.float32))


@pytest.mark.long
@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (2, [False, True]),
        (2.0, [False, True]),
        (True, [True, False]),
        (1 + 0j, [True, False]),
        (np.float64(2), [False, True]),
        (np.array([1.0, 3.0]), [True, False]),
        (jnp.array([[1.0], [2.0]]), [[True, False], [False, True]]),
    ],
)
def test_with_an_array(other: Any, expected: Any) -> None:
    one = variable()
    for equal in (one == other, other == one):
        assert isinstance(equal, jax.Array)
        assert equal.tolist() == expected
    for unequal in (one != other, other != one):
        assert unequal.tolist() == np.logical_not(expected).tolist()


def test_with_variables() -> None:
    one, other = variable(), variable()
    assert (one == one) is True
    assert (one == other) is False
    assert (one != other) is True
    assert one in [other, one]
    assert one not in [other]
    assert [other, one].index(one) == 1
    assert {one: 1, other: 2}[one] == 1
    assert len({one, other, one}) == 2


@pytest.mark.parametrize("other", [None, "1", object(), {}, (1.0, 2.0)])
def test_with_what_is_no_array(other: Any) -> None:
    one = variable()
    assert (one == other) is False
    assert (one != other) is True
    assert one not in (None, "x")


def test_inside_functions_and_on_replicas() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        one = variable(0.0)
        seen = gd.Variable(
            0,
            synchronization=gd.VariableSynchronization.ON_READ,
            aggregation=gd.VariableAggregation.SUM,
        )

    @gd.function
    def step() -> Any:
        def replica_fn() -> None:
            seen.assign_add(jnp.where(one == 3, 1, 0))

        for _ in range(2):
            one.assign_add(3.0)
            strategy.run(replica_fn)
        return one == 6

    assert bool(step())
    assert int(seen) == 2
    assert bool(seen == 2)


def test_mirrored_values() -> None:
    value: Any = Mirrored(jnp.arange(2.0), 2)
    assert (value == 1).tolist() == [False, True]
    assert (value != value).tolist() == [False, False]
    assert (value == jnp.arange(2.0)).tolist() == [True, True]
    assert (value == "x") is False
    assert {value: 1}[value] == 1


def test_a_sum_of_a_metric() -> None:
    mean = gd.metrics.Mean()
    mean.update_state([1.0, 2.0])
    assert bool(mean.count == 2)


def test_a_variable_among_the_static_arguments() -> None:
    one, other, traced = variable(), variable(), []

    @gd.function
    def step(x: Any, chosen: Any) -> Any:
        traced.append(chosen)
        return x + chosen[0]

    for chosen in (one, other, one, 3):
        if isinstance(chosen, gd.Variable):
            step(jnp.ones(2), chosen)
    assert traced == [one, other]
