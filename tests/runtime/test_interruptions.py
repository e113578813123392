"""Threads, interrupts and failures: variables keep their values, or say that they lost them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.train.writing import finish_writing, start_writing


@pytest.fixture(params=[1, 2])
def strategy(request: pytest.FixtureRequest) -> gd.Strategy:
    devices = ["cpu:0", "cpu:1"][: request.param]
    return gd.MirroredStrategy(devices)


def send_interrupts() -> None:
    """Send this process Ctrl-C, again and again."""
    for _ in range(100):
        time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)


class Interrupts:
    """Has Ctrl-C raise, but only where a test is ready for it: what runs tests is not."""

    is_awaited = False

    def __call__(self, signum: int, frame: object) -> None:
        if self.is_awaited:
            self.is_awaited = False
            raise KeyboardInterrupt


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    handler = Interrupts()
    before = signal.signal(signal.SIGINT, handler)
    yield handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a finalizer
def test_an_interrupt_takes_no_variable_with_it(
    strategy: gd.Strategy, interrupts: Interrupts
) -> None:
    with strategy.scope():
        count = gd.Variable(np.zeros(100, np.float32))

    @gd.function
    def step() -> None:
        strategy.run(lambda: count.assign_add(jnp.ones(100)))

    step()
    caught, sender = 0, threading.Thread(target=send_interrupts)
    sender.start()
    while sender.is_alive():
        try:
            interrupts.is_awaited = True
            step()
            interrupts.is_awaited = False
        except KeyboardInterrupt:
            caught += 1
    assert caught > 20
    value = count.read_value()
    step()
    assert count.read_value()[0] == value[0] + 1


def test_an_interrupt_in_the_first_call_takes_no_variable_with_it(
    strategy: gd.Strategy, interrupts: Interrupts
) -> None:
    with strategy.scope():
        count = gd.Variable(np.zeros(100, np.float32))
    given = count.storage.held

    @gd.function
    def step() -> None:
        strategy.run(lambda: count.assign_add(jnp.ones(100)))

    def interrupt_once_given(frame: object, event: str, argument: object) -> None:
        if event == "return" and interrupts.is_awaited and given.is_deleted():
            signal.raise_signal(signal.SIGINT)

    interrupts.is_awaited = True
    sys.setprofile(interrupt_once_given)
    try:
        with pytest.raises(KeyboardInterrupt):
            step()
    finally:
        sys.setprofile(None)
    assert count.read_value()[0] == 1
    step()
    assert count.read_value()[0] == 2


def test_threads_share_a_variable(strategy: gd.Strategy) -> None:
    with strategy.scope():
        count = gd.Variable(0.0)

    @gd.function
    def step() -> None:
        strategy.run(lambda: count.assign_add(1.0))

    step()
    seen: list[float] = []

    def train() -> None:
        for _ in range(200):
            step()

    def log() -> None:
        for _ in range(100):
            seen.append(float(count.read_value()))

    threads = [threading.Thread(target=work) for work in (train, train, log)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert float(count.read_value()) == 401
    assert len(seen) == 100


def repeated(step: Callable[[], None]) -> None:
    for _ in range(40):
        step()


class Load:
    """What a step calls back, and what fails it if told to."""

    fails = False

    def __call__(self, value: np.ndarray) -> np.ndarray:
        if self.fails:
            raise ValueError("bad data")
        return value


def test_a_step_that_fails_on_the_devices_says_what_is_lost() -> None:
    strategy = gd.OneDeviceStrategy("cpu:0")
    load = Load()
    with strategy.scope():
        total = gd.Variable(1.0, name="total")

    @gd.function
    def step() -> None:
        shape = jax.ShapeDtypeStruct((), np.float32)
        strategy.run(lambda: total.assign_add(jax.pure_callback(load, shape, total.read_value())))

    step()
    load.fails = True
    with pytest.raises(gd.RuntimeFailure, match="'total'"):
        repeated(step)
    load.fails = False
    total.assign(3.0)
    step()
    assert float(total.read_value()) == 6


def test_reading_what_a_step_lost_on_several_devices_says_so() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    load = Load()
    with strategy.scope():
        total = gd.Variable(np.ones(6000, np.float32), name="total")

    @gd.function
    def step() -> None:
        def replica_fn() -> None:
            shape = jax.ShapeDtypeStruct((), np.float32)
            loaded = jax.pure_callback(load, shape, total.read_value()[0])
            total.assign(total.read_value() + loaded)

        strategy.run(replica_fn)

    step()
    jax.block_until_ready(total.storage.held)
    load.fails = True
    step()
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(total.storage.held)
    for read in (np.asarray, gd.Variable.host_value, gd.Variable.read_value):
        with pytest.raises(gd.RuntimeFailure, match="'total'"):
            read(total)
    load.fails = False
    total.assign(np.ones(6000, np.float32))
    step()
    assert float(total.read_value()[0]) == 2


def test_a_lost_total_of_each_replica_can_be_assigned_anew() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    load = Load()
    with strategy.scope():
        options = gd.VariableSynchronization.ON_READ, gd.VariableAggregation.SUM
        total = gd.Variable(1.0, name="total", synchronization=options[0], aggregation=options[1])

    @gd.function
    def step() -> None:
        def replica_fn() -> None:
            shape = jax.ShapeDtypeStruct((), np.float32)
            total.assign_add(jax.pure_callback(load, shape, np.float32(1)))

        strategy.run(replica_fn)

    step()
    jax.block_until_ready(total.storage.held)
    load.fails = True
    step()
    with pytest.raises(gd.RuntimeFailure, match="'total' is lost"):
        total.read_value()
    load.fails = False
    total.assign(4.0)
    step()
    assert float(total.read_value()) == 6


def test_a_function_is_compiled_once_by_xla(strategy: gd.Strategy) -> None:
    compiled: list[object] = []

    def note(event: str, duration_secs: float, **details: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(details.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(note)
    with strategy.scope():
        w = gd.Variable(np.zeros(3, np.float32))
    x = strategy.experimental_distribute_values_from_function(
        lambda context: np.full(3, context.replica_id_in_sync_group, np.float32)
    )

    @gd.function
    def step(x: gd.PerReplica, host: np.ndarray, number: float) -> jax.Array:
        def replica_fn(x: jax.Array) -> jax.Array:
            gradient = gd.get_replica_context().all_reduce("SUM", x + host + number)
            w.assign_sub(gradient)
            return x

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    for number in range(3):
        step(x, np.ones(3, np.float32), float(number))
    jax.monitoring.unregister_event_duration_listener(note)
    assert compiled.count("jit(step)") == 1


def test_ctrl_c_while_a_checkpoint_is_waited_for_leaves_it_under_way() -> None:
    goes_on, written = threading.Event(), list[int]()

    def write(number: int) -> None:
        goes_on.wait()
        written.append(number)

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    start_writing(lambda: write(1), "first")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(KeyboardInterrupt):
            start_writing(lambda: write(2), "second")
        (writer,) = (one for one in threading.enumerate() if one.name == "graphdist-checkpoint")
        assert writer.is_alive()  # or Python would not wait for it when the process ends
    finally:
        signal.signal(signal.SIGALRM, before)
        goes_on.set()
    start_writing(lambda: write(3), "third")
    finish_writing()
    assert written == [1, 3]
