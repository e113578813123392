"""Datasets: how batches are split, how iteration ends, what elements are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: the values of any program

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.conformance.encode import attempt, class_name, device_name, first_device
from tests.conformance.environment import (
    Environment,
    NoProgramError,
    Program,
    from_table,
    without,
)

Source = Callable[[], Any]


def dataset_range(*limits: int) -> Any:
    """Return the dataset of a range of numbers."""
    return gd.data.Dataset.range(*limits)


def slices(arrays: Any) -> Any:
    """Return the dataset of the rows of arrays."""
    return gd.data.Dataset.from_tensor_slices(arrays)


def distribute(env: Environment, dataset: Any, *options: Any) -> Any:
    """Return a dataset distributed by the case's strategy."""
    return env.strategy.experimental_distribute_dataset(dataset, *options)


def is_distributed(leaf: Any) -> bool:
    """Return whether a leaf is a distributed value."""
    return isinstance(leaf, gd.DistributedValues)


def parts(env: Environment, element: Any) -> Any:
    """Return an element with lists of what each replica received in place of its leaves."""
    return jax.tree.map(
        lambda leaf: [np.asarray(part).tolist() for part in env.local(leaf)],
        element,
        is_leaf=is_distributed,
    )


def drain(env: Environment, distributed: Any, limit: int = 8) -> dict[str, Any]:
    """Return what the replicas received at each step, and how it ended."""
    iterator = iter(distributed)
    steps: list[Any] = []
    for _ in range(limit):
        try:
            element = next(iterator)
        except StopIteration:
            return {"steps": steps, "end": "StopIteration"}
        steps.append(parts(env, element))
    return {"steps": steps, "end": "limit"}


def _steps(source: Source, limit: int = 8) -> Program:
    return lambda env: drain(env, distribute(env, source()), limit)


def with_policy(dataset: Any, policy: str) -> Any:
    """Return the dataset with an option that says how it is sharded."""
    options = gd.data.Options()
    options.experimental_distribute.auto_shard_policy = gd.data.AutoShardPolicy[policy]
    return dataset.with_options(options)


def _triangle() -> Any:
    return dataset_range(1, 6).map(lambda x: np.full(int(x), x))


def _fails_at_two(x: Any) -> Any:
    if int(x) >= 2:  # a TypeError, as TensorFlow's own assertion raises when it is traced
        raise TypeError("no number below 2")
    return x


def _repeated() -> Any:
    return dataset_range(3).repeat().batch(4)


PIPELINES: dict[str, Program] = {
    "unbatched": _steps(lambda: dataset_range(6)),
    "unbatched_vectors": _steps(lambda: slices([[1, 2], [3, 4], [5, 6]])),
    "from_tensors_rank2": _steps(lambda: gd.data.Dataset.from_tensors(np.array([[1, 2], [3, 4]]))),
    "batch_then_map_same": _steps(lambda: dataset_range(6).batch(4).map(lambda x: x * 10)),
    "batch_then_map_to_scalar": _steps(lambda: dataset_range(6).batch(4).map(np.sum)),
    "batch_then_unbatch": _steps(lambda: dataset_range(4).batch(2).unbatch()),
    "batch_then_filter": _steps(lambda: dataset_range(8).batch(2).filter(lambda x: x[0] > 1)),
    "batch_then_take": _steps(lambda: dataset_range(12).batch(4).take(2)),
    "batch_then_skip": _steps(lambda: dataset_range(12).batch(4).skip(1)),
    "batch_then_repeat2": _steps(lambda: dataset_range(6).batch(4).repeat(2)),
    "repeat2_then_batch": _steps(lambda: dataset_range(3).repeat(2).batch(4)),
    "batch_then_prefetch": _steps(lambda: dataset_range(6).batch(4).prefetch(2)),
    "batch_of_batch": _steps(lambda: dataset_range(8).batch(2).batch(2)),
    "dict_elements": _steps(
        lambda: slices({"x": np.arange(6), "y": np.arange(6, dtype=np.float32)}).batch(4)
    ),
    "tuple_elements": _steps(
        lambda: slices((np.arange(6), np.arange(6.0).repeat(2).reshape(6, 2))).batch(4)
    ),
    "zip_different_batch": _steps(
        lambda: gd.data.Dataset.zip((dataset_range(4).batch(2), dataset_range(8).batch(4)))
    ),
    "zip_same_batch": _steps(
        lambda: gd.data.Dataset.zip((dataset_range(6).batch(4), dataset_range(6).batch(4)))
    ),
    "concat_different_batch": _steps(
        lambda: dataset_range(4).batch(4).concatenate(dataset_range(6).batch(6))
    ),
    "padded_batch": _steps(lambda: _triangle().padded_batch(4)),
    "ragged_batch": without("RaggedTensor"),
    "sparse": without("SparseTensor"),
    "strings": _steps(lambda: slices(np.array(["a", "b", "c"])).batch(2)),
    "generator": _steps(lambda: gd.data.Dataset.from_generator(lambda: iter(range(5))).batch(4)),
    "generator_unknown_rank": _steps(
        lambda: gd.data.Dataset.from_generator(lambda: iter([[1], [2], [3]])).batch(2)
    ),
    "infinite": _steps(_repeated, 3),
    "error_in_map": _steps(lambda: dataset_range(4).map(_fails_at_two).batch(2)),
    "auto_shard_off": _steps(lambda: with_policy(dataset_range(6).batch(4), "OFF")),
    "auto_shard_file_no_files": _steps(lambda: with_policy(dataset_range(6).batch(4), "FILE")),
    "auto_shard_hint_without_hint": _steps(lambda: with_policy(dataset_range(6).batch(4), "HINT")),
}


