"""Parameter servers: their strategy, coordinator, partitioners, and variables in shards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any  # Any: the values of any program

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from graphdist.experimental import partitioners
from tests.conformance.encode import Encoded, attempt, encode
from tests.conformance.environment import Environment, NoProgramError, Program, array, from_table

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


PARTITIONERS: dict[str, Callable[[], Any]] = {
    "fixed2_10x3": lambda: partitioners.FixedShardsPartitioner(2),
    "fixed8_3x3": lambda: partitioners.FixedShardsPartitioner(8),
    "min4_max2_6x1": lambda: partitioners.MinSizePartitioner(4, 2),
    "min4_max10_6x1": lambda: partitioners.MinSizePartitioner(4, 10),
    "min_default_1024x1024": lambda: partitioners.MinSizePartitioner(),
    "min256k_max4_1024x1024": lambda: partitioners.MinSizePartitioner(256 << 10, 4),
    "max4_6x1": lambda: partitioners.MaxSizePartitioner(4),
    "max4_limit2_6x1": lambda: partitioners.MaxSizePartitioner(4, 2),
    "max1024_6x1": lambda: partitioners.MaxSizePartitioner(1024),
    "max16_string_6": lambda: partitioners.MaxSizePartitioner(32),
    "min_bad": lambda: partitioners.MinSizePartitioner(0),
    "max_bad": lambda: partitioners.MaxSizePartitioner(0),
    "min_bad_shards": lambda: partitioners.MinSizePartitioner(4, 0),
    "base": partitioners.Partitioner,
    "fixed_scalar": lambda: partitioners.FixedShardsPartitioner(2),
}


def partitioner(env: Environment) -> Any:
    """Return the shards that a partitioner makes of a shape."""
    if env.label not in PARTITIONERS:
        raise NoProgramError("no program for this label")
    return PARTITIONERS[env.label]()(env.input["shape"], env.input["dtype"])


def _variable() -> gd.ShardedVariable:
    first, second = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [[6.0, 7.0], [8.0, 9.0]]
    return gd.ShardedVariable([gd.Variable(array(first)), gd.Variable(array(second))])


def _list(variable: Any) -> Any:
    return np.asarray(variable).tolist()


def _items(*indices: Any) -> Any:
    return [attempt(lambda index=index: _variable()[index]) for index in indices]


def _shape_numpy(env: Environment) -> Any:
    v = _variable()
    dtype = Encoded(t="DType", v=np.dtype(v.dtype).name)
    return [_shape(v.shape), dtype, _list(v), len(v.variables), v.name]


def _multi(env: Environment) -> Any:
    v: Any = _variable()
    shape = encode(_shape(v[:, None].shape))
    return [*_items((slice(1, 4), 1), (..., 0)), shape, attempt(lambda: v["a"])]


def _assigned(env: Environment) -> Any:
    v = _variable()
    v.assign(jnp.ones((5, 2)))
    return [_list(shard) for shard in v.variables]


def _added(env: Environment) -> Any:
    v = _variable()
    v.assign_add(jnp.ones((5, 2)))
    v.assign_sub(2 * jnp.ones((5, 2)))
    return _list(v)


def _scattered(variable: Any, method: str, values: Any, indices: Any) -> Any:
    getattr(variable, method)(gd.IndexedSlices(array(values), jnp.array(indices)))
    return _list(variable)


def _uneven(env: Environment) -> Any:
    first, second = gd.Variable(array([[0.0]])), gd.Variable(array([[1.0], [2.0], [3.0]]))
    return _scattered(gd.ShardedVariable([first, second]), "scatter_add", [[10.0]], [0])


def _gradients(env: Environment) -> Any:
    v = _variable()

    def loss(parts: list[Any]) -> Any:
        return jnp.sum(jnp.concatenate(parts) ** 2)

    return jax.grad(loss)([shard.read_value() for shard in v.variables])


def _resharded(env: Environment) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = gd.train.Checkpoint(v=_variable()).save(os.path.join(folder, "c"))
        shards = [gd.Variable(jnp.zeros((2, 2))), gd.Variable(jnp.zeros((3, 2)))]
        others = gd.ShardedVariable(shards), gd.Variable(jnp.zeros((5, 2)))
        for other in others:
            gd.train.Checkpoint(v=other).restore(path).assert_consumed()
    return [_list(other) for other in others]


def _other(*variables: Any) -> Program:
    return lambda env: gd.ShardedVariable([gd.Variable(array(*value)) for value in variables])


SHARDED_VARIABLE: dict[str, Program] = {
    "shape_numpy": _shape_numpy,
    "getitem_int": lambda env: _items(0, 3, -1, 5),
    "getitem_slice": lambda env: _items(
        slice(1, 4), slice(None, None, 2), slice(4, 0, -1), slice(3, 3), slice(0, 5, 0)
    ),
    "getitem_multi": _multi,
    "assign": _assigned,
    "assign_add_sub": _added,
    "assign_wrong_shape": lambda env: _variable().assign(jnp.ones((4, 2))),
    "scatter_add": lambda env: _scattered(
        _variable(), "scatter_add", [[10.0, 10.0], [20.0, 20.0]], [1, 4]
    ),
    "scatter_update_uneven": lambda env: _scattered(
        _variable(), "scatter_update", [[10.0, 10.0], [20.0, 20.0]], [2, 3]
    ),
    "even_required_for_scatter": _uneven,
    "convert_and_arith": lambda env: [
        jnp.asarray(_variable().read_value()),
        _variable() + 1.0,
        2.0 * _variable(),
    ],
    "embedding_lookup": lambda env: gd.nn.embedding_lookup(_variable(), [0, 4, 2]),
    "gather": lambda env: _variable().gather([0, 4]),
    "iter": lambda env: ["ResourceVariable" for shard in _variable()],
    "empty": lambda env: ANY.ShardedVariable([]),
    "dtype_mismatch": _other(([1.0],), ([1], "i32")),
    "shape_mismatch": _other(([[1.0]],), ([[1.0, 2.0]],)),
    "tape_gradient": _gradients,
    "checkpoint_reshard": _resharded,
}

parameter_server = from_table(PARAMETER_SERVER)
sharded_variable = from_table(SHARDED_VARIABLE)
