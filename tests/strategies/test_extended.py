"""`strategy.extended`, inside functions and outside; the numbers are TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: values of any strategy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

MAKES: dict[str, Callable[[], gd.Strategy]] = {
    "mirrored": lambda: gd.MirroredStrategy(["cpu:0", "cpu:1"]),
    "central": lambda: gd.CentralStorageStrategy(["cpu:0", "cpu:1"], "cpu:2"),
    "workers": lambda: gd.MultiWorkerMirroredStrategy(devices=["cpu:0", "cpu:1"]),
    "one": lambda: gd.OneDeviceStrategy("cpu:1"),
    "default": gd.get_strategy,
}
SEVERAL = ["mirrored", "central", "workers"]
ONE = ["one", "default"]


@pytest.fixture(params=SEVERAL)
def strategy(request: pytest.FixtureRequest) -> gd.Strategy:
    return MAKES[request.param]()


@pytest.fixture(params=ONE)
def alone(request: pytest.FixtureRequest) -> gd.Strategy:
    return MAKES[request.param]()


def numbers(strategy: gd.Strategy, first: float = 1.0) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.float32(first + context.replica_id_in_sync_group)
    )


def variable(strategy: gd.Strategy, start: Any = 1.0, **options: Any) -> gd.Variable:
    with strategy.scope():
        return gd.Variable(start, name="v", **options)


def floats(mirrored: Any) -> list[float]:
    assert isinstance(mirrored, gd.Mirrored)
    return [float(value) for value in mirrored.values]


def test_reduce_to_a_device(strategy: gd.Strategy) -> None:
    total = strategy.extended.reduce_to("SUM", numbers(strategy), "cpu:1")
    assert float(total) == 3
    assert total.devices() == {jax.local_devices()[1]}


def test_reduce_to_all_devices(strategy: gd.Strategy) -> None:
    extended, x, v = strategy.extended, numbers(strategy), variable(strategy)
    assert floats(extended.reduce_to("MEAN", x, x)) == [1.5, 1.5]
    total = extended.reduce_to("sum", x, v)
    assert floats(total) == [3, 3]
    assert float(v) == 1
    assert total.array.sharding == strategy.devices.mirrored
    assert floats(extended.reduce_to("SUM", x, total)) == [3, 3]


def test_reduce_to_where_an_array_is(strategy: gd.Strategy) -> None:
    there = jax.device_put(0.0, jax.local_devices()[3])
    total = strategy.extended.reduce_to("SUM", numbers(strategy), there)
    assert total.devices() == there.devices()


def test_the_mean_of_a_mirrored_value_is_itself(strategy: gd.Strategy) -> None:
    x = numbers(strategy)
    total = strategy.extended.reduce_to("SUM", x, x)
    assert strategy.extended.reduce_to("MEAN", total, "cpu:0") is total


def test_one_replica_has_its_result(alone: gd.Strategy) -> None:
    x = jnp.float32(4)
    assert float(alone.extended.reduce_to("SUM", x, "cpu:3")) == 4
    assert float(alone.extended.reduce_to("MEAN", x, x)) == 4
    assert alone.extended.batch_reduce_to("SUM", []) == []
    assert alone.extended.broadcast_to(x, "cpu:1") is x


def test_batch_reduce_to_is_one_program(strategy: gd.Strategy) -> None:
    one, other = numbers(strategy), numbers(strategy, 3.0)
    pairs = [(one, one), (other, "cpu:0")]
    mean, total = strategy.extended.batch_reduce_to("MEAN", pairs)
    assert floats(mean) == [1.5, 1.5]
    assert float(total) == 3.5
    assert strategy.extended.batch_reduce_to("SUM", []) == []


def test_inside_a_function(strategy: gd.Strategy) -> None:
    v = variable(strategy)

    @gd.function
    def step(x: Any) -> Any:
        extended = strategy.extended
        mean, total = extended.batch_reduce_to("MEAN", [(x, v), (x, "cpu:0")])
        everywhere = extended.broadcast_to(mean + total, v)
        extended.update(v, lambda v, by: v.assign_add(by), args=(everywhere,))
        return everywhere, mean * 2, extended.read_var(v)

    everywhere, twice, read = step(numbers(strategy))
    assert floats(everywhere) == [3, 3]
    assert (float(twice), float(read), float(v)) == (3, 4, 4)


def test_broadcast_to(strategy: gd.Strategy) -> None:
    extended, v = strategy.extended, variable(strategy)
    assert floats(extended.broadcast_to(jnp.float32(3), v)) == [3, 3]
    assert extended.broadcast_to(jnp.float32(3), "cpu:1").devices() == {jax.local_devices()[1]}
    assert extended.broadcast_to(3.0, v) == 3.0


def test_update_calls_once_and_aggregates_nothing(strategy: gd.Strategy) -> None:
    v = variable(strategy, aggregation=gd.VariableAggregation.SUM)
    calls = []

    def update(v: gd.Variable, by: Any, *, scale: float) -> Any:
        calls.append(gd.in_cross_replica_context())
        v.assign_add(by * scale)
        return v + 1.0

    x = numbers(strategy)
    by = strategy.extended.reduce_to("SUM", x, x)
    result = strategy.extended.update(v, update, args=(by,), kwargs={"scale": 2.0})
    assert calls == [True]
    assert float(v) == 7
    if len(strategy.extended.parameter_devices) == 1:
        assert float(result) == 8
    else:
        assert floats(result) == [8, 8]


def test_update_without_grouping_has_a_result_a_copy(strategy: gd.Strategy) -> None:
    v = variable(strategy)
    results = strategy.extended.update(v, lambda v: v + 1.0, group=False)
    copies = len(strategy.extended.parameter_devices)
    assert [float(result) for result in results] == [2.0] * copies


def test_update_of_on_read_variables_is_of_each_copy(strategy: gd.Strategy) -> None:
    v = variable(
        strategy,
        synchronization=gd.VariableSynchronization.ON_READ,
        aggregation=gd.VariableAggregation.SUM,
    )
    strategy.extended.update(v, lambda v, by: v.assign(by), args=(numbers(strategy, 10.0),))
    assert [float(value) for value in v.values] == [10, 11]
    strategy.extended.update(v, lambda v: v.assign(7.0))
    assert [float(value) for value in v.values] == [7, 7]
    assert float(v.read_value()) == 14


def test_update_in_replica_context(strategy: gd.Strategy) -> None:
    v = variable(strategy)

    def replica_fn(x: Any) -> Any:
        total = gd.get_replica_context().all_reduce("SUM", x)
        strategy.extended.update(v, lambda v, by: v.assign_add(by), args=(total,))
        return v.read_value()

    results = strategy.run(replica_fn, args=(numbers(strategy),))
    assert [float(value) for value in results.values] == [4, 4]


def test_update_of_one_replica(alone: gd.Strategy) -> None:
    v = variable(alone)
    assert float(alone.extended.update(v, lambda v, by: v.assign_add(by), args=(2.0,))) == 3
    assert [float(one) for one in alone.extended.update(v, lambda v: v + 1, group=False)] == [4]


def test_update_non_slot(strategy: gd.Strategy) -> None:
    devices = strategy.extended.non_slot_devices([variable(strategy)])
    assert devices == strategy.extended.parameter_devices
    with strategy.scope():
        result = strategy.extended.update_non_slot(devices, lambda x: x + 1, args=(jnp.ones(()),))
    assert float(np.asarray(result)) == 2


def test_what_is_made_compiles_once(strategy: gd.Strategy) -> None:
    v, calls = variable(strategy), []

    def double(v: gd.Variable) -> None:
        calls.append(v)
        v.assign_add(v)

    for _ in range(3):
        strategy.extended.update(v, double)
    assert float(v) == 8
    assert len(calls) == 1


def test_variables_of_the_strategy(strategy: gd.Strategy) -> None:
    own, plain = variable(strategy), gd.Variable(1.0)
    extended = strategy.extended
    assert extended.variable_created_in_scope(own)
    assert not extended.variable_created_in_scope(plain)
    assert not extended.variable_created_in_scope(1.0)
    assert gd.get_strategy().extended.variable_created_in_scope(plain)
    assert extended.value_container(own) is own
    assert extended.value_container(3) == 3
    with strategy.scope(), extended.colocate_vars_with(own):
        assert extended.variable_created_in_scope(gd.Variable(2.0))


def test_read_var(strategy: gd.Strategy) -> None:
    on_read = variable(
        strategy,
        3.0,
        synchronization=gd.VariableSynchronization.ON_READ,
        aggregation=gd.VariableAggregation.SUM,
    )
    assert float(strategy.extended.read_var(variable(strategy, 3.0))) == 3
    assert float(strategy.extended.read_var(on_read)) == 6


def test_call_for_each_replica(strategy: gd.Strategy) -> None:
    double = strategy.extended.call_for_each_replica(lambda x: x * 2, args=(numbers(strategy),))
    assert [float(value) for value in double.values] == [2, 4]


@pytest.mark.parametrize("name", MAKES)
def test_what_the_process_does(name: str) -> None:
    extended = MAKES[name]().extended
    assert extended.should_checkpoint
    assert extended.should_save_summary
    assert extended.experimental_should_init
    assert not extended.experimental_require_static_shapes
    assert extended.experimental_between_graph == (name == "workers")


def test_names_of_devices() -> None:
    central = MAKES["central"]().extended
    assert central.worker_devices == ("cpu:0", "cpu:1")
    assert central.parameter_devices == ("cpu:2",)
    assert MAKES["one"]().extended.parameter_devices == ("cpu:1",)
