"""Steps on devices: donation, values that stay valid, back-pressure, harmless failures."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.runtime.backpressure import Backpressure, backpressure


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def counter(strategy: gd.Strategy) -> tuple[gd.Variable, gd.Function]:
    with strategy.scope():
        w = gd.Variable(jnp.zeros(4))

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: jax.Array) -> None:
            w.assign_add(gd.get_replica_context().all_reduce("SUM", x))

        return strategy.run(replica_fn, args=(x,))

    return w, step


def ones(strategy: gd.Strategy, size: int = 4) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.ones(size, np.float32)
    )


def test_ten_thousand_steps_without_waiting_for_one(strategy: gd.Strategy) -> None:
    w, step = counter(strategy)
    x = ones(strategy)
    for _ in range(10_000):
        step(x)
    assert w.read_value().tolist() == [20_000.0] * 4


def test_the_buffer_of_an_assigned_variable_is_donated(strategy: gd.Strategy) -> None:
    w, step = counter(strategy)
    before = w.storage.buffer
    step(ones(strategy))
    assert before.is_deleted()
    assert not w.storage.buffer.is_deleted()


def test_a_variable_that_is_only_read_is_not_donated(strategy: gd.Strategy) -> None:
    w, _ = counter(strategy)
    before = w.storage.buffer
    added, _ = strategy.experimental_local_results(strategy.run(lambda: w + 1))
    assert added.tolist() == [1.0] * 4
    assert w.storage.buffer is before
    assert not before.is_deleted()


@pytest.mark.parametrize("devices", [["cpu:0"], ["cpu:0", "cpu:1"]])
def test_results_share_no_buffer_with_variables(devices: list[str]) -> None:
    strategy = gd.MirroredStrategy(devices)
    with strategy.scope():
        w, v = gd.Variable(jnp.zeros(4)), gd.Variable(jnp.ones(4))

    @gd.function
    def step() -> Any:
        before = w.read_value()
        w.assign_add(1.0 + jnp.zeros(4))
        return before, w.read_value(), w.read_value(), v.read_value()

    with strategy.scope():
        first = step()
        v.assign(v * 2)
        second = step()
        strategy.run(lambda: v.assign(v * 2))
    assert [value.tolist()[0] for value in first] == [0, 1, 1, 1]
    assert [value.tolist()[0] for value in second] == [1, 2, 2, 2]


def test_an_initial_value_is_not_the_buffer(strategy: gd.Strategy) -> None:
    initial = jnp.zeros(4)
    raw = np.zeros(4, np.float32)
    with strategy.scope():
        w, v = gd.Variable(initial), gd.Variable(raw)
    raw[:] = 7
    strategy.run(lambda: (w.assign(w + 1), v.assign(v + 1)))
    assert initial.tolist() == [0.0] * 4
    assert v.read_value().tolist() == [1.0] * 4


def test_a_step_that_is_refused_harms_nothing(strategy: gd.Strategy) -> None:
    w, step = counter(strategy)
    step(ones(strategy))
    with pytest.raises((TypeError, ValueError)):
        step(ones(strategy, 3))
    with pytest.raises(gd.ArgumentError):
        step.trace(ones(strategy)).lower().as_text("nothing")
    step(ones(strategy))
    assert w.read_value().tolist() == [4.0] * 4


def test_an_exception_of_the_users_passes_through_and_harms_nothing(strategy: gd.Strategy) -> None:
    w, step = counter(strategy)

    def replica_fn() -> None:
        w.assign(w + 100)
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        strategy.run(replica_fn)
    assert not gd.in_cross_replica_context()
    step(ones(strategy))
    assert w.read_value().tolist() == [2.0] * 4


def test_steps_in_flight_are_bounded() -> None:
    class Token:
        def __init__(self) -> None:
            self.waited_for, self.deleted = False, False

        def is_deleted(self) -> bool:
            return self.deleted

        def block_until_ready(self) -> None:
            self.waited_for = True

    steps, tokens = Backpressure(2), [Token() for _ in range(4)]
    for token in tokens[:2]:
        steps.wait()
        steps.dispatched(token, [])  # type: ignore[arg-type]
    assert not tokens[0].waited_for
    steps.wait()
    steps.dispatched(tokens[2], [])  # type: ignore[arg-type]
    assert tokens[0].waited_for
    assert not tokens[1].waited_for
    tokens[1].deleted = True  # consumed by a later step: the one after it stands for it
    steps.wait()
    assert tokens[2].waited_for
    assert not tokens[1].waited_for
    assert backpressure("cpu", spans_devices=True).bound == 1
    assert backpressure("cpu", spans_devices=False).bound == 32
