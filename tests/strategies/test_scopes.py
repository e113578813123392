"""Which strategy is current, and what a strategy object is."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import pytest

import graphdist as gd


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.fixture(autouse=True)
def nothing_is_set_afterwards() -> Iterator[None]:
    yield
    gd.experimental_set_strategy(None)


def test_outside_every_scope() -> None:
    context = gd.get_replica_context()
    assert not gd.has_strategy()
    assert not gd.in_cross_replica_context()
    assert (context.replica_id_in_sync_group, context.num_replicas_in_sync) == (0, 1)


def test_in_a_scope(strategy: gd.Strategy) -> None:
    with strategy.scope() as entered:
        assert entered is strategy
        assert gd.has_strategy()
        assert gd.in_cross_replica_context()
        assert gd.get_strategy() is strategy
        assert gd.get_replica_context() is None
    assert not gd.has_strategy()


def test_a_scope_says_whose_it_is(strategy: gd.Strategy) -> None:
    assert repr(strategy.scope()) == f"<scope of {strategy}>"


def test_a_scope_is_left_by_an_exception(strategy: gd.Strategy) -> None:
    with pytest.raises(KeyError), strategy.scope():
        raise KeyError
    assert not gd.has_strategy()


def test_the_same_scope_inside_itself(strategy: gd.Strategy) -> None:
    scope = strategy.scope()
    with scope:
        with scope:
            pass
        assert gd.get_strategy() is strategy
        with strategy.scope():
            pass
        assert gd.get_strategy() is strategy
    assert not gd.has_strategy()


def test_the_default_strategy_has_scopes_that_change_nothing(strategy: gd.Strategy) -> None:
    default = gd.get_strategy()
    with default.scope():
        assert not gd.has_strategy()
        assert not gd.in_cross_replica_context()
        assert gd.get_replica_context().num_replicas_in_sync == 1
        with strategy.scope():
            assert gd.get_strategy() is strategy
        assert gd.get_strategy() is default


def test_a_strategy_is_set(strategy: gd.Strategy) -> None:
    gd.experimental_set_strategy(strategy)
    assert gd.get_strategy() is strategy
    assert gd.in_cross_replica_context()
    with strategy.scope():
        assert gd.get_strategy() is strategy
    assert gd.get_strategy() is strategy
    other = gd.OneDeviceStrategy("cpu:0")
    gd.experimental_set_strategy(other)
    assert gd.get_strategy() is other
    gd.experimental_set_strategy(None)
    assert not gd.has_strategy()


def test_what_is_set_is_of_one_thread(strategy: gd.Strategy) -> None:
    gd.experimental_set_strategy(strategy)
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(gd.has_strategy()))
    thread.start()
    thread.join()
    assert seen == [False]


def test_programs_use_what_is_set(strategy: gd.Strategy) -> None:
    gd.experimental_set_strategy(strategy)
    v = gd.Variable(1.0, aggregation=gd.VariableAggregation.SUM)

    @gd.function
    def step() -> Any:
        strategy.run(lambda: v.assign_add(jnp.float32(2)))
        return v.read_value()

    assert float(step()) == 5


def test_deep_copies_are_independent(strategy: gd.Strategy) -> None:
    with strategy.scope():
        v = gd.Variable(1.0)
    twin = copy.deepcopy(strategy)
    assert twin is not strategy
    assert twin.extended.strategy is twin
    assert twin.extended.worker_devices == strategy.extended.worker_devices
    assert not twin.extended.variable_created_in_scope(v)
    with twin.scope():
        w = gd.Variable(5.0)
    assert (float(v), float(w)) == (1, 5)
    with twin.scope(), pytest.raises(RuntimeError, match="do not mix"):
        v.assign(2.0)


def test_deep_copy_of_a_central_strategy_keeps_its_parameter_device() -> None:
    twin = copy.deepcopy(gd.CentralStorageStrategy(["cpu:0", "cpu:1"], "cpu:3"))
    assert twin.extended.parameter_devices == ("cpu:3",)


def test_the_number_of_replicas_cannot_be_set(strategy: gd.Strategy) -> None:
    with pytest.raises(AttributeError):
        strategy.num_replicas_in_sync = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "name",
    ["cpu:3", "CPU:3", "/cpu:3", "/device:CPU:3", "/job:localhost/replica:0/task:0/device:CPU:3"],
)
def test_spellings_of_a_device(name: str) -> None:
    assert gd.MirroredStrategy([name]).extended.worker_devices == ("cpu:3",)
