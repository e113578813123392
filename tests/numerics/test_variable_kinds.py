"""Scatter updates, copies, printing and reduction of variables, by numbers recorded or computed."""

from __future__ import annotations

import copy
from typing import Any  # Any: distributed values

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

SUM, MEAN = gd.VariableAggregation.SUM, gd.VariableAggregation.MEAN
FIRST, NONE = gd.VariableAggregation.ONLY_FIRST_REPLICA, gd.VariableAggregation.NONE
ON_READ = gd.VariableSynchronization.ON_READ


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def variable(strategy: gd.Strategy, value: Any, **options: Any) -> gd.Variable:
    with strategy.scope():
        return gd.Variable(value, name="w", **options)


def slices_of_replica() -> gd.IndexedSlices:
    """Return what replica r writes: 10 * (r + 1) at row 1."""
    number = gd.get_replica_context().replica_id_in_sync_group
    return gd.IndexedSlices(jnp.array([10.0]) * (number + 1), jnp.array([1]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "cross", "by_sum", "by_mean"),
    [
        ("scatter_add", 12, 32, 17),
        ("scatter_sub", -8, -28, -13),
        ("scatter_mul", 20, 400, 100),
        ("scatter_div", 0.2, 0.01, 0.04),
    ],
)
def test_scatter_updates(
    strategy: gd.Strategy, method: str, cross: float, by_sum: float, by_mean: float
) -> None:
    in_cross = gd.IndexedSlices(jnp.array([10.0]), jnp.array([1]))
    for aggregation, expected in ((SUM, by_sum), (MEAN, by_mean), (FIRST, cross)):
        of = variable(strategy, [1.0, 2.0, 3.0], aggregation=aggregation)
        strategy.run(lambda of=of: getattr(of, method)(slices_of_replica()))
        np.testing.assert_allclose(of.read_value(), [1, expected, 3], rtol=1e-6)
        of = variable(strategy, [1.0, 2.0, 3.0], aggregation=aggregation)
        assert getattr(of, method)(in_cross) is of
        np.testing.assert_allclose(of.read_value(), [1, cross, 3], rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "expected"), [("scatter_min", 2), ("scatter_max", 10), ("scatter_update", 10)]
)
def test_scatter_updates_of_one_replica(
    strategy: gd.Strategy, method: str, expected: float
) -> None:
    of = variable(strategy, [1.0, 2.0, 3.0], aggregation=FIRST)
    strategy.run(lambda: getattr(of, method)(slices_of_replica()))
    assert of.read_value().tolist() == [1, expected, 3]


def test_scatter_of_unequal_slices(strategy: gd.Strategy) -> None:
    of = variable(strategy, np.zeros(3, np.float32), aggregation=SUM)
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: np.arange(2 - context.replica_id_in_sync_group)
    )
    strategy.run(
        lambda rows: of.scatter_add(gd.IndexedSlices(jnp.ones(rows.shape), rows)), args=(rows,)
    )
    assert of.read_value().tolist() == [2, 1, 0]


def test_slices_that_differ_and_no_aggregation_are_refused(strategy: gd.Strategy) -> None:
    of = variable(strategy, [1.0, 2.0])
    with pytest.raises(gd.DistributionError):
        strategy.run(lambda: of.scatter_add(slices_of_replica()))


def test_a_deep_copy_is_another_variable(strategy: gd.Strategy) -> None:
    for options in ({}, {"synchronization": ON_READ, "aggregation": SUM}):
        of = variable(strategy, 4.0, **options)
        other = copy.deepcopy(of)
        other.assign(2.0)
        assert [float(value) for value in of.values] == [4, 4]
        assert other.name == "w"
        assert other.synchronization is of.synchronization
        del other
        assert [float(value) for value in of.values] == [4, 4]


def test_printing(strategy: gd.Strategy) -> None:
    assert repr(variable(strategy, 1.0)) == "<Variable 'w' f32[] mirrored on cpu:0, cpu:1: 1.0>"
    assert repr(gd.Variable(1.0, name="w")) == "<Variable 'w' f32[] on cpu:0: 1.0>"
    assert repr(gd.Variable(jnp.eye(2), name="w")) == (
        "<Variable 'w' f32[2,2] on cpu:0: [[1. 0.] [0. 1.]]>"
    )
    large = repr(variable(strategy, jnp.zeros((30, 30))))
    assert large == "<Variable 'w' f32[30,30] mirrored on cpu:0, cpu:1>"


def test_variables_are_distributed_values(strategy: gd.Strategy) -> None:
    of = variable(strategy, [1.0, 2.0])
    assert isinstance(of, gd.DistributedValues)
    assert [value.tolist() for value in strategy.experimental_local_results(of)] == [[1, 2]] * 2
    kept = of.values
    of.assign([5.0, 6.0])
    assert kept[0].tolist() == [1, 2]


