"""Small variables in one buffer: nobody notices."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.runtime.executable import Executable

COUNT = 6


@pytest.fixture(params=[1, 2])
def strategy(request: pytest.FixtureRequest) -> gd.Strategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"][: request.param])


class Counters:
    """Variables of some shapes, and a step that adds to each."""

    def __init__(self, strategy: gd.Strategy) -> None:
        with strategy.scope():
            self.all = [gd.Variable(jnp.full((i, 2), float(i)), name=f"v{i}") for i in range(COUNT)]
            self.large = gd.Variable(jnp.zeros(2**13), name="large")
            self.whole = gd.Variable(jnp.zeros((), jnp.int32), name="whole")

        @gd.function
        def step(x: Any) -> Any:
            for variable in [*self.all, self.large]:
                variable.assign_add(jnp.broadcast_to(x, variable.shape))
            self.whole.assign_add(1)
            return self.all[1][...].sum()

        self.step = step


@pytest.mark.long
def test_a_step_packs_what_is_small(strategy: gd.Strategy) -> None:
    counters = Counters(strategy)
    buffers = sum(one is not None for one in strategy.buffers.buffers)
    assert buffers == COUNT + 2
    for i in range(3):
        assert float(counters.step(1.0)) == 2 * (1 + i + 1)
    # The empty one, the large one and the one integer have their own.
    assert sum(one is not None for one in strategy.buffers.buffers) == 4
    assert {one.storage.pack is None for one in counters.all[1:]} == {False}
    for i, variable in enumerate(counters.all):
        np.testing.assert_array_equal(variable.read_value(), np.full((i, 2), i + 3.0))
        assert variable.values[0].shape == (i, 2)
    assert int(counters.whole) == 3


def test_reading_assigning_and_copying(strategy: gd.Strategy) -> None:
    counters = Counters(strategy)
    counters.step(1.0)
    v2, v3 = counters.all[2:4]
    before = v2.read_value()
    v2.assign(np.full((2, 2), 9.0, "f"))
    v2.assign_sub(np.ones((2, 2), "f"))
    twin = copy.deepcopy(v2)
    counters.step(1.0)
    np.testing.assert_array_equal(before, np.full((2, 2), 3.0))
    np.testing.assert_array_equal(twin.read_value(), np.full((2, 2), 8.0))
    np.testing.assert_array_equal(v2.read_value(), np.full((2, 2), 9.0))
    np.testing.assert_array_equal(v3.read_value(), np.full((3, 2), 5.0))
    twin.assign(jnp.zeros((2, 2)))
    np.testing.assert_array_equal(v2.read_value(), np.full((2, 2), 9.0))


def test_other_functions_see_the_same(strategy: gd.Strategy) -> None:
    counters = Counters(strategy)
    v1, v2 = counters.all[1:3]
    total = gd.function(lambda: v1.read_value().sum() + v2.read_value().sum())
    double = gd.function(lambda: v2.assign(v2 * 2, read_value=False))
    assert float(total()) == 2 + 8
    double()
    counters.step(1.0)
    assert float(total()) == 4 + 20
    double()
    counters.step(1.0)
    assert float(total()) == 6 + 44
    late = gd.function(lambda: v2.read_value().sum())
    assert float(late()) == 44


def test_two_steps_with_packs_of_their_own(strategy: gd.Strategy) -> None:
    first, second = Counters(strategy), Counters(strategy)
    both = [*first.all, *second.all]
    all_of_them = gd.function(lambda: [one.assign_add(one, read_value=False) for one in both])
    first.step(1.0)
    second.step(2.0)
    all_of_them()
    first.step(1.0)
    np.testing.assert_array_equal(first.all[3].read_value(), np.full((3, 2), 9.0))
    np.testing.assert_array_equal(second.all[3].read_value(), np.full((3, 2), 10.0))


def test_a_failed_step_loses_what_it_was_given(strategy: gd.Strategy) -> None:
    counters = Counters(strategy)
    counters.step(1.0)
    v2 = counters.all[2]
    v2.storage.held.delete()
    with pytest.raises(gd.RuntimeFailure, match="'v2' is lost"):
        v2.read_value()
    with pytest.raises(gd.RuntimeFailure, match="'v1', 'v2'"):
        counters.step(1.0)
    for one in counters.all[1:]:
        one.assign(np.ones(one.shape, "f"))
    counters.step(1.0)
    np.testing.assert_array_equal(v2.read_value(), np.full((2, 2), 2.0))
    np.testing.assert_array_equal(counters.all[5].read_value(), np.full((5, 2), 2.0))


def test_a_step_that_fails_on_its_way_loses_what_it_was_given(strategy: gd.Strategy) -> None:
    fails = False

    def load(value: Any) -> Any:
        if fails:
            raise ValueError("bad data")
        return value

    with strategy.scope():
        packed = [gd.Variable(np.full(2, i, "f"), name=f"v{i}") for i in range(5)]
        other = gd.Variable(0.0, name="other")

    @gd.function
    def step() -> None:
        def replica_fn() -> None:
            shape = jax.ShapeDtypeStruct((2,), np.float32)
            loaded = jax.pure_callback(load, shape, packed[0][...])
            for variable in packed:
                variable.assign_add(gd.get_replica_context().all_reduce("MEAN", loaded))

        strategy.run(replica_fn)

    count = gd.function(lambda: strategy.run(lambda: other.assign_add(1.0)))

    def train() -> None:
        for _ in range(40):
            step()
            count()  # which has no part in it

    step()
    fails = True
    with pytest.raises(gd.RuntimeFailure, match="'v0', 'v1', 'v2', 'v3', 'v4' were donated to it"):
        train()
    fails = False
    counted = float(other)
    for variable in packed:
        variable.assign(np.full(2, 7.0, "f"))
    step()
    count()
    for variable in packed:
        np.testing.assert_array_equal(variable.read_value(), [14.0, 14.0])
    assert float(other) == counted + 1


@pytest.mark.parametrize("owner", [None, gd.OneDeviceStrategy("cpu:0")], ids=str)
def test_a_step_of_another_strategy_sees_them_packed(
    strategy: gd.Strategy, owner: gd.Strategy | None
) -> None:
    own: Any = owner or gd.get_strategy()
    with own.scope():
        several = [gd.Variable(np.full(2, i, "f")) for i in range(1, 6)]

    def each(function: Any) -> Any:
        def all_of_them() -> None:
            for variable in several:
                variable.assign(function(variable))

        return all_of_them

    double = gd.function(lambda: strategy.run(each(lambda x: x * 2)))
    increment = gd.function(lambda: own.run(each(lambda x: x + 1)))
    double()
    increment()
    assert all(one.storage.pack is not None for one in several)
    with own.scope():
        others = [gd.Variable(np.full(2, 100, "f")) for _ in range(6)]
    double()
    increment()
    double()
    for i, variable in enumerate(several, 1):
        np.testing.assert_array_equal(variable.read_value(), np.full(2, 8 * i + 6.0))
    for variable in others:
        np.testing.assert_array_equal(variable.read_value(), [100.0, 100.0])


@pytest.mark.long
def test_a_variable_can_go(strategy: gd.Strategy) -> None:
    counters = Counters(strategy)
    counters.step(1.0)
    kept = counters.all[4]
    place = kept.storage.pack.place if kept.storage.pack else -1
    del counters
    gc.collect()
    np.testing.assert_array_equal(kept.read_value(), np.full((4, 2), 5.0))
    assert strategy.buffers.buffers[place] is not None
    del kept
    gc.collect()
    assert strategy.buffers.buffers[place] is None


@pytest.mark.long
def test_a_step_from_a_file_takes_them_alone(strategy: gd.Strategy, tmp_path: Path) -> None:
    counters, others = Counters(strategy), Counters(strategy)
    compiled = counters.step.trace(1.0).lower().compile()
    gd.aot.save(tmp_path / "step.gdx", compiled)
    others.step(1.0)
    variables = (others.all, others.large, others.whole)
    loaded = gd.aot.load(tmp_path / "step.gdx", strategy=strategy, variables=variables)
    loaded(1.0)
    others.step(1.0)
    loaded(1.0)
    np.testing.assert_array_equal(others.all[3].read_value(), np.full((3, 2), 7.0))
    assert {one.storage.pack for one in others.all} == {None}


def test_a_packed_variable_can_be_shared_out() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_update=True)
    with strategy.scope():
        slots = [gd.Variable(jnp.ones((2, 4)), name=f"m{i}") for i in range(4)]
    decay = gd.function(lambda: [one.assign(one * 0.5, read_value=False) for one in slots])
    decay()
    assert {one.storage.pack is None for one in slots} == {False}

    @gd.function
    def step(x: Any) -> None:
        def replica_fn(x: Any) -> None:
            for one in slots:
                one.assign(one + gd.get_replica_context().all_reduce("SUM", x))

        strategy.run(replica_fn, args=(x,))

    x = strategy.experimental_distribute_values_from_function(lambda _: np.ones((2, 4), "f"))
    step(x)
    assert {one.storage.sharded_along for one in slots} == {0}
    decay()
    step(x)
    for one in slots:
        np.testing.assert_array_equal(one.read_value(), np.full((2, 4), 3.25))


def test_keys_and_central_storage_are_left_alone() -> None:
    with gd.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        keys = [gd.Variable(jax.random.key(i), name=f"k{i}") for i in range(5)]
    turn = gd.function(
        lambda: [one.assign(jax.random.split(one[...])[0], read_value=False) for one in keys]
    )
    turn()
    assert {one.storage.pack for one in keys} == {None}
    with gd.experimental.CentralStorageStrategy(["cpu:0", "cpu:1"]).scope():
        homed = [gd.Variable(float(i)) for i in range(5)]
    add = gd.function(lambda: [one.assign_add(1.0, read_value=False) for one in homed])
    add()
    assert {one.storage.pack for one in homed} == {None}
    assert [float(one) for one in homed] == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.long
def test_variables_updated_alike_are_updated_as_one(strategy: gd.Strategy) -> None:
    with strategy.scope():
        variables = [gd.Variable(np.full((3, i + 1), i + 1.0, "f")) for i in range(12)]
        moments = [gd.Variable(jnp.zeros((3, i + 1))) for i in range(12)]

    def replica_fn(x: Any) -> None:
        for variable, moment in zip(variables, moments, strict=True):
            gradient = gd.get_replica_context().all_reduce("SUM", x * jnp.tanh(variable[...]))
            moment.assign(0.5 * moment + gradient)
            variable.assign_sub(2.0 * moment)

    replicas = strategy.num_replicas_in_sync
    for step in range(2):
        before = [
            (np.asarray(one), np.asarray(other))
            for one, other in zip(variables, moments, strict=True)
        ]
        strategy.run(replica_fn, args=(np.float32(step + 1),))
        for (v, m), variable, moment in zip(before, variables, moments, strict=True):
            m = 0.5 * m + replicas * (step + 1) * np.tanh(v)
            np.testing.assert_allclose(moment.read_value(), m, rtol=1e-6)
            np.testing.assert_allclose(variable.read_value(), v - 2 * m, rtol=1e-6, atol=1e-6)
    packs = [{each.storage.pack for each in group} for group in (variables, moments)]
    assert [len(one) for one in packs] == [1, 1]
    assert packs[0] != packs[1]


def slices_at_constants(variables: int) -> int:
    """Return how many slices of a step on so many variables are a kernel each."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        weights = [gd.Variable(jnp.full((4, 4), float(i))) for i in range(variables)]

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            def loss(values: Any) -> Any:
                y = x
                for value in values:
                    y = jnp.sin(y @ value)
                return y.sum()

            gradients = jax.grad(loss)(gd.read(weights))
            gradients = gd.get_replica_context().all_reduce("MEAN", gradients)
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(jnp.tanh(gradient) * jnp.sort(gradient))  # piece by piece
            return x

        return strategy.run(replica_fn, args=(x,))

    step(jnp.ones((2, 4)))
    program: Any = next(iter(step._programs.values()))
    assert isinstance(program._binding.step, Executable)
    return str(program._binding.step.compiled.as_text()).count(" slice(")


@pytest.mark.long
def test_all_pieces_of_a_size_are_cut_by_one_kernel() -> None:
    assert slices_at_constants(24) == slices_at_constants(12)