def _on(source: Source, use: Callable[[Environment, Any], Any]) -> Program:
    """Return the program that distributes a dataset and does something with it."""
    return lambda env: use(env, distribute(env, source()))


def _six() -> Any:
    return dataset_range(6).batch(4)


def _shuffled() -> Any:
    return dataset_range(6).shuffle(6, seed=1).batch(4)


def cardinality(dataset: Any) -> int:
    """Return how many steps a dataset has: -1 for no end, -2 where it is not known."""
    count = dataset.cardinality
    return int(count() if callable(count) else count)


def _optional(env: Environment, iterator: Any) -> Any:
    optional = iterator.get_next_as_optional()
    return [bool(optional.has_value()), attempt(optional.get_value)]


def _first_optional(env: Environment, distributed: Any) -> Any:
    optional = iter(distributed).get_next_as_optional()
    return [optional.has_value(), optional.get_value()]


def _three_optionals(env: Environment, distributed: Any) -> Any:
    iterator = iter(distributed)
    return [_optional(env, iterator) for _ in range(3)]


def _exhausted(env: Environment, distributed: Any) -> Any:
    iterator = iter(distributed)
    return [
        *(attempt(iterator.get_next) for _ in range(3)),
        attempt(lambda: next(iterator)),
    ]


def _in_replica(env: Environment, distributed: Any) -> Any:
    iterator = iter(distributed)
    return env.strategy.run(lambda: next(iterator))


def _looped_in_function(env: Environment, distributed: Any) -> Any:
    def total(elements: Any) -> Any:
        doubled = (env.strategy.run(lambda y: y * 2, args=(x,)) for x in elements)
        return sum(env.strategy.reduce("SUM", x, axis=0) for x in doubled)

    return gd.function(total)(distributed)


def _next_in_function(env: Environment, distributed: Any) -> Any:
    iterator = iter(distributed)
    step = gd.function(lambda elements: env.strategy.reduce("SUM", next(elements), axis=0))
    return [attempt(step, iterator) for _ in range(3)]


def _enumerated_in_function(env: Environment, distributed: Any) -> Any:
    def total(elements: Any) -> Any:
        return sum(i for i, _ in enumerate(elements))

    return gd.function(total)(distributed)


def _two_iterators(env: Environment, distributed: Any) -> Any:
    one, other = iter(distributed), iter(distributed)
    return [next(one), next(other), next(one)]


def _types(env: Environment, distributed: Any) -> Any:
    iterator = iter(distributed)
    return [class_name(next(iterator)), class_name(next(iterator))]


def _second_step(env: Environment, distributed: Any) -> Any:
    iterator = iter(distributed)
    next(iterator)
    return next(iterator)


