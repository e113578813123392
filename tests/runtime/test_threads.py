"""Steps of several threads that share variables: none is lost, whatever is compiled meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.program.stages import Lowered, Traced
from graphdist.runtime.buffers import StateElsewhere

SHAPE = (8, 4)


class Counters:
    """Four variables, a function that packs them, and one that stores them in slices."""

    def __init__(self) -> None:
        self.strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_update=True)
        with self.strategy.scope():
            self.variables = [gd.Variable(jnp.zeros(SHAPE), name=f"v{i}") for i in range(4)]
        self.batch = self.strategy.experimental_distribute_values_from_function(
            lambda context: np.ones(SHAPE, "f")
        )

        @gd.function
        def count() -> None:
            def replica_fn() -> None:
                for variable in self.variables:
                    variable.assign(variable.read_value() + 1)

            self.strategy.run(replica_fn)

        @gd.function
        def train(batch: Any) -> None:
            def replica_fn(batch: Any) -> None:
                gradient = gd.get_replica_context().all_reduce("MEAN", batch)
                for variable in self.variables:
                    variable.assign(variable.read_value() + gradient)

            self.strategy.run(replica_fn, args=(batch,))

        @gd.function
        def total() -> Any:
            return self.variables[0].read_value().sum()

        self.count, self.total = count, total
        self.train: Callable[[], None] = lambda: train(self.batch)


def once_in_another_thread(
    monkeypatch: pytest.MonkeyPatch, stage: type, method: str, call: Callable[[], None]
) -> None:
    """Have a thread make a call while the next program is at this stage."""
    original, calls = getattr(stage, method), [call]

    def meanwhile(self: Any) -> Any:
        if calls:
            thread = threading.Thread(target=calls.pop())
            thread.start()
            thread.join()
        return original(self)

    monkeypatch.setattr(stage, method, meanwhile)


@pytest.mark.parametrize(("stage", "method"), [(Traced, "lower"), (Lowered, "compile")])
@pytest.mark.parametrize("name", ["count", "train"])
def test_variables_are_laid_out_anew_while_a_program_is_compiled(
    monkeypatch: pytest.MonkeyPatch, stage: type, method: str, name: str
) -> None:
    counters = Counters()
    first: Callable[[], None] = counters.count
    other = counters.train
    if name == "train":
        first, other = other, first
    once_in_another_thread(monkeypatch, stage, method, other)
    for _ in range(5):
        first()
    other()
    for variable in counters.variables:
        np.testing.assert_array_equal(variable.read_value(), np.full(SHAPE, 7.0))


@pytest.mark.parametrize(("stage", "method"), [(Traced, "lower"), (Lowered, "compile")])
def test_a_reader_is_compiled_while_its_variables_are_laid_out_anew(
    monkeypatch: pytest.MonkeyPatch, stage: type, method: str
) -> None:
    counters = Counters()
    once_in_another_thread(monkeypatch, stage, method, counters.train)
    assert [float(counters.total()) for _ in range(2)] == [32.0, 32.0]
    counters.train()
    assert float(counters.total()) == 64.0


def test_several_threads_call_a_step_that_is_out_of_date() -> None:
    counters = Counters()
    counters.count()
    counters.train()
    threads = [threading.Thread(target=counters.count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(counters.variables[0].read_value(), np.full(SHAPE, 6.0))


def test_strategies_share_a_plain_variable_from_two_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = StateElsewhere.read

    def slow(self: StateElsewhere) -> Any:
        read = original(self)
        time.sleep(1e-3)  # while the other thread runs
        return read

    monkeypatch.setattr(StateElsewhere, "read", slow)
    shared = gd.Variable(jnp.zeros(3), name="shared")
    steps = []
    for device in ("cpu:0", "cpu:1"):
        strategy = gd.MirroredStrategy([device])
        with strategy.scope():
            own = gd.Variable(jnp.zeros(3), name="own")

        @gd.function
        def step(strategy: Any = strategy, own: Any = own) -> None:
            own.assign(own.read_value() + 1)
            shared.assign(shared.read_value() + 1)

        steps.append((strategy, step))

    def run(strategy: Any, step: Any) -> None:
        with strategy.scope():
            for _ in range(20):
                step()

    threads = [threading.Thread(target=run, args=pair) for pair in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(shared.read_value(), np.full(3, 40.0))


def in_time(work: Callable[[], None]) -> None:
    """Do something in a thread, and fail if it is not done in a minute."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_code_that_a_step_calls_back_reads_variables_while_the_next_step_waits() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        weight = gd.Variable(jnp.zeros(3), name="weight")
        rate = gd.Variable(0.5, name="rate")
    seen: list[float] = []

    def report(value: Any) -> None:
        time.sleep(0.01)
        seen.append(float(rate.host_value()))  # JAX computes nothing inside what it calls back

    @gd.function
    def step() -> None:
        def replica_fn() -> None:
            jax.debug.callback(report, weight.read_value()[0])
            weight.assign(weight.read_value() + 1)

        strategy.run(replica_fn)

    def work() -> None:
        for _ in range(5):
            step()
            weight.read_value()
        step()
        step()

    in_time(work)
    jax.effects_barrier()
    assert set(seen) == {0.5}
    np.testing.assert_array_equal(weight.read_value(), np.full(3, 7.0))


@pytest.mark.long
def test_a_loaded_step_takes_turns_with_one_that_stores_in_slices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counters = Counters()
    with counters.strategy.scope():
        traced = counters.count.trace()
    gd.aot.save(tmp_path / "count.gdx", traced.lower().compile())
    loaded = gd.aot.load(
        tmp_path / "count.gdx", strategy=counters.strategy, variables=counters.variables
    )
    counters.train()
    compiled: list[str] = []
    original = Lowered.compile

    def noted(self: Lowered) -> Any:
        compiled.append(self.graph.name)
        return original(self)

    monkeypatch.setattr(Lowered, "compile", noted)
    for _ in range(3):
        loaded()
        counters.train()

    def repeated(step: Callable[[], Any]) -> Callable[[], None]:
        def work() -> None:
            for _ in range(20):
                step()

        return work

    threads = [threading.Thread(target=repeated(step)) for step in (loaded, counters.train)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not compiled
    np.testing.assert_array_equal(counters.variables[0].read_value(), np.full(SHAPE, 47.0))


def test_a_packed_variable_is_assigned_while_another_thread_steps() -> None:
    counters = Counters()
    counters.count()
    assert counters.variables[0].storage.pack is not None

    def train() -> None:
        for _ in range(300):
            counters.count()

    thread = threading.Thread(target=train)
    thread.start()
    while thread.is_alive():
        counters.variables[3].assign(np.zeros(SHAPE, np.float32))
    thread.join()
    assert counters.variables[3].storage.pack is not None
    np.testing.assert_array_equal(counters.variables[0].read_value(), np.full(SHAPE, 301.0))
