"""Datasets made by a function for each worker, input options, and sharding over workers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: the values of any program

import numpy as np

import graphdist as gd
from tests.conformance.encode import attempt
from tests.conformance.environment import Environment, NoProgramError, Program, from_table
from tests.conformance.families.datasets import (
    cardinality,
    dataset_range,
    distribute,
    drain,
    slices,
    with_policy,
)

DatasetFunction = Callable[[Any], Any]


def _from(env: Environment, dataset_fn: Callable[..., Any], *options: Any) -> Any:
    return env.strategy.distribute_datasets_from_function(dataset_fn, *options)


def _drained(dataset_fn: DatasetFunction, limit: int = 8) -> Program:
    return lambda env: drain(env, _from(env, dataset_fn), limit)


def fields(context: Any) -> list[int]:
    """Return what an input context says."""
    return [
        context.num_input_pipelines,
        context.input_pipeline_id,
        context.num_replicas_in_sync,
    ]


def recording(seen: list[Any], dataset_fn: DatasetFunction) -> DatasetFunction:
    """Return the function that also notes the input contexts it is given."""

    def noted(context: Any) -> Any:
        seen.append(fields(context))
        return dataset_fn(context)

    return noted


def _two_batches(context: Any) -> Any:
    return dataset_range(4).batch(2)


def _contexts(env: Environment) -> Any:
    seen: list[Any] = []
    _from(env, recording(seen, _two_batches))
    return seen


def _calls(env: Environment) -> Any:
    seen: list[Any] = []
    list(_from(env, recording(seen, _two_batches)))
    return len(seen)


def _spec(env: Environment) -> Any:
    distributed = _from(env, lambda context: dataset_range(6).batch(2))
    return [distributed.element_spec, cardinality(distributed)]


dataset_from_function = from_table(
    {
        "per_replica_batches": _drained(
            lambda context: dataset_range(8).batch(context.get_per_replica_batch_size(4))
        ),
        "context_seen": _contexts,
        "called_times": _calls,
        "odd_number_of_batches": _drained(lambda context: dataset_range(6).batch(2)),
        "odd_batches_drop_remainder": _drained(
            lambda context: dataset_range(6).batch(2, drop_remainder=True)
        ),
        "partial_last": _drained(lambda context: dataset_range(5).batch(2)),
        "unbatched": _drained(lambda context: dataset_range(3)),
        "unbatched_even": _drained(lambda context: dataset_range(4)),
        "empty": _drained(lambda context: dataset_range(0).batch(2)),
        "spec": _spec,
        "returns_not_dataset": lambda env: _from(env, lambda context: [1, 2]),
        "fn_no_arg": lambda env: _from(env, lambda: dataset_range(4)),
        "deprecated_alias": lambda env: drain(
            env,
            env.strategy.experimental_distribute_datasets_from_function(
                lambda context: dataset_range(4).batch(2)
            ),
        ),
        "dict_elements": _drained(lambda context: slices({"a": np.array([1, 2, 3, 4])}).batch(1)),
        "bad_batch_size": lambda env: _from(
            env, lambda context: dataset_range(4).batch(context.get_per_replica_batch_size(3))
        ),
        "infinite": _drained(lambda context: dataset_range(3).repeat().batch(2), 3),
    }
)


def _options(given: dict[str, Any]) -> Any:
    mode = given.get("experimental_replication_mode")
    modes = {} if mode is None else {"experimental_replication_mode": _mode(mode)}
    return gd.InputOptions(**{**given, **modes})


def _mode(name: str) -> Any:
    return gd.InputReplicationMode[name]


def _one_after_the_other(env: Environment) -> Any:
    """Return what the same function gives without options, one dataset a replica, and without."""
    seen: list[Any] = []
    dataset_fn = recording(seen, _two_batches)
    per_replica = gd.InputOptions(experimental_replication_mode=_mode("PER_REPLICA"))
    return [
        drain(env, _from(env, dataset_fn)),
        drain(env, _from(env, dataset_fn, per_replica)),
        drain(env, _from(env, dataset_fn)),
        drain(env, distribute(env, dataset_range(6).batch(4))),
        seen,
    ]


def input_options(env: Environment) -> Any:
    """Run a case of the family `input_options`: the options are those of its input."""
    if env.label == "defaults":
        return gd.InputOptions()
    if env.label == "per_replica_mode_leaks":
        return _one_after_the_other(env)
    options = _options(env.input["options"])
    if env.parts[0] == "dataset":
        return drain(env, distribute(env, dataset_range(6).batch(4), options))
    if env.parts[0] == "from_function":
        return drain(env, _from(env, lambda context: dataset_range(6).batch(2), options))
    raise NoProgramError("no program for this label")


def batch_sizes_for_worker(env: Environment) -> Any:
    """Run a case of the family `batch_sizes_for_worker`."""
    size, workers = env.input["global_batch"], env.input["workers"]
    replicas = env.input["replicas_per_worker"]
    return [
        [int(one) for one in gd.data.batch_sizes_for_worker(size, workers, replicas, worker)]
        for worker in range(workers)
    ]


def auto_shard(env: Environment) -> Any:
    """Run a case of the family `auto_shard`: what each worker sees of a dataset."""
    kind = env.parts[0]
    with tempfile.TemporaryDirectory() as folder:

        def source() -> Any:
            return _source(kind, env.input, Path(folder))

        return [
            attempt(lambda worker: _seen_by(source(), worker, env.input), worker)
            for worker in range(env.input["workers"])
        ]


def _seen_by(dataset: Any, worker: int, given: dict[str, Any]) -> Any:
    sharded = gd.data.auto_shard(with_policy(dataset, given["policy"]), given["workers"], worker)
    return [np.asarray(element).tolist() for element in sharded]


def _source(kind: str, given: dict[str, Any], folder: Path) -> Any:
    if "files" in given:
        lines = gd.data.Dataset.from_files(_files(folder, given["files"], given["lines_per_file"]))
        return lines.batch(given["batch"])
    numbers = dataset_range(len(given["elements"]))
    if kind.startswith("shard_hint"):
        hint = gd.data.SHARD_HINT
        return numbers.shard(hint, hint).batch(given.get("batch", 2))
    if kind.startswith("unbatched"):
        return numbers
    return numbers.batch(given["batch"])


def _files(folder: Path, count: int, lines: int) -> list[str]:
    paths = [folder / f"f{number}.txt" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text("".join(f"{number}_{line}\n" for line in range(lines)))
    return [str(path) for path in paths]
