"""One copy of each variable on the parameter device, and the numbers of `MirroredStrategy`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: values of any strategy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

COMPUTE = ["cpu:0", "cpu:1", "cpu:2"]


def train(strategy: gd.Strategy, steps: int) -> tuple[gd.Variable, list[float]]:
    """Return weights fitted to the sum of three columns, and the losses on the way."""
    rows = np.random.default_rng(0).standard_normal((3, 4, 3), np.float32)
    with strategy.scope():
        w = gd.Variable(jnp.zeros(3), name="w")

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - x.sum(axis=1)) ** 2))(
                w.read_value()
            )
            gradient = gd.get_replica_context().all_reduce("MEAN", gradient)
            w.assign_sub(0.1 * gradient)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    batch = strategy.experimental_distribute_values_from_function(
        lambda context: rows[context.replica_id_in_sync_group]
    )
    return w, [float(step(batch)) for _ in range(steps)]


@pytest.mark.long
@pytest.mark.parametrize("home", [None, "cpu:0", "cpu:2", "cpu:5"])
def test_trains_as_mirrored_does_to_the_last_bit(home: str | None) -> None:
    w, losses = train(gd.CentralStorageStrategy(COMPUTE, home), steps=5)
    mirrored, expected = train(gd.MirroredStrategy(COMPUTE), steps=5)
    assert losses == expected
    np.testing.assert_array_equal(np.asarray(w), np.asarray(mirrored))
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("home", ["cpu:0", "cpu:5"])
def test_variables_lie_on_the_parameter_device_between_steps(home: str) -> None:
    strategy = gd.CentralStorageStrategy(COMPUTE, home)
    w, _ = train(strategy, steps=0)
    assert device_names(w.storage.buffer) == [home]
    w, _ = train(strategy, steps=2)
    assert device_names(w.storage.buffer) == [home]
    w.assign(jnp.ones(3))
    assert device_names(w.storage.buffer) == [home]
    assert [device_names(value) for value in w.values] == [[home]]
    assert strategy.extended.parameter_devices == (home,)
    assert strategy.extended.worker_devices == tuple(COMPUTE)


def device_names(array: jax.Array) -> list[str]:
    return [f"{device.platform}:{device.id}" for device in array.devices()]


def test_on_read_variables_lie_there_too_one_copy_a_replica() -> None:
    strategy = gd.CentralStorageStrategy(COMPUTE, "cpu:4")
    with strategy.scope():
        seen = gd.Variable(
            jnp.zeros(2),
            synchronization=gd.VariableSynchronization.ON_READ,
            aggregation=gd.VariableAggregation.SUM,
        )

    def replica_fn() -> None:
        number = gd.get_replica_context().replica_id_in_sync_group
        seen.assign_add(jnp.array([1.0, 10.0]) * number)

    strategy.run(replica_fn)
    assert device_names(seen.storage.buffer) == ["cpu:4"]
    assert [value.tolist() for value in seen.values] == [[0, 0], [1, 10], [2, 20]]
    np.testing.assert_array_equal(seen.read_value(), [3, 30])


@pytest.mark.parametrize(
    ("compute", "home", "expected"),
    [
        (None, None, (["cpu:0"], "cpu:0")),
        (["cpu:1"], None, (["cpu:1"], "cpu:1")),
        (["cpu:1"], "cpu:0", (["cpu:1"], "cpu:0")),
        (["cpu:1", "cpu:2"], None, (["cpu:1", "cpu:2"], "cpu:0")),
        (["cpu:1", "cpu:2"], "cpu:2", (["cpu:1", "cpu:2"], "cpu:2")),
    ],
)
def test_default_devices(
    compute: list[str] | None, home: str | None, expected: tuple[list[str], str]
) -> None:
    extended = gd.CentralStorageStrategy(compute, home).extended
    assert (list(extended.worker_devices), *extended.parameter_devices) == expected


def test_one_replica_on_its_own_device_moves_nothing() -> None:
    strategy = gd.CentralStorageStrategy(["cpu:3"])
    w, losses = train_alone(strategy)
    assert device_names(w.storage.buffer) == ["cpu:3"]
    assert strategy.devices.parameter_device is None
    elsewhere, same_losses = train_alone(gd.CentralStorageStrategy(["cpu:3"], "cpu:0"))
    assert device_names(elsewhere.storage.buffer) == ["cpu:0"]
    assert losses == same_losses


def train_alone(strategy: gd.Strategy) -> tuple[gd.Variable, list[float]]:
    with strategy.scope():
        w = gd.Variable(1.0)
    step = gd.function(lambda: strategy.run(lambda: w.assign_add(w * 0.5)))
    return w, [float(step()) for _ in range(3)]


def test_a_refused_step_leaves_the_variables_as_they_were() -> None:
    strategy = gd.CentralStorageStrategy(COMPUTE)
    with strategy.scope():
        v = gd.Variable(1.0)

    @gd.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        return v.read_value()

    spent = jnp.float32(2)
    with strategy.scope():
        assert float(step(spent)) == 3
        spent.delete()
        with pytest.raises(ValueError, match="buffer is gone"):
            step(spent)
        assert float(step(jnp.float32(1))) == 4


def test_is_printed_as_one_copy() -> None:
    with gd.CentralStorageStrategy(COMPUTE).scope():
        v = gd.Variable(3.0, name="v")
    assert repr(v) == "<Variable 'v' f32[] on cpu:0: 3.0>"


@pytest.fixture(params=["experimental", "compat"])
def older(request: pytest.FixtureRequest) -> Callable[..., Any]:
    import graphdist.compat.v1

    module = gd.experimental if request.param == "experimental" else graphdist.compat.v1
    older_name: Callable[..., Any] = module.CentralStorageStrategy
    return older_name


def test_older_names(older: Callable[..., Any]) -> None:
    strategy = older(compute_devices=["cpu:0", "cpu:1"], parameter_device="cpu:1")
    assert strategy.num_replicas_in_sync == 2
    assert strategy.extended.parameter_devices == ("cpu:1",)