def _mean_of_empty(env: Environment, distributed: Any) -> Any:
    element = _second_step(env, distributed)
    return env.strategy.run(lambda x: jnp.mean(x.astype(jnp.float32)), args=(element,))


def _mean_over_rows(env: Environment, distributed: Any) -> Any:
    element = _second_step(env, distributed)
    floats = env.strategy.run(lambda x: x.astype(jnp.float32), args=(element,))
    return env.strategy.reduce("MEAN", floats, axis=0)


def _devices(env: Environment, distributed: Any) -> Any:
    element = next(iter(distributed))
    return [device_name(first_device(part)) for part in env.local(element)]


def _two_epochs(env: Environment, distributed: Any) -> Any:
    return [drain(env, distributed), drain(env, distributed)]


USES: dict[str, Program] = {
    "shuffle_seeded_two_epochs": lambda env: [_steps(_shuffled)(env) for _ in range(2)],
    "shuffle_seeded_two_iterators": _on(_shuffled, _two_epochs),
    "infinite_spec_cardinality": _on(
        _repeated, lambda env, distributed: [distributed.element_spec, cardinality(distributed)]
    ),
    "infinite_get_next_as_optional": _on(
        lambda: dataset_range(4).repeat().batch(4), _first_optional
    ),
    "get_next_as_optional_sequence": _on(lambda: dataset_range(5).batch(4), _three_optionals),
    "get_next_as_optional_empty": _on(
        lambda: dataset_range(0).batch(4),
        lambda env, distributed: _optional(env, iter(distributed)),
    ),
    "get_next_exhausted": _on(lambda: dataset_range(4).batch(4), _exhausted),
    "next_in_replica_fn": _on(lambda: dataset_range(4).batch(4), _in_replica),
    "iterate_in_tf_function": _on(_six, _looped_in_function),
    "iterator_in_tf_function_exhaust": _on(_six, _next_in_function),
    "enumerate_in_tf_function": _on(_six, _enumerated_in_function),
    "enumerate_eager": _on(_six, lambda env, distributed: [i for i, _ in enumerate(distributed)]),
    "len": _on(_six, lambda env, distributed: len(distributed)),
    "map_on_distributed": _on(_six, lambda env, distributed: distributed.map(lambda x: x)),
    "bool": _on(_six, lambda env, distributed: bool(distributed)),
    "reduce_method": _on(
        _six,
        lambda env, distributed: distributed.reduce(
            jnp.int32(0), lambda total, x: total + env.strategy.reduce("SUM", x, axis=0)
        ),
    ),
    "distribute_twice": _on(_six, distribute),
    "not_a_dataset": lambda env: distribute(env, [1, 2, 3]),
    "numpy_array": lambda env: distribute(env, np.arange(4)),
    "two_iterators_independent": _on(lambda: dataset_range(8).batch(4), _two_iterators),
    "reiterate_restarts": _on(_six, _two_epochs),
    "partial_batch_types": _on(lambda: dataset_range(5).batch(4), _types),
    "empty_replica_grad_mean": _on(lambda: dataset_range(5).batch(4), _mean_of_empty),
    "empty_replica_reduce_mean_axis0": _on(lambda: dataset_range(5).batch(4), _mean_over_rows),
    "device_of_elements": _on(lambda: dataset_range(4).batch(4), _devices),
}
_by_label = from_table(PIPELINES | USES)


def dataset(env: Environment) -> Any:
    """Run a case of the family `dataset`: of its label, or numbers in batches by its input."""
    if env.label in PIPELINES or env.label in USES:
        return _by_label(env)
    if "elements" not in env.input:
        raise NoProgramError("no program for this label")
    numbers = dataset_range(len(env.input["elements"]))
    batches = numbers.batch(
        env.input["global_batch"], drop_remainder=env.input.get("drop_remainder", False)
    )
    return drain(env, distribute(env, batches))


def dataset_spec(env: Environment) -> Any:
    """Run a case of the family `dataset_spec`."""
    batches = dataset_range(env.input["total"]).batch(
        env.input["global_batch"], drop_remainder=env.input["drop_remainder"]
    )
    distributed = distribute(env, batches)
    return [
        distributed.element_spec,
        iter(distributed).element_spec,
        attempt(lambda: cardinality(distributed)),
        class_name(distributed),
        class_name(iter(distributed)),
    ]
