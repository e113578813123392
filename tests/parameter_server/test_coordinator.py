"""What a coordinator promises: order of nothing, errors once, results, per-worker values."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any  # Any: what users schedule

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.coordinator import (
    ClusterCoordinator,
    RemoteValue,
    experimental_get_current_worker_index,
)
from graphdist.parameter_server import worker as worker_process
from graphdist.parameter_server.closures import ClosureQueue, Waiting
from graphdist.parameter_server.input import FunctionOfElements
from graphdist.parameter_server.storage import on_server

Strategy = gd.ParameterServerStrategy
ANY: Any = gd


def variable(strategy: Strategy, value: Any, **options: Any) -> gd.Variable:
    with strategy.scope():
        return gd.Variable(value, **options)


@gd.function
def fails() -> Any:
    raise KeyError("of the user")


@gd.function
def one() -> Any:
    return jnp.float32(1)


@pytest.mark.long
def test_results_come_as_arrays_of_numpy_and_of_jax(coordinator: ClusterCoordinator) -> None:
    result = coordinator.schedule(
        gd.function(lambda x, y: {"s": x + y, "n": None}), (1.0,), {"y": 2}
    )
    assert isinstance(result, RemoteValue)
    assert result.fetch()["s"] == 3
    assert isinstance(result.fetch()["s"], np.ndarray)
    assert isinstance(result.get()["s"], jax.Array)
    assert coordinator.fetch([result, {"a": 5}])[1] == {"a": 5}


def test_variables_go_to_the_servers_in_turn(strategy: Strategy) -> None:
    made = [variable(strategy, float(i)) for i in range(4)]
    homes = [strategy.server_of(v) for v in made]
    assert homes[0] != homes[1]
    assert homes == homes[:2] * 2
    with strategy.scope(), strategy.extended.colocate_vars_with(made[1]):
        assert [strategy.server_of(gd.Variable(0.0)) for _ in range(2)] == [homes[1]] * 2


@pytest.mark.long
def test_the_coordinator_reads_and_writes_variables(strategy: Strategy) -> None:
    v = variable(strategy, jnp.arange(3.0), name="v")
    v.assign_add(jnp.ones(3))
    v.assign_sub(jnp.full(3, 0.5))
    np.testing.assert_array_equal(v, [0.5, 1.5, 2.5])
    v.assign([1.0, 2.0, 3.0])
    assert float(jnp.sum(v * 2)) == 12
    v.scatter_update(gd.IndexedSlices(jnp.array([9.0]), jnp.array([1])))
    assert gd.function(lambda: v[1] + 1)() == 10
    assert "'v' f32[3]" in repr(v)


def test_all_dtypes_are_stored(strategy: Strategy) -> None:
    for dtype in (jnp.bfloat16, jnp.int8, jnp.bool_, jnp.complex64, jnp.float16):
        v = variable(strategy, jnp.ones((2, 0, 3), dtype))
        w = variable(strategy, jnp.ones(2, dtype))
        assert v.read_value().shape == (2, 0, 3)
        assert w.read_value().dtype == dtype


@pytest.mark.long
def test_increments_are_added_up(strategy: Strategy, coordinator: ClusterCoordinator) -> None:
    v = variable(strategy, 0.0)
    add = gd.function(lambda x: v.assign_add(x, read_value=False))
    for i in range(60):
        coordinator.schedule(add, args=(float(i),))
    coordinator.join()
    assert coordinator.done()
    assert float(v) == sum(range(60))


@pytest.mark.long
def test_a_function_keeps_what_it_refers_to(strategy: Strategy, coordinator: Any) -> None:
    class Model:
        def __init__(self) -> None:
            self.v = variable(strategy, 1.0)
            self.factor = 3.0

        @gd.function
        def step(self, x: Any) -> Any:
            self.v.assign_add(x * self.factor)
            return self.v[...]

    model = Model()
    coordinator.schedule(model.step, args=(1.0,)).fetch()
    assert float(model.v) == 4


@pytest.mark.long
def test_the_error_of_a_function_is_raised_once(coordinator: ClusterCoordinator) -> None:
    failed = coordinator.schedule(fails)
    with pytest.raises(KeyError, match="of the user") as raised:
        coordinator.join()
    assert "in fails" in raised.value.__notes__[-1]
    coordinator.join()
    assert coordinator.done()
    with pytest.raises(KeyError):
        failed.fetch()
    assert coordinator.schedule(one).fetch() == 1


@pytest.mark.long
def test_an_error_cancels_what_waits_and_leaves_what_ran(
    strategy: Strategy, coordinator: ClusterCoordinator
) -> None:
    v = variable(strategy, 0.0)
    add = gd.function(lambda: v.assign_add(1.0))
    before = [coordinator.schedule(add) for _ in range(5)]
    coordinator.join()
    coordinator.schedule(fails)
    after: list[RemoteValue] = []

    def run() -> None:
        after.extend(coordinator.schedule(add) for _ in range(5000))
        coordinator.join()

    with pytest.raises(KeyError):
        run()
    coordinator.join()
    outcomes = [_outcome(value) for value in after]
    assert all(_outcome(value) == "ran" for value in before)
    assert set(outcomes) <= {"ran", "cancelled"}
    assert "cancelled" in outcomes
    assert float(v) == 5 + outcomes.count("ran")


def _outcome(value: RemoteValue) -> str:
    try:
        value.fetch()
    except gd.ClosureCancelledError:
        return "cancelled"
    return "ran"


def test_what_cannot_be_scheduled(strategy: Strategy, coordinator: ClusterCoordinator) -> None:
    with pytest.raises(TypeError, match=r"not of a gd\.function"):
        coordinator.schedule(lambda: 1)
    with pytest.raises(ValueError, match="RemoteValue"):
        coordinator.schedule(one, args=([coordinator.schedule(one)],))
    other = gd.Variable(1.0, name="other")
    with pytest.raises(ValueError, match=r"'other', which is on no server"):
        coordinator.schedule(gd.function(lambda: other[...]))
    mirrored = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with pytest.raises(ValueError, match="no strategy of its worker"):
        coordinator.schedule(gd.function(lambda: mirrored.run(lambda: 1)))
    with pytest.raises(TypeError, match="a coordinator of"):
        ClusterCoordinator(mirrored)
    lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot be sent to a worker"):
        coordinator.schedule(gd.function(lambda: lock.locked()))
    coordinator.join()


def test_variables_are_not_made_by_workers(coordinator: ClusterCoordinator) -> None:
    result = coordinator.schedule(gd.function(lambda: ANY.Variable(1.0)[...]))
    with pytest.raises(RuntimeError, match="that a worker runs"):
        result.fetch()
    with pytest.raises(RuntimeError):
        coordinator.join()


class Odd(BaseException):
    """An error that handlers of `Exception` do not catch."""


@pytest.mark.long
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("mine"), Odd("mine")], ids=repr)
def test_a_function_that_exits_or_is_interrupted_fails(
    error: BaseException, coordinator: ClusterCoordinator
) -> None:
    def broken() -> Any:
        raise error

    iterator = iter(coordinator.create_per_worker_dataset(broken))
    deaths = coordinator.traffic.worker_deaths
    for fn, args in ((gd.function(broken), ()), (gd.function(lambda i: next(i)), (iterator,))):
        coordinator.schedule(fn, args)
        said = f"has raised {type(error).__name__}: {error}"
        with pytest.raises(gd.errors.RuntimeFailure, match=said) as raised:
            coordinator.join()
        assert f"{__file__}:" in str(raised.value)
        assert "raise error" in str(raised.value)
    assert coordinator.traffic.worker_deaths == deaths


@pytest.mark.long
def test_what_nobody_uses_is_forgotten(coordinator: ClusterCoordinator) -> None:
    resources = coordinator.create_per_worker_resources(lambda: {})
    dataset = coordinator.create_per_worker_dataset(lambda: gd.data.Dataset.range(4))
    one = gd.function(lambda: 1)
    sent = coordinator._sent

    def numbers() -> set[int]:
        for _ in range(20):  # each worker's thread keeps its last closure
            coordinator.schedule(one)
        coordinator.join()
        gc.collect()
        return {*sent.objects}

    before = numbers()
    for _ in range(3):
        iterator = iter(dataset)
        step = gd.function(lambda i, r: next(i) + 1)
        assert int(coordinator.schedule(step, (iterator, resources)).fetch()) == 1
        assert len(numbers() - before) == 2
        del iterator, step
        assert numbers() == before

    def num_values() -> int:
        held = worker_process._here().objects.values()
        return sum(not isinstance(each, FunctionOfElements) for each in held)

    held = gd.function(num_values)
    of_workers = coordinator.fetch([coordinator.schedule(held) for _ in range(20)])
    assert max(of_workers) <= 1  # the resources


@pytest.mark.long
def test_variables_of_servers_do_not_mix(strategy: Strategy) -> None:
    v, other = variable(strategy, 1.0), gd.Variable(2.0, name="other")
    with pytest.raises(RuntimeError, match="'other', which is on no server"):
        gd.function(lambda: v + other)()


def test_an_interrupted_request_leaves_no_answer_behind(strategy: Strategy) -> None:
    v, w = variable(strategy, 1.0), variable(strategy, jnp.zeros(3))
    connection = strategy.servers._connections[strategy.server_of(v)]

    def interrupted() -> Any:
        raise KeyboardInterrupt

    # Undone at once: an interrupt that a failing test left there would end the whole run.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            v.read_value()
    assert w.read_value().shape == (3,)
    assert float(v) == 1


def test_variables_that_nobody_uses_are_dropped(strategy: Strategy) -> None:
    v = variable(strategy, jnp.zeros(3))
    key = on_server(v).key
    assert key in strategy.names
    del v
    gc.collect()
    assert key in strategy.servers._to_drop
    other = variable(strategy, 1.0)
    assert key not in strategy.servers._to_drop
    assert key not in strategy.names
    assert on_server(other).key in strategy.names


@pytest.mark.long
def test_workers_know_their_number(coordinator: ClusterCoordinator) -> None:
    number = gd.function(experimental_get_current_worker_index)
    assert {int(coordinator.schedule(number).fetch()) for _ in range(20)} <= {0, 1}
    with pytest.raises(RuntimeError, match="outside of a scheduled function"):
        experimental_get_current_worker_index()


def test_each_worker_has_its_own_dataset(coordinator: ClusterCoordinator) -> None:
    dataset = coordinator.create_per_worker_dataset(lambda: gd.data.Dataset.range(8))
    iterator = iter(dataset)
    take = gd.function(lambda i: (experimental_get_current_worker_index(), next(i), next(i)))
    found = coordinator.fetch([coordinator.schedule(take, args=(iterator,)) for _ in range(4)])
    for worker in (0, 1):
        own = [int(n) for w, *pair in found if int(w) == worker for n in pair]
        assert sorted(own) == list(range(len(own)))
    with pytest.raises(NotImplementedError):
        next(iterator)
    assert dataset.element_spec.shape == ()


def test_a_worker_says_when_its_dataset_ends(coordinator: ClusterCoordinator) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(lambda: gd.data.Dataset.range(1)))
    for _ in range(3):
        coordinator.schedule(gd.function(lambda i: next(i)), args=(iterator,))
    with pytest.raises(gd.OutOfRangeError):
        coordinator.join()


def test_an_error_of_a_dataset_is_the_functions(coordinator: ClusterCoordinator) -> None:
    def broken() -> Any:
        raise OSError("no such file")

    iterator = iter(coordinator.create_per_worker_dataset(broken))
    coordinator.schedule(gd.function(lambda i: next(i)), args=(iterator,))
    with pytest.raises(OSError, match="no such file"):
        coordinator.join()


def test_a_function_does_not_refer_to_a_value_of_each_worker(
    coordinator: ClusterCoordinator,
) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(lambda: gd.data.Dataset.range(4)))
    resource = coordinator.create_per_worker_resources(lambda: 3.0)
    for value, name in ((iterator, "PerWorkerIterator"), (resource, "PerWorkerValues")):

        @gd.function
        def step(value: Any = value) -> Any:
            return jnp.sum(next(value))

        with pytest.raises(gd.ArgumentError, match=f"refers to a {name}, of which each worker"):
            coordinator.schedule(step)


def test_resources_of_workers(coordinator: ClusterCoordinator) -> None:
    value = coordinator.create_per_worker_resources(lambda: np.arange(3.0))
    double = gd.function(lambda x: x * 2)
    np.testing.assert_array_equal(coordinator.schedule(double, (value,)).fetch(), [0, 2, 4])


def test_variables_in_shards_are_on_all_servers(strategy: Strategy) -> None:
    strategy.variable_partitioner = gd.experimental.partitioners.FixedShardsPartitioner(2)
    try:
        v: Any = variable(strategy, lambda: jnp.arange(10.0).reshape(5, 2), name="table")
        scalar = variable(strategy, 1.0)
    finally:
        strategy.variable_partitioner = None
    assert isinstance(v, gd.ShardedVariable)
    assert isinstance(scalar, gd.Variable)
    assert sorted(strategy.server_of(shard) for shard in v.variables) == [0, 1]
    assert [shard.shape for shard in v.variables] == [(3, 2), (2, 2)]
    look = gd.function(lambda rows: gd.nn.embedding_lookup(v, rows))
    coordinator = ClusterCoordinator(strategy)
    found = coordinator.schedule(look, args=(np.array([4, 0]),)).fetch()
    np.testing.assert_array_equal(found, [[8, 9], [0, 1]])


@pytest.mark.parametrize("make", [np.arange, jnp.arange, list], ids=["numpy", "jax", "list"])
def test_a_dataset_may_be_an_array_or_a_list(coordinator: ClusterCoordinator, make: Any) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(make(range(3) if make is list else 3)))
    take = gd.function(lambda iterator: next(iterator))
    assert int(coordinator.schedule(take, args=(iterator,)).fetch()) == 0


def test_running_without_a_coordinator_warns(strategy: Strategy) -> None:
    with pytest.warns(UserWarning, match="coordinator's process"):
        assert strategy.run(lambda: jnp.float32(1)) == 1
    with pytest.raises(ValueError, match="iterated by its coordinator"):
        iter(strategy.experimental_distribute_dataset(gd.data.Dataset.range(4).batch(2)))


def test_values_that_no_server_takes(strategy: Strategy) -> None:
    with pytest.raises(NotImplementedError, match="random key"):
        variable(strategy, jax.random.key(0))
    with pytest.raises(NotImplementedError, match="by its shape"):
        variable(strategy, jax.ShapeDtypeStruct((2,), jnp.float32))


def closure() -> Waiting:
    return Waiting(0, 0, b"", RemoteValue())


def test_a_full_queue_makes_the_scheduler_wait() -> None:
    from threading import Thread

    queue = ClosureQueue(most=2)
    for _ in range(2):
        queue.put(closure())
    third = Thread(target=queue.put, args=(closure(),))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    queue.take()
    third.join()


def test_a_closure_comes_back_to_the_front() -> None:
    queue = ClosureQueue()
    first, second = closure(), closure()
    queue.put(first)
    queue.put(second)
    taken = queue.take()
    assert taken is first
    queue.put_back(first)
    assert queue.take() is first
    assert first.attempt == 1
    assert second.attempt == 0


def test_the_first_error_wins() -> None:
    queue = ClosureQueue()
    closures = [closure() for _ in range(4)]
    for waiting in closures:
        queue.put(waiting)
    taken = [queue.take() for _ in range(3)]
    assert taken == closures[:3]
    queue.fail(closures[0], ValueError("first"))
    queue.fail(closures[1], ValueError("second"))
    queue.put_back(closures[2])
    with pytest.raises(ValueError, match="first"):
        queue.wait()
    queue.wait()
    assert queue.is_idle()
    for cancelled in closures[2:]:
        with pytest.raises(gd.ClosureCancelledError):
            cancelled.result.fetch()


ASKED_BY: dict[str, Callable[[ClosureQueue], Any]] = {
    "join": ClosureQueue.wait,
    "done": ClosureQueue.is_idle,
    "schedule": lambda queue: queue.put(closure()),
}


@pytest.mark.parametrize("method", ASKED_BY)
def test_the_next_that_asks_raises_the_error_once(method: str) -> None:
    queue = ClosureQueue()
    queue.put(failing := closure())
    queue.take()
    queue.fail(failing, ValueError("first"))
    with pytest.raises(ValueError, match="first"):
        ASKED_BY[method](queue)
    ASKED_BY[method](queue)


def test_a_closed_queue_lets_nobody_wait() -> None:
    queue = ClosureQueue()
    waiting = closure()
    queue.put(waiting)
    queue.close()
    assert queue.take() is None
    with pytest.raises(gd.ClosureCancelledError, match="the strategy was shut down"):
        queue.wait()
    queue.wait()
    with pytest.raises(gd.ClosureCancelledError, match="the strategy was shut down"):
        waiting.result.fetch()
    with pytest.raises(gd.ClosureCancelledError, match=r"queue\.put\(closure\(\)\)  # here"):
        queue.put(closure())  # here


def test_a_closed_queue_says_what_has_not_run() -> None:
    queue = ClosureQueue()
    running, waiting = closure(), closure()
    queue.put(running)
    queue.put(waiting)
    queue.take()
    queue.close()
    queue.put_back(running)
    with pytest.raises(gd.ClosureCancelledError, match="2 of them: the strategy was shut"):
        queue.is_idle()
    for lost in (running, waiting):
        with pytest.raises(gd.ClosureCancelledError, match=r"coordinator\.join\(\) before"):
            lost.result.fetch()
    done = ClosureQueue()
    done.close()
    done.wait()  # nothing was lost
