"""The methods and classes of TF1."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import graphdist as gd
from graphdist.compat import v1

pytestmark = pytest.mark.filterwarnings("ignore:.* is an older name:DeprecationWarning")

BATCHES = gd.data.Dataset.range(6).batch(4)

MAKES: dict[str, Callable[[], Any]] = {
    "mirrored": lambda: gd.MirroredStrategy(["cpu:0", "cpu:1"]),
    "central": lambda: gd.CentralStorageStrategy(["cpu:0", "cpu:1"]),
    "mirrored_v1": lambda: v1.MirroredStrategy(["cpu:0", "cpu:1"]),
    "central_v1": lambda: v1.CentralStorageStrategy(["cpu:0", "cpu:1"]),
    "workers_v1": lambda: v1.MultiWorkerMirroredStrategy(devices=["cpu:0", "cpu:1"]),
}
ONE: dict[str, Callable[[], Any]] = {
    "one": lambda: gd.OneDeviceStrategy("cpu:1"),
    "one_v1": lambda: v1.OneDeviceStrategy("cpu:1"),
    "default": gd.get_strategy,
}


@pytest.fixture(params=MAKES)
def strategy(request: pytest.FixtureRequest) -> Any:
    return MAKES[request.param]()


@pytest.fixture(params=ONE)
def alone(request: pytest.FixtureRequest) -> Any:
    return ONE[request.param]()


def lists(value: Any) -> Any:
    values = value.values if isinstance(value, gd.PerReplica) else (value,)
    return [np.asarray(one).tolist() for one in values]


def replica_id() -> Any:
    return gd.get_replica_context().replica_id_in_sync_group


@pytest.mark.long
def test_experimental_run(strategy: Any, alone: Any) -> None:
    assert lists(strategy.experimental_run(replica_id)) == [0, 1]
    assert alone.experimental_run(replica_id) == 0
    iterator = strategy.make_dataset_iterator(BATCHES)
    assert lists(strategy.experimental_run(lambda x: x * 2, iterator)) == [[0, 2], [4, 6]]
    distributed = iter(strategy.experimental_distribute_dataset(BATCHES))
    assert lists(strategy.experimental_run(lambda x: x * 2, distributed)) == [[0, 2], [4, 6]]


def test_dataset_iterators(strategy: Any) -> None:
    iterator = strategy.make_dataset_iterator(BATCHES)
    assert iterator.element_spec.dtype == np.int32
    iterator.initialize()
    assert lists(iterator.get_next()) == [[0, 1], [2, 3]]
    assert lists(iterator.get_next()) == [[4], [5]]
    with pytest.raises(gd.OutOfRangeError):
        iterator.get_next()
    iterator.initialize()
    assert lists(iterator.get_next()) == [[0, 1], [2, 3]]


def test_dataset_iterators_of_one_replica(alone: Any) -> None:
    iterator = alone.make_dataset_iterator_dyn(BATCHES)
    assert lists(iterator.get_next()) == [[0, 1, 2, 3]]
    assert lists(iterator.get_next()) == [[4, 5]]


def test_a_dataset_without_batches_is_refused_at_once(strategy: Any) -> None:
    with pytest.raises(IndexError, match="batch"):
        strategy.make_dataset_iterator(gd.data.Dataset.range(6))


def test_input_functions_that_return_datasets(strategy: Any) -> None:
    contexts = []

    def input_fn(context: gd.InputContext) -> Any:
        contexts.append(context)
        return gd.data.Dataset.range(6).batch(2)

    iterator = strategy.make_input_fn_iterator(input_fn, gd.InputReplicationMode.PER_WORKER)
    assert contexts == [gd.InputContext(1, 0, 2)]
    assert lists(iterator.get_next()) == [[0, 1], [2, 3]]
    with pytest.raises(gd.OutOfRangeError, match="elements left: 1, replicas: 2"):
        iterator.get_next()
    iterator.initialize()
    assert lists(iterator.get_next()) == [[0, 1], [2, 3]]
    assert len(contexts) == 1


def test_input_functions_of_one_replica(alone: Any) -> None:
    iterator = alone.make_input_fn_iterator_dyn(lambda context: BATCHES)
    assert [lists(iterator.get_next()) for _ in range(2)] == [[[0, 1, 2, 3]], [[4, 5]]]
    constant = alone.make_input_fn_iterator(lambda context: lambda: np.float32(5))
    assert float(constant.get_next()) == 5


def test_input_functions_that_return_functions(strategy: Any) -> None:
    calls: list[int] = []

    def make() -> Any:
        calls.append(len(calls))
        return {"x": np.float32(calls[-1])}

    iterator = strategy.make_input_fn_iterator(lambda context: make)
    assert lists(iterator.get_next()["x"]) == [0, 1]
    assert lists(iterator.get_next()["x"]) == [2, 3]


def test_steps_over_an_iterator(strategy: Any) -> None:
    iterator = strategy.make_dataset_iterator(gd.data.Dataset.range(8).batch(4))

    def step(context: Any, x: Any) -> None:
        sums = strategy.run(lambda x: x.sum(), args=(x,))
        context.set_last_step_output("sum", sums, reduce_op=gd.ReduceOp.SUM)
        context.set_last_step_output("sums", sums)
        context.set_non_tensor_output("name", "step")

    run = strategy.extended.experimental_run_steps_on_iterator
    context = run(step, iterator, iterations=2, initial_loop_values={"other": 3})
    assert int(context.last_step_outputs["sum"]) == 22
    assert lists(context.last_step_outputs["sums"]) == [9, 13]
    assert context.last_step_outputs["other"] == 3
    assert context.non_tensor_outputs == {"name": "step"}


@pytest.mark.parametrize("devices", [1, 2])
def test_many_steps_over_an_iterator(devices: int) -> None:
    """They run in programs of 16 steps, and give what single steps give."""
    strategy: Any = v1.MirroredStrategy([f"cpu:{device}" for device in range(devices)])
    with strategy.scope():
        total = gd.Variable(0)
    traces = []

    def step(context: Any, x: Any) -> None:
        traces.append(x)
        sums = strategy.run(lambda x: x.sum(), args=(x,))
        total.assign_add(strategy.reduce("SUM", sums, axis=None))
        context.set_last_step_output("sum", sums, reduce_op=gd.ReduceOp.SUM)
        context.set_last_step_output("total", total[...])
        context.set_non_tensor_output("name", "step")

    numbers = np.arange(4 * 40 + 3)
    iterator = strategy.make_dataset_iterator(gd.data.Dataset.from_tensor_slices(numbers).batch(4))
    run = strategy.extended.experimental_run_steps_on_iterator
    context = run(step, iterator, iterations=40)
    assert int(context.last_step_outputs["sum"]) == numbers[156:160].sum()
    assert int(context.last_step_outputs["total"]) == int(total) == numbers[:160].sum()
    assert context.non_tensor_outputs == {"name": "step"}
    assert len(traces) == 2, "one program for a step, one for several"
    with pytest.raises(gd.OutOfRangeError):
        run(step, iterator, iterations=2)
    assert int(total) == numbers.sum(), "the ragged last batch was left out"


def test_outputs_of_steps_set_by_replicas(strategy: Any) -> None:
    iterator = strategy.make_dataset_iterator(gd.data.Dataset.range(8).batch(4))
    traces = []

    def step(context: Any, x: Any) -> None:
        traces.append(x)

        def replica_fn(x: Any) -> None:
            context.set_last_step_output("sum", x.sum(), "SUM")
            context.set_last_step_output("sums", x.sum())
            context.set_non_tensor_output("name", "step")

        strategy.run(replica_fn, args=(x,))

    run = strategy.extended.experimental_run_steps_on_iterator
    context = run(step, iterator, iterations=2)
    assert int(context.last_step_outputs["sum"]) == 22
    assert lists(context.last_step_outputs["sums"]) == [9, 13]
    assert context.non_tensor_outputs == {"name": "step"}
    assert len(traces) == 1


def test_numpy_datasets(strategy: Any) -> None:
    arrays = {"a": np.arange(3, dtype=np.int16), "b": np.ones((3, 2))}
    dataset = strategy.extended.experimental_make_numpy_dataset(arrays)
    assert [element["a"].tolist() for element in dataset] == [0, 1, 2]
    assert dataset.element_spec["a"].dtype == np.int16
    batches = strategy.extended.experimental_make_numpy_dataset(np.arange(6.0)).batch(4)
    first, *_ = strategy.experimental_distribute_dataset(batches)
    assert lists(first) == [[0, 1], [2, 3]]


def test_unwrap_and_group(strategy: Any, alone: Any) -> None:
    numbers = strategy.run(replica_id)
    assert [int(one) for one in strategy.unwrap(numbers)] == [0, 1]
    assert strategy.group(numbers) is None
    assert alone.unwrap(3.0) == (3.0,)
    assert alone.group(3.0, name="x") == 3.0
    assert strategy.configure() is None


def test_colocation(strategy: Any) -> None:
    with strategy.scope():
        v = gd.Variable(1.0)
        with strategy.colocate_vars_with(v):
            assert strategy.extended.variable_created_in_scope(gd.Variable(2.0))


def test_datasets_from_functions(strategy: Any) -> None:
    distribute = strategy.experimental_distribute_datasets_from_function
    first, *_ = distribute(lambda context: gd.data.Dataset.range(4).batch(2))
    assert lists(first) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("name", [*MAKES, *ONE])
def test_configurations_are_changed_copies(name: str) -> None:
    strategy = (MAKES | ONE)[name]()
    config = SimpleNamespace(isolate_session_state=False, other=[1])
    changed = strategy.update_config_proto(config)
    assert changed is not config
    assert changed.other == [1]
    isolates = name.startswith(("mirrored", "central"))
    assert changed.isolate_session_state == isolates
    assert not config.isolate_session_state
    as_dict = strategy.update_config_proto({"isolate_session_state": False})
    assert as_dict["isolate_session_state"] == isolates
    assert "isolate_session_state" not in strategy.update_config_proto({})
    if name != "default":
        assert (as_dict["jax_platforms"], as_dict["jax_num_cpu_devices"]) == ("cpu", 2)


def test_classes_are_of_their_own() -> None:
    old, new = MAKES["mirrored_v1"](), MAKES["mirrored"]()
    assert isinstance(old, v1.Strategy)
    assert isinstance(old, v1.MirroredStrategy)
    assert not isinstance(old, gd.Strategy)
    assert not isinstance(old, gd.MirroredStrategy)
    assert not isinstance(new, v1.Strategy)
    assert v1.experimental.CentralStorageStrategy is v1.CentralStorageStrategy
    assert set(v1.__all__) <= set(dir(v1))


def test_what_old_strategies_have_and_lack() -> None:
    old, new = MAKES["mirrored_v1"](), MAKES["mirrored"]()
    for name in ("gather", "experimental_distribute_values_from_function"):
        assert not hasattr(old, name)
        assert hasattr(new, name)
    for name in ("experimental_make_numpy_dataset", "experimental_run_v2"):
        assert hasattr(old, name)
        assert not hasattr(new, name)
    numbers = old.run(replica_id)
    assert int(old.reduce("SUM", numbers)) == 1
    assert float(old.reduce("MEAN", numbers, None)) == 0.5
    with pytest.raises(TypeError):
        new.reduce("SUM", new.run(replica_id))
    assert lists(old.experimental_run_v2(lambda x: x + replica_id(), args=(3,))) == [3, 4]
    dataset = old.experimental_make_numpy_dataset(np.arange(3), session=None)
    assert [int(element) for element in dataset] == [0, 1, 2]


def test_variables_of_old_strategies() -> None:
    old = MAKES["mirrored_v1"]()
    with old.scope():
        assert gd.get_strategy() is old
        assert v1.get_loss_reduction() is gd.ReduceOp.SUM
        v = gd.Variable(1.0, aggregation=gd.VariableAggregation.SUM)
    step = gd.function(lambda: old.run(lambda: v.assign_add(1.0 + replica_id())))
    step()
    assert float(v) == 4
    twin = copy.deepcopy(old)
    assert isinstance(twin, v1.MirroredStrategy)
    assert twin.extended.worker_devices == ("cpu:0", "cpu:1")


WARNING: dict[str, Callable[[Any], Any]] = {
    "Strategy.run": lambda s: s.experimental_run(lambda: None),
    "Strategy.experimental_distribute_dataset": lambda s: s.make_dataset_iterator(BATCHES),
    "Strategy.distribute_datasets_from_function": lambda s: s.make_input_fn_iterator(
        lambda context: BATCHES
    ),
    "Strategy.experimental_local_results": lambda s: s.unwrap(1),
    "gd.data.Dataset.from_tensor_slices": lambda s: s.experimental_make_numpy_dataset(np.ones(2)),
}


@pytest.mark.filterwarnings("default::DeprecationWarning")
@pytest.mark.parametrize("newer", WARNING)
def test_warns_once_and_names_the_new_call(newer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphdist.user_warnings._warned", set())
    strategy = MAKES["mirrored_v1"]()
    with pytest.warns(DeprecationWarning, match=f"use {newer}") as caught:
        _ = [WARNING[newer](strategy) for _ in range(3)]
    (warning,) = caught
    assert warning.filename == __file__