def test_reduce_and_gather_of_variables(strategy: gd.Strategy) -> None:
    mirrored = variable(strategy, [1.0, 2.0])
    own = variable(strategy, [0.0, 0.0], synchronization=ON_READ, aggregation=NONE)
    strategy.run(
        lambda: own.assign(jnp.ones(2) * (gd.get_replica_context().replica_id_in_sync_group + 1.0))
    )
    assert strategy.reduce("MEAN", mirrored, axis=None).tolist() == [1, 2]
    assert float(strategy.reduce("SUM", mirrored, axis=0)) == 6
    assert strategy.gather(mirrored, axis=0).tolist() == [1, 2, 1, 2]
    assert strategy.reduce("SUM", own, axis=None).tolist() == [3, 3]
    assert strategy.reduce("MEAN", own, axis=None).tolist() == [1.5, 1.5]
    assert strategy.gather(own, axis=0).tolist() == [1, 1, 2, 2]


def test_one_variable_for_all_replicas_that_make_it(strategy: gd.Strategy) -> None:
    made: list[gd.Variable] = []

    def replica_fn() -> None:
        number = gd.get_replica_context().replica_id_in_sync_group
        made.append(gd.Variable(np.float32(number) + 5))

    strategy.run(replica_fn)
    assert len(made) == 2
    assert made[0] is made[1]
    assert [float(value) for value in made[0].values] == [5, 5]


def test_writing_without_reading(strategy: gd.Strategy) -> None:
    of = variable(strategy, 1.0)
    assert of.assign(3.0, read_value=False) is None
    assert strategy.run(lambda: of.assign_add(1.0, read_value=False)) is None
    assert float(of.read_value()) == 4


def test_the_constraint_is_kept(strategy: gd.Strategy) -> None:
    assert variable(strategy, 1.0, constraint=jnp.abs).constraint is jnp.abs


def test_a_variable_is_iterated_as_its_value(strategy: gd.Strategy) -> None:
    assert [float(x) for x in variable(strategy, [1.0, 2.0])] == [1, 2]
    with pytest.raises(TypeError, match="0-d"):
        iter(variable(strategy, 1.0))


OPERATORS = ["+", "-", "*", "//", "%", "**", "&", "|", "^", "<<", ">>", "<", "<=", ">", ">="]


@pytest.mark.long
@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_are_those_of_the_value(strategy: gd.Strategy, operator: str) -> None:
    values = {"v": variable(strategy, [5, 2]), "a": jnp.array([5, 2]), "n": np.array([3, 1])}
    for text in ("{} {} 2", "2 {1} {0}", "{} {} n", "n {1} {0}"):
        of_variable, of_array = (eval(text.format(x, operator), values) for x in "va")
        assert isinstance(of_variable, jax.Array)
        assert of_variable.dtype == of_array.dtype
        assert of_variable.tolist() == of_array.tolist()


def test_unary_operators_are_those_of_the_value(strategy: gd.Strategy) -> None:
    v = variable(strategy, [5, -2])
    assert [(~v).tolist(), (-v).tolist(), (+v).tolist(), abs(v).tolist()] == [
        [-6, 1],
        [-5, 2],
        [5, -2],
        [5, 2],
    ]


def test_a_variable_shows_no_value_in_another_scope(strategy: gd.Strategy) -> None:
    v = variable(strategy, 1.0)
    with gd.MirroredStrategy(["cpu:2"]).scope():
        assert repr(v) == "<Variable 'w' f32[] mirrored on cpu:0, cpu:1>"


def test_what_an_array_has_and_a_variable_has_not_is_said(strategy: gd.Strategy) -> None:
    v: Any = variable(strategy, [1.0, 2.0])
    with pytest.raises(AttributeError, match=r"no 'sum'; .* write variable\[\.\.\.\]\.sum"):
        v.sum()
    with pytest.raises(AttributeError, match=r"no 'numpy': write np\.asarray\(variable\)"):
        v.numpy()
    with pytest.raises(AttributeError, match=r"write variable\.assign\(variable\[\.\.\.\]\.at"):
        v.scatter_nd_update([[0]], [1.0])
    assert not hasattr(v, "handle")


def test_a_variable_keeps_its_dtype_whatever_it_is_given(strategy: gd.Strategy) -> None:
    one = jnp.ones((), jnp.bfloat16)
    for options in ({}, {"synchronization": ON_READ, "aggregation": MEAN}):
        v = variable(strategy, 1.0, **options)
        for write in (v.assign, v.assign_add):
            assert (one * v.read_value()).dtype == jnp.float32
            write(4.0)
            assert (one * v.read_value()).dtype == jnp.float32
            with strategy.scope():
                assert gd.function(lambda v=v: one * v)().dtype == jnp.float32
