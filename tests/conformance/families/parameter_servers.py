"""Parameter servers: their strategy, coordinator, partitioners, and variables in shards."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any  # Any: the values of any program

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from graphdist.experimental import partitioners
from tests.conformance.encode import Encoded, attempt
from tests.conformance.environment import Environment, Program, array, from_table

ANY: Any = gd
ALONE = (1, 1)


@cache
def strategy_of(num_workers: int = 2, num_servers: int = 2, shards: int = 0) -> Any:
    """Return a strategy of so many processes; the same for all cases, since starting is slow."""
    jobs = {"worker": ["a:1"] * num_workers, "ps": ["b:1"] * num_servers}
    resolver = gd.cluster.SimpleClusterResolver(gd.cluster.ClusterSpec(jobs))
    partitioner = partitioners.FixedShardsPartitioner(shards) if shards else None
    return gd.ParameterServerStrategy(resolver, partitioner)


def coordinator_of(*counts: int) -> Any:
    """Return the coordinator of such a strategy."""
    return gd.coordinator.ClusterCoordinator(strategy_of(*counts))


def _shape(shape: Any) -> Any:
    return Encoded(t="TensorShape", v=list(shape))


def _device(variable: Any) -> str:
    return f"/job:ps/replica:0/task:{variable.strategy.server_of(variable)}/device:CPU:0"


def _made(make: Callable[[], Any], *counts: int) -> Any:
    with strategy_of(*counts).scope():
        return make()


def _class(variable: Any) -> str:
    """Return the class that TensorFlow has for what this is."""
    is_sharded = isinstance(variable, gd.ShardedVariable)
    return "ShardedVariable" if is_sharded else "CachingVariable"


def _basic_fields(env: Environment) -> Any:
    strategy = strategy_of()
    extended = strategy.extended
    resolver = type(strategy.cluster_resolver).__name__
    devices = list(extended.worker_devices), list(extended.parameter_devices)
    return [strategy.num_replicas_in_sync, *devices, resolver]


def _types() -> list[str]:
    sum_of_all = gd.VariableAggregation.SUM
    on_read = gd.VariableSynchronization.ON_READ
    made = gd.Variable(1.0), gd.Variable(1.0, aggregation=sum_of_all)
    return [_class(v) for v in (*made, gd.Variable(1.0, synchronization=on_read))]


def _sharded(env: Environment) -> Any:
    v: Any = _made(lambda: gd.Variable(jnp.arange(10.0).reshape(5, 2)), 1, 2, 2)
    shapes, devices = [_shape(c.shape) for c in v.variables], [_device(c) for c in v.variables]
    return [_class(v), shapes, devices, np.asarray(v).tolist()]


def _sharded_13_over_5(env: Environment) -> Any:
    v: Any = _made(lambda: gd.Variable(jnp.arange(13.0)), 1, 5, 5)
    return [_shape(shard.shape) for shard in v.variables]


def _bad_partitioner(env: Environment) -> Any:
    strategy = gd.ParameterServerStrategy(
        num_workers=1, variable_partitioner=lambda shape, dtype: [1, 2]
    )
    try:
        with strategy.scope():
            return gd.Variable(jnp.ones((4, 4)))
    finally:
        strategy.shutdown()


def _schedule(fn: Callable[..., Any], *args: Any, on: Any = None, **kwargs: Any) -> Any:
    coordinator = on or coordinator_of()
    return coordinator.schedule(gd.function(fn), args=args, kwargs=kwargs)


def _fail() -> Any:
    raise gd.ArgumentError("the logarithm of 0 is not finite")


def _increments(env: Environment) -> Any:
    coordinator = coordinator_of()
    v: Any = _made(lambda: gd.Variable(0.0))
    step = gd.function(lambda: v.assign_add(1.0))
    for _ in range(20):
        coordinator.schedule(step)
    coordinator.join()
    return np.asarray(v), coordinator.done()


def _error_at_join(env: Environment) -> Any:
    coordinator = coordinator_of()
    _schedule(_fail)
    return attempt(coordinator.join), attempt(coordinator.join), attempt(coordinator.done)


def _error_cancels(env: Environment) -> Any:
    coordinator = coordinator_of(*ALONE)
    values: list[Any] = []

    def run() -> None:
        for fn in (_fail, *[lambda: jnp.float32(1)] * 3):
            values.append(_schedule(fn, on=coordinator))
        coordinator.join()

    failed = attempt(run)
    coordinator.join() if len(values) < 4 else None
    return [
        failed,
        attempt(values[0].fetch),
        attempt(_schedule(lambda: jnp.float32(1), on=coordinator).fetch),
    ]


def _error_on_fetch(env: Environment) -> Any:
    result = attempt(lambda: _schedule(_fail).fetch())
    attempt(coordinator_of().join)
    return result


def _iterator(make: Callable[[], Any], *counts: int) -> Any:
    return iter(coordinator_of(*counts).create_per_worker_dataset(make))


def _next_of(iterator: Any, *counts: int) -> Any:
    return _schedule(next, iterator, on=coordinator_of(*counts))


def _per_worker_dataset(env: Environment) -> Any:
    iterator = _iterator(lambda: gd.data.Dataset.range(10).repeat())
    coordinator = coordinator_of()
    step = gd.function(lambda i: (next(i), _pause()))
    # Two at once go to the two workers.
    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(2)]
    coordinator.join()
    values += [coordinator.schedule(step, args=(iterator,)) for _ in range(2)]
    return sorted(int(value.fetch()[0]) for value in values)


def _pause() -> Any:
    """Return a number after a while, so that a worker is busy."""
    spin = jax.lax.fori_loop(0, 20_000_000, lambda i, x: x + jnp.sin(x), jnp.float32(1))
    return spin


def _types_of_dataset(env: Environment) -> Any:
    dataset = coordinator_of().create_per_worker_dataset(lambda: gd.data.Dataset.range(10))
    iterator: Any = iter(dataset)
    names = "PerWorkerDatasetFromDatasetFunction", "PerWorkerDistributedIterator"
    return [*names, dataset.element_spec, attempt(lambda: next(iterator))]


def _distributed_dataset(env: Environment) -> Any:
    strategy = strategy_of()

    def make() -> Any:
        return strategy.experimental_distribute_dataset(gd.data.Dataset.range(8).batch(4).repeat())

    step = gd.function(lambda i: strategy.run(lambda x: x * 2, args=(next(i),)))
    return coordinator_of().schedule(step, args=(_iterator(make),)).fetch()


def _input_context(env: Environment) -> Any:
    strategy = strategy_of()

    def of(context: Any) -> Any:
        numbers = context.num_input_pipelines, context.input_pipeline_id
        return gd.data.Dataset.from_tensors(
            np.array([*numbers, context.num_replicas_in_sync], np.int32)
        ).repeat()

    iterator = _iterator(lambda: strategy.distribute_datasets_from_function(of))
    return _next_of(iterator).fetch()


def _out_of_range(env: Environment) -> Any:
    coordinator = coordinator_of(*ALONE)
    iterator = _iterator(lambda: gd.data.Dataset.range(2), *ALONE)

    def run() -> None:
        for _ in range(4):
            _next_of(iterator, *ALONE)
        coordinator.join()

    result = attempt(run)
    attempt(coordinator.join)
    return result


def _reduced(env: Environment) -> Any:
    strategy = strategy_of()
    step = gd.function(lambda: strategy.reduce("SUM", strategy.run(lambda: array(2.0)), axis=None))
    return coordinator_of().schedule(step).fetch()


def _remote_input(env: Environment) -> Any:
    value = _schedule(lambda: array(3.0))
    return _schedule(lambda x: x, value)


def _iterated(env: Environment) -> Any:
    dataset = gd.data.Dataset.range(4).batch(2)
    return iter(strategy_of().experimental_distribute_dataset(dataset))


PARAMETER_SERVER: dict[str, Program] = {
    "basic_fields": _basic_fields,
    "round_robin_placement": lambda env: _made(
        lambda: [_device(gd.Variable(float(i))) for i in range(4)]
    ),
    "variable_types": lambda env: _made(_types),
    "sharded_variable": _sharded,
    "sharded_13_over_5": _sharded_13_over_5,
    "scalar_not_sharded": lambda env: _made(lambda: _class(gd.Variable(1.0)), 1, 2, 2),
    "bad_partitioner_result": _bad_partitioner,
    "run_without_coordinator": lambda env: strategy_of(1, 2).run(lambda: array(1.0) + 1.0),
    "iterate_dataset_without_coordinator": _iterated,
    "schedule_fetch": lambda env: [
        _schedule(lambda: array(3.0)).fetch(),
        coordinator_of().done() in (True, False),
    ],
    "schedule_args": lambda env: coordinator_of().fetch(
        [_schedule(lambda x, y=1.0: x * y, array(i * 1.0), y=10.0) for i in range(3)]
    ),
    "schedule_plain_python_fn": lambda env: coordinator_of().schedule(lambda: 1),
    # A function has one program for each signature: there is no other object for one of them.
    "schedule_concrete_fn": lambda env: _schedule(lambda: array(3.0)).fetch(),
    "remote_value_as_input": _remote_input,
    "async_increments_join": _increments,
    "error_raised_at_join": _error_at_join,
    "error_cancels_queued": _error_cancels,
    "error_on_fetch": _error_on_fetch,
    "same_coordinator_object": lambda env: coordinator_of() is coordinator_of(),
    "coordinator_with_wrong_strategy": lambda env: ANY.coordinator.ClusterCoordinator(
        gd.get_strategy()
    ),
    "per_worker_dataset": _per_worker_dataset,
    "per_worker_dataset_types": _types_of_dataset,
    "per_worker_distributed_dataset": _distributed_dataset,
    "input_context_in_dataset_fn": _input_context,
    "out_of_range_in_worker": _out_of_range,
    "reduce_inside_schedule": _reduced,
    "get_is_not_copied": lambda env: _class_of_array(_schedule(lambda: array(3.0)).get()),
    "fetch_non_remote": lambda env: coordinator_of().fetch([1, {"a": array(2.0)}]),
    "current_worker_index_outside": lambda env: (
        gd.coordinator.experimental_get_current_worker_index()
    ),
    "deepcopy_of_fetch_types": lambda env: _class_of_array(_schedule(lambda: array(3.0)).fetch()),
}


def _class_of_array(value: Any) -> str:
    """Return the class that TensorFlow has for it: a NumPy scalar is one of its dtype."""
    if isinstance(value, jax.Array):
        return "EagerTensor"
    return type(value[()]).__name__


parameter_server = from_table(PARAMETER_SERVER)
